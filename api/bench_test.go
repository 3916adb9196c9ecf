package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// idle is a journal without any cost. With oneKey and idleSigner, only the server's own cost remains.
type idle struct {
	audit.Journal
	leaf []byte
}

func (idle) Ready(context.Context) error { return nil }

func (j idle) Append(_ context.Context, r appliance.Record, _ ...journal.Condition) (journal.Entry, bool, error) {
	r.Time = time.Now()
	return journal.Entry{Record: r, Leaf: j.leaf}, false, nil
}

// oneKey holds one API key.
type oneKey struct {
	appliance.Keys
	key appliance.APIKey
}

func (oneKey) Used(string, time.Time) {}

func (k oneKey) Key(context.Context, string) (appliance.APIKey, error) { return k.key, nil }

// idleSigner returns a prepared signature.
type idleSigner struct {
	attest.Signer
	made appliance.Signature
}

func (s idleSigner) Sign(context.Context, appliance.Digest) (appliance.Signature, error) {
	return s.made, nil
}

func idleAttestor(b *testing.B) (a *attest.Attestor, token string) {
	b.Helper()
	a, _ = newAttestor(b)
	key, token, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "bench", Rate: appliance.Unlimited}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	request, err := api.ParseRequest([]byte(good))
	if err != nil {
		b.Fatal(err)
	}
	made, err := a.Signer.Sign(context.Background(), a.Scheme.Digest(request))
	if err != nil {
		b.Fatal(err)
	}
	leaf, err := journal.EncodeLeaf(
		appliance.Record{Attestation: appliance.Attestation{Signature: made}, Request: request})
	if err != nil {
		b.Fatal(err)
	}
	a.Journal, a.Keys, a.Signer = idle{a.Journal, leaf}, oneKey{a.Keys, key}, idleSigner{a.Signer, made}
	return a, token
}

// BenchmarkAttest compares the server with a bare fiber handler whose answer has the same size. Both use a loopback
// socket, without HSM and disk. cpu-µs/op includes the client, which is the same for both.
func BenchmarkAttest(b *testing.B) {
	attestor, token := idleAttestor(b)
	b.Run("bare fiber", func(b *testing.B) {
		answer := make([]byte, 520)
		app := fiber.New(fiber.Config{DisableStartupMessage: true})
		app.Post(attestPath, func(c *fiber.Ctx) error { return c.Send(answer) })
		measure(b, func(ln net.Listener) { _ = app.Listener(ln) }, token)
	})
	b.Run("server", func(b *testing.B) {
		opts := testOptions(attestor)
		opts.Registry, opts.Logger = prometheus.NewRegistry(), slog.New(slog.NewJSONHandler(io.Discard, nil))
		s, err := api.New(opts)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, func(ln net.Listener) { _ = s.Serve(ln) }, token)
	})
	b.Run("domain alone", func(b *testing.B) {
		key, err := attestor.Keys.Key(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		start := cpu()
		for b.Loop() {
			request, err := api.ParseRequest([]byte(good))
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := attestor.Attest(b.Context(), appliance.Call{Key: key, Request: request}); err != nil {
				b.Fatal(err)
			}
		}
		report(b, start)
	})
}

func measure(b *testing.B, serve func(net.Listener), token string) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go serve(ln)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := fmt.Appendf(nil,
		"POST %s HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		attestPath, token, len(good), good)
	in := bufio.NewReader(c)
	start := cpu()
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		if err := skipAnswer(in); err != nil {
			b.Fatal(err)
		}
	}
	report(b, start)
}

// skipAnswer reads an answer with minimal work.
func skipAnswer(in *bufio.Reader) error {
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			_, err := in.Discard(length)
			return err
		}
		if n, _ := fmt.Sscanf(string(line), "Content-Length: %d", &length); n == 0 && string(line[:5]) == "HTTP/" &&
			string(line[9:12]) != "200" {
			return fmt.Errorf("%s", line)
		}
	}
}

// cpu returns the CPU time that the process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func report(b *testing.B, start time.Duration) {
	b.Helper()
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	b.ReportAllocs()
}
