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

// journaldSocket takes the streams of services' standard error.
const journaldSocket = "/run/systemd/journal/stdout"

// journaldStream is a standard error that journald reads. If journald is stopped, the connection ends for good, also
// for the journald that is started after it. Write connects again then.
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

// reconnect puts a new connection in the place of the file, so that all of the process writes to it.
func (s journaldStream) reconnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", s.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	// The identifier; no unit, which journald finds by itself; the priority of lines without one; whether lines begin
	// with theirs; and whether they are forwarded to syslog, the kernel's log and the console, as far as journald.conf
	// says.
	if _, err := fmt.Fprintf(c, "attestd\n\n%d\n1\n0\n0\n0\n", journal.PriInfo); err != nil {
		return err
	}
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup3(int(f.Fd()), int(s.file.Fd()), 0) // Fd makes both wait, as a standard error does
}

// byPriority has each line begin with its priority (sd-daemon(3)). journald stores the priority, for journalctl -p, and
// limits the rate of each priority by itself: a flood of requests does not suppress errors.
type byPriority map[journal.Priority]slog.Handler

// newByPriority returns the handler whose lines open formats. open is called once for each priority.
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

// prefixed writes each line behind a prefix. slog's handlers write one line at a time, and share the lock for that with
// their copies.
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
