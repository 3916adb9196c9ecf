package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/store/bolt"
)

const (
	// patience bounds every wait of a test; a passing test stays far below it.
	patience = time.Minute
	// shortTimeout is for tests that wait for a timeout, but first do work that may be slow on a busy machine.
	shortTimeout = 3 * time.Second
)

const (
	unspendable = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	beneficiary = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
	good        = `{"unspendableAddress":"` + unspendable + `","beneficiary":"` + beneficiary + `"}`
	attestPath  = "/functions/v1/attest"
)

// rig is a whole appliance: a SoftHSM token, a bbolt store and a server on a loopback socket.
type rig struct {
	testing.TB
	attestor *attest.Attestor
	signer   *gate
	log      journal.LogKey
	server   *api.Server
	served   chan error // result of Serve
	address  string
	logs     *logs
	clock    *clock
	registry *prometheus.Registry

	token, key string // of an API key without limits
}

// newRig serves an appliance until the test ends. options may change the api.Options.
func newRig(t testing.TB, options ...func(*api.Options)) *rig {
	t.Helper()
	r := &rig{
		TB: t, logs: &logs{}, clock: &clock{now: time.Now().UTC()}, served: make(chan error, 1),
		registry: prometheus.NewRegistry(),
	}
	r.attestor, r.log = newAttestor(t)
	r.signer = &gate{Signer: r.attestor.Signer}
	r.attestor.Signer, r.attestor.Now = r.signer, r.clock.Now
	r.token, r.key = r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited, Scopes: appliance.Scopes})
	opts := testOptions(r.attestor)
	opts.LogVerifier, opts.Registry, opts.Now = r.log.VerifierText, r.registry, r.clock.Now
	opts.Logger = slog.New(slog.NewJSONHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for _, change := range options {
		change(&opts)
	}
	var err error
	r.server, err = api.New(opts)
	r.must(err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	r.address = ln.Addr().String()
	go func() { r.served <- r.server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := r.server.Shutdown(ctx); err != nil {
			t.Errorf("shut down: %v", err)
		}
	})
	return r
}

// testOptions returns the required options, without a log.
func testOptions(a *attest.Attestor) api.Options {
	return api.Options{
		Attestor: a, DefaultRate: appliance.Rate{PerSecond: 50}, AnonymousRate: appliance.Unlimited,
		LogRate: appliance.Unlimited, ErrorRate: appliance.Unlimited, AttestBodyLimit: 16 << 10,
		RequestTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout:    time.Minute,
		MaxConnections: 1024, MaxConnectionsPerAddress: 1024, AnonymousIdleTimeout: time.Minute,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// newAttestor makes an attestor on a real token and a real store.
func newAttestor(t testing.TB) (*attest.Attestor, journal.LogKey) {
	t.Helper()
	signer, err := hsm.Open(context.Background(), hsm.Options{URI: hsmtest.New(t).URI})
	if err != nil {
		t.Fatal(err)
	}
	log, _, err := journal.NewLogKey("test.example/log")
	if err != nil {
		t.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"),
		bolt.Options{Signer: log.Signer, Verifier: log.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := signer.Close(); err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &attest.Attestor{Keys: store.Keys(), Journal: store.Journal(), Signer: signer, Scheme: scheme,
		Now: time.Now}, log
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) newKey(request appliance.KeyRequest) (token, id string) {
	r.Helper()
	if request.Name == "" {
		request.Name = "test-" + rand.Text() // no two usable keys have one name
	}
	key, token, err := appliance.NewAPIKey(request, r.clock.Now())
	r.must(err)
	r.must(r.attestor.Keys.Create(context.Background(), key))
	return token, key.ID
}

// tellKeys records the creation event of each API key, which newKey omits.
func (r *rig) tellKeys() {
	r.Helper()
	keys, err := r.attestor.Keys.List(context.Background())
	r.must(err)
	for _, key := range keys {
		_, err := r.attestor.Journal.AppendEvent(context.Background(),
			journal.Event{Kind: journal.EventKeyCreated, By: "test", Details: key.Details()})
		r.must(err)
	}
}

// size returns the number of records in the log.
func (r *rig) size() int64 {
	r.Helper()
	signed, err := r.attestor.Journal.Checkpoint(context.Background())
	r.must(err)
	tree, err := journal.OpenCheckpoint(signed, r.log.Verifier)
	r.must(err)
	return tree.N
}

// answer is an HTTP answer with its whole body.
type answer struct {
	status int
	header http.Header
	body   []byte
	last   bool // Connection: close
}

type problem struct {
	Type, Title, Detail, Field, RequestID string
	Status                                int
	Code                                  appliance.Code
}

func (a answer) problem() problem {
	var p problem
	if a.header.Get("Content-Type") == "application/problem+json" {
		_ = json.Unmarshal(a.body, &p)
	}
	return p
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// do sends a request. headers are name, value, name, value …
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.Helper()
	a, err := r.try(http.DefaultClient, method, "http://"+r.address+path, strings.NewReader(body), headers...)
	r.must(err)
	return a
}

func (r *rig) try(c *http.Client, method, url string, body io.Reader, headers ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header[http.CanonicalHeaderKey(headers[i])] = append(req.Header[http.CanonicalHeaderKey(headers[i])],
			headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, read, resp.Close}, err
}

func (r *rig) attest(headers ...string) answer {
	r.Helper()
	return r.do("POST", attestPath, good,
		append([]string{"x-api-key", r.token, "Content-Type", "application/json"}, headers...)...)
}

// dial opens a raw connection.
func (r *rig) dial() *rawConn {
	r.Helper()
	c, err := net.Dial("tcp", r.address)
	r.must(err)
	r.must(c.SetDeadline(time.Now().Add(patience)))
	r.Cleanup(func() { c.Close() })
	return &rawConn{r, c, bufio.NewReader(c)}
}

// rawConn is a connection on which a test writes raw bytes.
type rawConn struct {
	*rig
	net.Conn
	in *bufio.Reader
}

func (w *rawConn) send(s string) {
	w.Helper()
	_, err := w.Write([]byte(s))
	w.must(err)
}

func (w *rawConn) receive() answer {
	w.Helper()
	resp, err := http.ReadResponse(w.in, nil)
	w.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	w.must(err)
	return answer{resp.StatusCode, resp.Header, body, resp.Close}
}

func (w *rawConn) receiveEnd() {
	w.Helper()
	if b, err := w.in.ReadByte(); err != io.EOF {
		w.Errorf("the connection goes on: %q, %v", b, err)
	}
}

// gate is a signer that a test can block, and make fail.
type gate struct {
	attest.Signer
	mu      sync.Mutex
	entered chan struct{} // nil while the gate is open
	release chan struct{}
	fault   func() error
}

func (g *gate) close() (entered <-chan struct{}, release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entered, g.release = make(chan struct{}, 100), make(chan struct{})
	return g.entered, sync.OnceFunc(func() { close(g.release) })
}

func (g *gate) fail(f func() error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = f
}

func (g *gate) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	g.mu.Lock()
	entered, release, fault := g.entered, g.release, g.fault
	g.mu.Unlock()
	if entered != nil {
		entered <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
			return appliance.Signature{},
				appliance.Errorf(appliance.CodeTimeout, "the HSM took too long").Because(ctx.Err())
		}
	}
	if fault != nil {
		if err := fault(); err != nil {
			return appliance.Signature{}, err
		}
	}
	return g.Signer.Sign(ctx, d)
}

func (g *gate) Ready(ctx context.Context) error {
	g.mu.Lock()
	fault := g.fault
	g.mu.Unlock()
	if fault != nil {
		return fault()
	}
	return g.Signer.Ready(ctx)
}

// clock stands still until a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// logs keeps the logged lines.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
