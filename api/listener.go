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

// listener accepts connections for fasthttp, up to the limits of its set. It never waits for a client: the goroutine
// that serves a connection does the TLS handshake and reads the first byte.
type listener struct {
	net.Listener
	set   *connections
	tls   *tls.Config // nil means plain HTTP
	close func() error
	done  chan struct{} // closed by Close

	waiting atomic.Bool   // Accept is waiting for a client, or for a shortage to pass
	accepts atomic.Uint64 // number of calls of accept
}

func newListener(ln net.Listener, set *connections, config *tls.Config) *listener {
	l := &listener{Listener: ln, set: set, tls: config, done: make(chan struct{})}
	// OnceValue is needed because fasthttp aborts a shutdown if closing its listener returns an error.
	l.close = sync.OnceValue(func() error { close(l.done); return ln.Close() })
	return l
}

// Accept implements net.Listener. It retries after temporary errors, such as too many open files, and returns only
// permanent ones.
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
		case isTemporary(err):
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
	l.accepts.Add(1)
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	return l.Listener.Accept()
}

// sleep pauses before a retry. The listener counts as responding during the pause.
func (l *listener) sleep(d time.Duration) {
	l.waiting.Store(true)
	defer l.waiting.Store(false)
	select {
	case <-time.After(d):
	case <-l.done:
	}
}

func (l *listener) Close() error { return l.close() }

// responds returns nil once Accept is waiting for a client or has started again. It returns an error if ctx ends first.
func (l *listener) responds(ctx context.Context) error {
	before := l.accepts.Load()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if l.waiting.Load() || l.accepts.Load() != before {
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

// isTemporary reports whether an error of accept concerns only one connection or a shortage, so that a retry may
// succeed (accept(2), "Error handling").
func isTemporary(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
		syscall.EINTR, syscall.EPERM,
		syscall.EPROTO, syscall.ENOPROTOOPT, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		syscall.EHOSTUNREACH, syscall.ENONET,
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
	text := "connections cannot be accepted; retrying"
	if isAny(err, syscall.EMFILE, syscall.ENFILE) {
		text += ": raise the limit of open files (LimitNOFILE= of the unit, fs.file-max of the system), or lower server.max_connections"
	}
	s.notice(slog.LevelError, "accept", text, slog.String("error", err.Error()), slog.Int("connections", len(s.open)))
}
