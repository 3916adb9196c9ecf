package daemon

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// A part that hangs in the path of an attestation must not count as progress. A part that only fails must.
func TestTheWatchdogIsFedByProgressOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stuck := make(chan struct{})
		reports := make(chan error)
		asked := 0
		go watch(ctx, 50*time.Millisecond, func(ctx context.Context) error {
			asked++
			second := asked == 2
			return answers(ctx, func() {
				if second {
					<-stuck
				}
			})
		}, func(err error) { reports <- err })
		if err := <-reports; err != nil {
			t.Errorf("progress: %v", err)
		}
		if err := <-reports; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no progress: %v", err)
		}
		close(stuck)
		if err := <-reports; err != nil {
			t.Errorf("progress again: %v", err)
		}
	})
}

// held is a listener whose one connection blocks in Accept.
type held struct {
	net.Listener
	enter            func()
	entered, release chan struct{}
}

func (h held) Accept() (net.Conn, error) {
	c, err := h.Listener.Accept()
	return heldConn{c, h}, err
}

type heldConn struct {
	net.Conn
	by held
}

func (c heldConn) RemoteAddr() net.Addr {
	c.by.enter()
	<-c.by.release
	return nil
}

func TestTheWatchdogAsksTheListener(t *testing.T) {
	t.Parallel()
	second := appliance.Rate{PerSecond: 1}
	public, err := api.New(api.Options{
		Attestor: &attest.Attestor{}, DefaultRate: second, AnonymousRate: second, LogRate: second, ErrorRate: second,
		AttestBodyLimit: 1,
		RequestTimeout:  time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, IdleTimeout: time.Second,
		MaxConnections: 1, MaxConnectionsPerAddress: 1, AnonymousIdleTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stands := held{Listener: ln, entered: make(chan struct{}), release: make(chan struct{})}
	stands.enter = sync.OnceFunc(func() { close(stands.entered) })
	served := make(chan error, 1)
	go func() { served <- public.Serve(stands) }()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-stands.entered
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&running{servers: servers{public: public}}).progress(ctx); err == nil ||
		!strings.Contains(err.Error(), "does not accept connections") {
		t.Errorf("progress of a daemon that does not accept: %v", err)
	}
	c.Close()
	close(stands.release)
	if err := errors.Join(public.Shutdown(t.Context()), <-served); err != nil {
		t.Error(err)
	}
}

// part answers at once or, if it hangs, after the end of ctx.
type part struct{ hangs bool }

func (p part) answer(ctx context.Context) error {
	if p.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (p part) Ready(ctx context.Context) error    { return p.answer(ctx) }
func (p part) Responds(ctx context.Context) error { return p.answer(ctx) }

// A hanging HSM must not cause a restart: its library has a separate process, and reads and the journal work.
func TestAHangingHSMDoesNotTakeTheJournalsTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hsm, journal part
		want         error
	}{
		"all is well":       {part{}, part{}, nil},
		"the HSM hangs":     {part{hangs: true}, part{}, nil},
		"the journal hangs": {part{}, part{hangs: true}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if err := progressOf(ctx, test.hsm, test.journal); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			})
		})
	}
}
