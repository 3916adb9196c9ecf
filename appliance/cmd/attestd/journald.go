package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"
)

// journaldSocket accepts the standard error streams of services.
const journaldSocket = "/run/systemd/journal/stdout"

// journaldStream is a standard error that journald reads. When journald stops, the connection breaks, and the next
// journald does not take it over. Write then reconnects.
type journaldStream struct {
	file   *os.File
	socket string
}

func (s journaldStream) Write(p []byte) (int, error) {
	n, err := s.file.Write(p)
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return n, err
	}
	if err := s.reconnect(); err != nil {
		return n, err
	}
	more, err := s.file.Write(p[n:])
	return n + more, err
}

// reconnect replaces the file's descriptor by a new connection, so that the whole process writes to it.
func (s journaldStream) reconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// The header lines are: the identifier; no unit, since journald finds it; the default priority; whether lines begin
	// with their priority; and whether to forward them to syslog, the kernel log and the console. Zeros leave
	// forwarding to journald.conf.
	if _, err := fmt.Fprintf(c, "attestd\n\n%d\n1\n0\n0\n0\n", journal.PriInfo); err != nil {
		return err
	}
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), int(s.file.Fd()), 0) // Fd sets both to blocking mode, as standard error is
}

// byPriority prefixes each line with its priority (sd-daemon(3)). journald stores the priority, for journalctl -p. It
// limits the rate of each priority separately, so that a flood of requests does not suppress errors.
type byPriority map[journal.Priority]slog.Handler

// newByPriority calls open once for each priority, to make the handler that formats its lines.
func newByPriority(to io.Writer, open func(io.Writer) slog.Handler) byPriority {
	h := make(byPriority)
	for _, p := range []journal.Priority{journal.PriErr, journal.PriWarning, journal.PriInfo, journal.PriDebug} {
		h[p] = open(&prefixed{to: to, prefix: fmt.Sprintf("<%d>", p)})
	}
	return h
}

func priorityOf(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

func (h byPriority) Enabled(ctx context.Context, level slog.Level) bool {
	return h[priorityOf(level)].Enabled(ctx, level)
}

func (h byPriority) Handle(ctx context.Context, r slog.Record) error {
	return h[priorityOf(r.Level)].Handle(ctx, r)
}

func (h byPriority) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithAttrs(attrs) })
}

func (h byPriority) WithGroup(name string) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithGroup(name) })
}

func (h byPriority) each(change func(slog.Handler) slog.Handler) byPriority {
	changed := make(byPriority, len(h))
	for p, one := range h {
		changed[p] = change(one)
	}
	return changed
}

// prefixed writes a prefix before each line. It needs no lock: slog's handlers write one line at a time, under a lock
// that they share with their copies.
type prefixed struct {
	to     io.Writer
	prefix string
	buffer []byte
}

func (p *prefixed) Write(line []byte) (int, error) {
	p.buffer = append(append(p.buffer[:0], p.prefix...), line...)
	if _, err := p.to.Write(p.buffer); err != nil {
		return 0, err
	}
	return len(line), nil
}
