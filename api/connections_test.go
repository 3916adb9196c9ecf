package api_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

const alive = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// newStreet is a rig without trusted peers, so that local clients are anonymous, too.
func newStreet(t testing.TB, options ...func(*api.Options)) *rig {
	t.Helper()
	r := newRig(t, options...)
	r.server.TrustOnly()
	return r
}

// dialFrom opens a raw connection from another address of this machine.
func (r *rig) dialFrom(address string) *rawConn {
	r.Helper()
	w, err := r.tryFrom(address)
	r.must(err)
	return w
}

func (r *rig) tryFrom(address string) (*rawConn, error) {
	r.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := dialer.Dial("tcp", r.address)
	if err != nil {
		return nil, err
	}
	r.must(c.SetDeadline(time.Now().Add(patience)))
	r.Cleanup(func() { c.Close() })
	return &rawConn{r, c, bufio.NewReader(c)}, nil
}

// refuses opens a connection that the server must reset, possibly before the client sees it open.
func (r *rig) refuses(address string) {
	r.Helper()
	w, err := r.tryFrom(address)
	if err == nil {
		_, err = w.in.ReadByte()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		r.Errorf("the connection was not refused: %v", err)
	}
}

// answers sends a request that must be answered.
func (w *rawConn) answers(request string) {
	w.Helper()
	w.send(request)
	if a := w.receive(); a.status != 200 {
		w.Errorf("%s", a)
	}
}

func (r *rig) attestation() string { return r.head(length(len(good))) + good }

// await returns when a metric has the value.
func (r *rig) await(metric string, value float64) {
	r.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	got := r.metric(metric)
	for until := time.Now().Add(patience); got != value && time.Now().Before(until); got = r.metric(metric) {
		<-look.C
	}
	if got != value {
		r.Errorf("%s is %v, want %v", metric, got, value)
	}
}

// metric returns the value of a series, such as name{label="value"}.
func (r *rig) metric(series string) float64 {
	r.Helper()
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	families, err := r.registry.Gather()
	r.must(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			text := []string{}
			for _, l := range m.GetLabel() {
				text = append(text, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if f.GetName() == name && strings.Join(text, ",") == labels {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	r.Fatalf("there is no metric %s", series)
	return 0
}

func TestOneAddressCannotTakeAllConnections(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnectionsPerAddress = 3 })
	var taken []*rawConn
	for range 3 {
		w := r.dialFrom("127.0.0.2")
		w.answers(alive)
		taken = append(taken, w)
	}
	for range 3 {
		r.refuses("127.0.0.2")
	}
	r.dialFrom("127.0.0.3").answers(alive)
	r.await(`attestd_connections_refused_total{reason="address"}`, 3)
	if n := strings.Count(r.logs.String(), "new ones are refused"); n != 1 {
		t.Errorf("%d log lines, want one a minute", n)
	}
	if !strings.Contains(r.logs.String(), `"address":"127.0.0.2"`) {
		t.Error("the log has not the address")
	}
	taken[0].Close()
	r.await("attestd_connections", 3)
	r.dialFrom("127.0.0.2").answers(alive)
}

func TestAnIPv6NetworkIsOneAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"2001:db8::1", "2001:db8::ffff:1", true}, {"2001:db8::1", "2001:db8:0:1::1", false},
		{"192.0.2.1", "192.0.2.2", false},
	} {
		if same := api.Network(netip.MustParseAddr(c.a)) == api.Network(netip.MustParseAddr(c.b)); same != c.same {
			t.Errorf("%s and %s: %v", c.a, c.b, same)
		}
	}
}

func TestProxiesHaveNoLimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	for name, trust := range map[string]func(*rig){
		"trusted":         func(r *rig) { r.server.TrustOnly(netip.MustParsePrefix("127.0.0.2/32")) },
		"on this machine": func(*rig) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *api.Options) {
				o.MaxConnectionsPerAddress, o.AnonymousIdleTimeout = 1, time.Nanosecond
			})
			trust(r)
			first := r.dialFrom("127.0.0.2")
			first.answers(alive)
			r.dialFrom("127.0.0.2").answers(alive)
			first.answers(alive) // it also has the longer idle timeout
		})
	}
}

func TestTheStrangerThatIsIdleForLongestMakesPlace(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 3 })
	keyed, first, second := r.dialFrom("127.0.0.2"), r.dialFrom("127.0.0.3"), r.dialFrom("127.0.0.4")
	keyed.answers(r.attestation())
	first.answers(alive)
	second.answers(alive)
	first.answers(alive) // makes the second the longest idle
	r.dialFrom("127.0.0.5").answers(alive)
	second.receiveEnd()
	r.dialFrom("127.0.0.6").answers(alive)
	first.receiveEnd()
	keyed.answers(r.attestation())
	r.await(`attestd_connections_refused_total{reason="closed_for_another"}`, 2)
	r.await("attestd_connections", 3)
}

// attests makes an attestation with an API key on a new connection, and waits until the connection is idle.
func (r *rig) attests(token, from string, resting int) *rawConn {
	r.Helper()
	w := r.dialFrom(from)
	w.answers(strings.Replace(r.attestation(), r.token, token, 1))
	r.awaitResting(resting)
	return w
}

func (r *rig) awaitResting(n int) {
	r.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for until := time.Now().Add(patience); r.server.Resting() != n; <-look.C {
		if time.Now().After(until) {
			r.Fatalf("%d connections wait for a request, want %d", r.server.Resting(), n)
		}
	}
}

// One client opens more and more connections with its API key, from many addresses.
func TestOneAPIKeyCannotTakeAllConnections(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 8 }) // two per key
	first, second := r.attests(r.token, "127.0.0.2", 1), r.attests(r.token, "127.0.0.3", 2)
	third := r.attests(r.token, "127.0.0.4", 2)
	first.receiveEnd()
	second.answers(r.attestation())
	third.answers(r.attestation())
	r.await(`attestd_connections_refused_total{reason="key"}`, 1)
	other, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	r.awaitResting(2)
	r.attests(other, "127.0.0.5", 3).answers(strings.Replace(r.attestation(), r.token, other, 1))
}

// If all other connections of the key have a request in progress, the newest is closed after its answer.
func TestAConnectionAboveTheLimitOfAnAPIKeyIsAnsweredAndClosed(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 4 }) // one per key
	first := r.attests(r.token, "127.0.0.2", 1)
	entered, release := r.signer.close()
	defer release()
	first.send(r.attestation())
	<-entered
	second := r.dialFrom("127.0.0.3")
	second.send("GET /functions/v1/attestor HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.token + "\r\n\r\n")
	if a := second.receive(); a.status != 200 || !a.last {
		t.Errorf("%s, want 200 and the end of the connection", a)
	}
	release()
	if a := first.receive(); a.status != 200 || a.last {
		t.Errorf("%s, want 200", a)
	}
}

// If connections with an API key fill the server, the longest idle one is closed for a new connection, but never one
// with a request in progress.
func TestIdleConnectionsWithAnAPIKeyMakePlace(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 3 }) // one per key
	second, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	third, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	busy := r.attests(r.token, "127.0.0.2", 1)
	idle, begun := r.attests(second, "127.0.0.3", 2), r.attests(third, "127.0.0.4", 3)
	entered, release := r.signer.close()
	defer release()
	busy.send(r.attestation())
	<-entered
	begun.send("GET /heal")
	r.awaitResting(1)
	r.dialFrom("127.0.0.5").answers(alive)
	idle.receiveEnd()
	r.await(`attestd_connections_refused_total{reason="closed_for_another"}`, 1)
	begun.answers("thz HTTP/1.1\r\nHost: x\r\n\r\n")
	release()
	if a := busy.receive(); a.status != 200 {
		t.Error(a)
	}
}

// A slow trickle of bytes does not count as recent use.
func TestARequestThatDoesNotComeWholeMakesPlace(t *testing.T) {
	t.Parallel()
	for name, begun := range map[string]string{
		"nothing":        "",
		"half a line":    "GET /heal",
		"half the head":  "GET /healthz HTTP/1.1\r\nHost: x\r\n",
		"half the body":  strings.Replace(post+about, "{key}", "none", 1) + "Content-Length: 100\r\n\r\n{",
		"half the chunk": strings.Replace(post+about, "{key}", "none", 1) + "Transfer-Encoding: chunked\r\n\r\n64\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newStreet(t, func(o *api.Options) { o.MaxConnections = 2 })
			slow := r.dialFrom("127.0.0.2")
			slow.send(begun)
			r.await("attestd_connections", 1)
			r.dialFrom("127.0.0.3").answers(alive)
			slow.send(" ")
			r.dialFrom("127.0.0.4").answers(alive)
			if _, err := io.Copy(io.Discard, slow.in); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the slow one is still there")
			}
		})
	}
}

func TestNobodyMakesPlaceWhileTheyAreAnswered(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 2 })
	entered, release := r.signer.close()
	defer release()
	one, other := r.dialFrom("127.0.0.2"), r.dialFrom("127.0.0.3")
	for _, w := range []*rawConn{one, other} {
		w.send(r.attestation())
		<-entered
	}
	r.refuses("127.0.0.4")
	r.await(`attestd_connections_refused_total{reason="all"}`, 1)
	release()
	for _, w := range []*rawConn{one, other} {
		if a := w.receive(); a.status != 200 {
			t.Error(a)
		}
	}
}

func TestListenersShareTheirLimits(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.MaxConnections = 2 })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ln) }()
	first := r.dialFrom("127.0.0.2")
	first.answers(alive)
	r.address = ln.Addr().String()
	second := r.dialFrom("127.0.0.3")
	second.answers(alive)
	r.dialFrom("127.0.0.4").answers(alive)
	first.receiveEnd()
	second.answers(alive)
}

func TestStrangersMayBeIdleForLess(t *testing.T) {
	t.Parallel()
	r := newStreet(t, func(o *api.Options) { o.AnonymousIdleTimeout = shortTimeout })
	revoked, id := r.newKey(appliance.KeyRequest{})
	_, err := r.attestor.Keys.Revoke(context.Background(), id, r.clock.Now())
	r.must(err)
	keyed := r.dial()
	keyed.answers(r.attestation())
	silent, stranger := r.dial(), r.dial()
	stranger.answers(alive)
	former := r.dial()
	former.answers("GET /functions/v1/attestor HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + revoked + "\r\n\r\n")
	if a := silent.receive(); a.status != 408 || !a.last {
		t.Error(a)
	}
	stranger.receiveEnd()
	former.receiveEnd()
	keyed.answers(r.attestation())
	if strings.Contains(r.logs.String(), `"status":408`) {
		t.Error("a connection that sent nothing was logged as a request")
	}
}

// A client that sends or reads one byte at a time cannot hold a connection beyond the timeouts.
func TestTricklesEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.ReadTimeout = shortTimeout })
	conns, ended := map[string]*rawConn{}, make(chan struct{})
	defer close(ended)
	for name, c := range map[string]struct{ whole, trickle string }{
		"headers":                     {"", "GET /healthz HTTP/1.1\r\nX-A: "},
		"headers of a second request": {alive, "GET /healthz HTTP/1.1\r\nX-A: "},
		"body":                        {"", post + about + "Content-Length: 10000\r\n\r\n"},
		"chunk":                       {"", post + about + "Transfer-Encoding: chunked\r\n\r\n1000\r\n"},
		"chunk extension":             {"", post + about + "Transfer-Encoding: chunked\r\n\r\n1;"},
		"trailers":                    {"", post + about + "Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: "},
	} {
		w := r.dial()
		if c.whole != "" {
			w.answers(c.whole)
		}
		w.send(strings.ReplaceAll(c.trickle, "{key}", r.token))
		go w.trickle(ended)
		conns[name] = w
	}
	for name, w := range conns {
		if a := w.receive(); a.status != 408 || !a.last {
			t.Errorf("%s: %s", name, a)
		}
	}
}

// trickle sends a byte every 10 ms.
func (w *rawConn) trickle(until <-chan struct{}) {
	each := time.NewTicker(10 * time.Millisecond)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			_, _ = w.Write([]byte("a"))
		case <-until:
			return
		}
	}
}

func TestAReaderThatDoesNotReadIsCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.WriteTimeout = 300 * time.Millisecond })
	w := r.dial()
	r.await("attestd_connections", 1)
	go func() { // until the connection closes; the client never reads the answers
		for {
			if _, err := w.Write(
				[]byte(strings.Repeat("GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n\r\n", 100))); err != nil {
				return
			}
		}
	}()
	r.await("attestd_connections", 0)
}

// newTLSRig serves a street over TLS. The client's configuration trusts it.
func newTLSRig(t *testing.T, options ...func(*api.Options)) (*rig, *http.Client) {
	dir := t.TempDir()
	ca := newAuthority(t)
	ca.issue("server", dir+"/cert.pem", dir+"/key.pem")
	certificates, err := api.LoadCertificates(dir+"/cert.pem", dir+"/key.pem", "")
	if err != nil {
		t.Fatal(err)
	}
	r := newStreet(t, append(options, func(o *api.Options) { o.TLS = certificates.Config() })...)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool()}, DisableKeepAlives: true}
	return r, &http.Client{Transport: transport}
}

// A client that never completes the TLS handshake must not block accepting. fasthttp would answer the first connection
// above its own limit inside its accept loop.
func TestSilentTLSClientsDoNotStopAccepting(t *testing.T) {
	t.Parallel()
	const most = 8
	r, client := newTLSRig(t, func(o *api.Options) { o.MaxConnections, o.ReadTimeout = most, patience })
	for range 3 * most {
		r.dialFrom("127.0.0.2")
	}
	r.await(`attestd_connections_refused_total{reason="closed_for_another"}`, 2*most)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.must(r.server.Responds(ctx))
	for range 3 {
		if a, err := r.try(client, "GET", "https://"+r.address+"/healthz", http.NoBody); err != nil || a.status != 200 {
			t.Errorf("%s, %v", a, err)
		}
	}
}

func TestATLSHandshakeHasADeadline(t *testing.T) {
	t.Parallel()
	r, _ := newTLSRig(t, func(o *api.Options) { o.ReadTimeout = shortTimeout })
	silent, half := r.dial(), r.dial()
	half.send("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
	for _, w := range []*rawConn{silent, half} {
		if _, err := io.Copy(io.Discard, w.in); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("it is still there")
		}
	}
	r.await("attestd_connections", 0)
}

// RFC 9112 section 9.8: closure alerts are exchanged before a connection is closed.
func TestTLSIsClosedByAnAlert(t *testing.T) {
	t.Parallel()
	r, client := newTLSRig(t)
	c, err := tls.Dial("tcp", r.address, client.Transport.(*http.Transport).TLSClientConfig)
	r.must(err)
	defer c.Close()
	r.must(c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, strings.Replace(alive, "Host: x", "Host: x\r\nConnection: close", 1))
	r.must(err)
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%q, %v", got, err)
	}
}

// A body that ends with the connection is incomplete, even if TLS reports that the client has closed.
func TestABodyInChunksThatEndsWithTLSIsRefused(t *testing.T) {
	t.Parallel()
	r, client := newTLSRig(t)
	c, err := tls.Dial("tcp", r.address, client.Transport.(*http.Transport).TLSClientConfig)
	r.must(err)
	defer c.Close()
	r.must(c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, r.head(chunkedHeader)+strings.TrimSuffix(chunked(good), "0\r\n\r\n"))
	r.must(err)
	r.must(c.CloseWrite())
	if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 400 ") {
		t.Errorf("%q, %v", got, err)
	}
	if r.size() != 0 {
		t.Error("it was signed")
	}
}
