package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
	"github.com/attestd/attestd/hsm/worker"
)

// openTokens opens several tokens, each with a separate worker. limit is how long a call may take.
func openTokens(t *testing.T, limit time.Duration, uris ...hsm.URI) (*hsm.Tokens, *logged) {
	t.Helper()
	var log logged
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var places []hsm.TokenSlot
	for i, uri := range uris {
		open := worker.Opener(worker.Options{HSM: hsm.Options{URI: uri, Sessions: 4}, CallTimeout: limit,
			Logger: logger.With("position", i+1), Sandbox: testFiles()})
		places = append(places, hsm.TokenSlot{URI: uri, Open: func(ctx context.Context) (hsm.TokenSigner, error) {
			signer, err := open(ctx)
			if err != nil {
				return nil, err
			}
			return signer, nil
		}})
	}
	tokens, err := hsm.OpenTokens(t.Context(), places, hsm.TokensOptions{CallTimeout: limit, Logger: logger})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Cleanup(func() {
		_ = tokens.Close() // an error means that a call hung, as tests intend
		if t.Failed() {
			t.Logf("the log:\n%s", log.String())
		}
	})
	for i := range uris[1:] {
		awaitState(t, tokens, i+2, hsm.TokenReady)
	}
	return tokens, &log
}

// steady are clients that sign continuously, each signature with a deadline, and check each signature.
type steady struct {
	signed, slowest, last, gap atomic.Int64 // times in nanoseconds
}

const steadyDeadline = patience / 2

func signSteadily(t *testing.T, tokens *hsm.Tokens, clients int) (*steady, func()) {
	s := &steady{}
	s.last.Store(time.Now().UnixNano())
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				s.one(t, tokens)
				time.Sleep(20 * time.Millisecond) // leaves time for other tests
			}
		})
	}
	eventually(t, "under load", func() bool { return s.signed.Load() > 20 })
	s.gap.Store(0)
	end := sync.OnceFunc(func() { stop(); all.Wait() })
	t.Cleanup(end)
	return s, end
}

func (s *steady) one(t *testing.T, tokens *hsm.Tokens) {
	ctx, cancel := context.WithTimeout(context.Background(), steadyDeadline)
	defer cancel()
	d, began := randomDigest(), time.Now()
	signature, err := tokens.Sign(ctx, d)
	if err != nil {
		t.Errorf("a signature failed after %s: %v", time.Since(began), err)
		time.Sleep(10 * time.Millisecond)
		return
	}
	checkSignature(t, tokens, d, signature)
	s.signed.Add(1)
	now := time.Now()
	raise(&s.slowest, int64(now.Sub(began)))
	raise(&s.gap, now.UnixNano()-s.last.Swap(now.UnixNano()))
}

// raise sets a value if it is higher than before.
func raise(value *atomic.Int64, to int64) {
	for was := value.Load(); to > was && !value.CompareAndSwap(was, to); was = value.Load() {
	}
}

func stateOf(tokens *hsm.Tokens, position int) string { return tokens.Standings()[position-1].State }

func awaitState(t *testing.T, tokens *hsm.Tokens, position int, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("token %d %s", position, want), func() bool { return stateOf(tokens, position) == want })
}

// If the first token fails under load, no request fails, every answer verifies, and the token signs again after its
// recovery.
func TestDrillTheFirstTokenFailsUnderLoad(t *testing.T) {
	for name, fail := range map[string]func(*testing.T, *hsm.Tokens, *hsmtest.Faults){
		"returns an error": func(_ *testing.T, _ *hsm.Tokens, f *hsmtest.Faults) {
			f.Set("C_Sign", hsmtest.Fault{Error: pkcs11.CKR_FUNCTION_FAILED})
		},
		"hangs": func(_ *testing.T, _ *hsm.Tokens, f *hsmtest.Faults) { f.Set("C_Sign", hsmtest.Fault{Hang: true}) },
		"crashes its library": func(_ *testing.T, _ *hsm.Tokens, f *hsmtest.Faults) {
			f.Set("C_Sign", hsmtest.Fault{Crash: true})
		},
		"signs wrongly": func(_ *testing.T, _ *hsm.Tokens, f *hsmtest.Faults) {
			f.Set("C_Sign", hsmtest.Fault{Answer: hsmtest.BitFlipped})
		},
		"is away": func(_ *testing.T, _ *hsm.Tokens, f *hsmtest.Faults) {
			f.Down(pkcs11.CKR_DEVICE_REMOVED)
			f.Restart()
		},
		"has its worker killed": func(t *testing.T, tokens *hsm.Tokens, _ *hsmtest.Faults) {
			// Another worker starts within 0.2 s, often before a request has missed the first.
			for stateOf(tokens, 2) != hsm.TokenSigns {
				_ = syscall.Kill(workerOfFirst(t, tokens), syscall.SIGKILL) // fails if the worker has already ended
				time.Sleep(20 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := hsmtest.New(t)
			second := first.Clone(t)
			faults := hsmtest.NewFaults(t, first.URI.ModulePath)
			first.URI.ModulePath = faults.Module
			tokens, log := openTokens(t, hangTimeout, first.URI, second.URI)
			load, stop := signSteadily(t, tokens, 8)
			began := time.Now()
			fail(t, tokens, faults)
			awaitState(t, tokens, 2, hsm.TokenSigns)
			before := load.signed.Load()
			eventually(t, "signing with the second", func() bool { return load.signed.Load() > before+50 })
			faults.Clear()
			awaitState(t, tokens, 1, hsm.TokenSigns)
			took := time.Since(began)
			stop()
			t.Logf("%s: %d signatures, the longest gap %s, the slowest %s; in use again after %s", name,
				load.signed.Load(),
				time.Duration(load.gap.Load()).Round(time.Millisecond),
				time.Duration(load.slowest.Load()).Round(time.Millisecond), took.Round(time.Millisecond))
			wantLog(t, log, "HSM token out of use", "HSM token in use again")
		})
	}
}

func workerOfFirst(t *testing.T, tokens *hsm.Tokens) int {
	t.Helper()
	status, err := tokens.Status(t.Context())
	if err != nil || len(status.Tokens) == 0 || status.Tokens[0].Worker == 0 {
		t.Fatalf("%+v, %v", status, err)
	}
	return status.Tokens[0].Worker
}

// The first token is behind a server, with a different module than SoftHSM: p11-kit's client. The server is killed
// under load and restarted.
func TestDrillTheFirstTokensServerIsCutUnderLoad(t *testing.T) {
	first := hsmtest.New(t)
	second := first.Clone(t)
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	server := hsmtest.NewServer(t, module, first.Env...)
	for _, variable := range server.Env {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value) // inherited by the workers
	}
	first.URI.ModulePath = server.Module
	tokens, _ := openTokens(t, hangTimeout, first.URI, second.URI)
	load, stop := signSteadily(t, tokens, 8)
	server.Kill()
	awaitState(t, tokens, 2, hsm.TokenSigns)
	before := load.signed.Load()
	eventually(t, "signing with the second", func() bool { return load.signed.Load() > before+50 })
	server.Start()
	awaitState(t, tokens, 1, hsm.TokenSigns)
	stop()
	t.Logf("%d signatures, the longest gap %s, the slowest %s", load.signed.Load(),
		time.Duration(load.gap.Load()).Round(time.Millisecond),
		time.Duration(load.slowest.Load()).Round(time.Millisecond))
}

// A token that returns with a different key is never asked for a signature, however often it is opened.
func TestATokenThatComesBackWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	first := hsmtest.New(t)
	second := first.Clone(t)
	other := hsmtest.New(t)
	tokens, log := openTokens(t, callTimeout, first.URI, second.URI)
	old := workerOfFirst(t, tokens)
	signal := func(sig syscall.Signal) {
		if err := syscall.Kill(old, sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP) // so that the old worker never signs with the other key
	first.Become(t, other)
	signal(syscall.SIGKILL)
	awaitState(t, tokens, 1, hsm.TokenRefused)
	for range 20 {
		d := randomDigest()
		signature, err := tokens.Sign(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		checkSignature(t, tokens, d, signature)
	}
	wantLog(t, log, "HSM token refused")
	if strings.Contains(log.String(), "returned a wrong signature; it was withheld") {
		t.Error("the new worker was asked to sign, although its key is another one")
	}
	if signs := stateOf(tokens, 2); signs != hsm.TokenSigns {
		t.Errorf("the second %s", signs)
	}
}
