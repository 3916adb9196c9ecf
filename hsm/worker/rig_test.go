package worker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/sandbox"
	"github.com/attestd/attestd/hsm/worker"
)

// TestMain also runs the worker: the tests start their own program again.
func TestMain(m *testing.M) {
	worker.Main()
	os.Exit(m.Run())
}

// logged is a log that the test can read during writes.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

const (
	// patience bounds every wait of a test. No wait should come near it.
	patience = time.Minute
	// callTimeout is more than SoftHSM takes on a machine that stalls for seconds, for tests in which no call may count
	// as hung.
	callTimeout = 30 * time.Second
	// hangTimeout is for tests of calls that hang, which wait for it.
	hangTimeout = 3 * time.Second
)

// open returns a signer that is closed when the test ends, and its log.
func open(t testing.TB, options worker.Options) (*worker.Signer, *logged) {
	t.Helper()
	var log logged
	options.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if options.Sandbox.Paths == nil {
		options.Sandbox = testFiles()
	}
	if options.CallTimeout == 0 {
		options.CallTimeout = callTimeout
	}
	s, err := worker.Open(t.Context(), options)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !t.Failed() {
			t.Errorf("Close: %v", err)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", log.String())
		}
	})
	return s, &log
}

func randomDigest() (d appliance.Digest) {
	rand.Read(d[:])
	return d
}

func mustSign(t testing.TB, s *worker.Signer) {
	t.Helper()
	d := randomDigest()
	signature, err := s.Sign(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	checkSignature(t, s, d, signature)
}

// checkSignature checks with go-ethereum as a contract would: ecrecover of the digest returns the address.
func checkSignature(t testing.TB, s interface{ Address() appliance.Address }, d appliance.Digest,
	signature appliance.Signature) {
	t.Helper()
	rsv := append(append(append([]byte(nil), signature.R[:]...), signature.S[:]...), signature.V-27)
	key, err := crypto.SigToPub(d[:], rsv)
	if err != nil || appliance.Address(crypto.PubkeyToAddress(*key)) != s.Address() {
		t.Errorf("the signature is not by %s: %v", s.Address(), err)
	}
}

// workerOf returns the process id of the worker.
func workerOf(t testing.TB, s *worker.Signer) int {
	t.Helper()
	status, err := s.Status(t.Context())
	if err != nil || status.Worker == 0 {
		t.Fatalf("%+v, %v", status, err)
	}
	return status.Worker
}

// load signs on several goroutines, each signature with a deadline, until it is stopped.
type load struct {
	t       *testing.T
	cancel  context.CancelFunc
	all     sync.WaitGroup
	signed  atomic.Int64
	failed  atomic.Int64
	last    atomic.Int64  // Unix nanoseconds of the last signature
	longest atomic.Int64  // longest time without a signature, in nanoseconds
	some    chan struct{} // receives one value for each signature while a test waits
}

func underLoad(t *testing.T, s *worker.Signer, clients int) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, cancel: cancel, some: make(chan struct{})}
	l.last.Store(time.Now().UnixNano())
	for range clients {
		l.all.Go(func() {
			for ctx.Err() == nil {
				l.sign(ctx, s)
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	l.await(20)
	l.longest.Store(0)
	return l
}

func (l *load) sign(ctx context.Context, s *worker.Signer) {
	limit, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	d := randomDigest()
	signature, err := s.Sign(limit, d)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		l.failed.Add(1)
		l.t.Errorf("a signature failed: %v", err)
		return
	}
	checkSignature(l.t, s, d, signature)
	l.signed.Add(1)
	now := time.Now().UnixNano()
	for gap := now - l.last.Swap(now); ; {
		was := l.longest.Load()
		if gap <= was || l.longest.CompareAndSwap(was, gap) {
			break
		}
	}
	select {
	case l.some <- struct{}{}:
	default:
	}
}

// await returns after n more signatures.
func (l *load) await(n int) {
	l.t.Helper()
	for range n {
		select {
		case <-l.some:
		case <-time.After(patience):
			l.t.Fatal("nothing is signed any more")
		}
	}
}

func (l *load) stop() {
	l.cancel()
	l.all.Wait()
}

// outage returns the longest time without a signature since the last call.
func (l *load) outage() time.Duration { return time.Duration(l.longest.Swap(0)) }

func wantLog(t *testing.T, log *logged, wants ...string) {
	t.Helper()
	for _, want := range wants {
		eventually(t, "logged: "+want, func() bool { return strings.Contains(log.String(), want) })
	}
}

func sessions(n int, uri hsm.URI) worker.Options {
	return worker.Options{HSM: hsm.Options{URI: uri, Sessions: n}, CallTimeout: callTimeout, Sandbox: testFiles()}
}

// testFiles lets the modules of hsmtest use their files.
func testFiles() sandbox.Rules { return sandbox.Rules{Paths: []string{os.TempDir()}} }

// eventually polls for a state that has no notification.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not become %s", what)
		}
	}
}
