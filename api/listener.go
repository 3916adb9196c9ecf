package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// listener accepts connections for fasthttp, as many as connections lets it. It never waits for a client: hands are shaken, and
// the first byte is read, by the goroutine that serves the connection.
type listener struct {
	net.Listener
	set   *connections
	tls   *tls.Config // nil means plain HTTP
	close func() error
	done  chan struct{} // closed by Close

	waiting atomic.Bool   // in Accept, for a client or for what passes
	turns   atomic.Uint64 // how often it began to
}

func newListener(ln net.Listener, set *connections, config *tls.Config) *listener {
	l := &listener{Listener: ln, set: set, tls: config, done: make(chan struct{})}
	// Once: fasthttp stops a shutdown if its listener is already closed.
	l.close = sync.OnceValue(func() error { close(l.done); return ln.Close() })
	return l
}

// Accept returns an error only where another try has no use.
func (l *listener) Accept() (net.Conn, error) {
	pause := time.Duration(0)
	for {
		c, err := l.accept()
		switch {
		case err == nil:
			pause = 0
			if raw := l.set.add(c); raw != nil {
				return newHTTPConn(raw, l.tls), nil
			}
		case passes(err):
			l.set.acceptFailed(err)
			if isAny(err, syscall.EMFILE, syscall.ENFILE) && l.set.displaceOne() {
				continue
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			l.sleep(pause)
		default:
			return nil, err
		}
	}
}

func (l *listener) accept() (net.Conn, error) {
	l.turns.Add(1)
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	return l.Listener.Accept()
}

// sleep waits for what keeps connections from being accepted, and is no standstill.
func (l *listener) sleep(d time.Duration) {
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	select {
	case <-time.After(d):
	case <-l.done:
	}
}

func (l *listener) Close() error { return l.close() }

// responds returns an error if ctx ends before the listener waits for a client.
func (l *listener) responds(ctx context.Context) error {
	before := l.turns.Load()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if l.waiting.Load() || l.turns.Load() != before {
			return nil
		}
		select {
		case <-l.done:
			return nil
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the listener at %s does not accept connections: %w", l.Addr(), ctx.Err())
		}
	}
}

// passes says whether an error of accept is of one connection or of a shortage, after which the next try may succeed
// (accept(2), "Error handling").
func passes(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR, syscall.EPERM,
		syscall.EPROTO, syscall.ENOPROTOOPT, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENONET,
		syscall.EOPNOTSUPP)
}

func isAny(err error, errnos ...syscall.Errno) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains(errnos, errno)
}

// acceptFailed counts an error of accept, and logs it.
func (s *connections) acceptFailed(err error) {
	s.metrics.acceptFailed()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := "connections cannot be accepted; trying again"
	if isAny(err, syscall.EMFILE, syscall.ENFILE) {
		text += ": raise the limit of open files (LimitNOFILE= of the unit, fs.file-max of the system), or lower server.max_connections"
	}
	s.notice(slog.LevelError, "accept", text, slog.String("error", err.Error()), slog.Int("connections", len(s.open)))
}
