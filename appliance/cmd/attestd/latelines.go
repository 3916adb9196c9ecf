package main

import (
	"io"
	"sync"
	"time"
)

// lateLines is a log that writes many lines at once where they may come late: under load, a system call for each line of the access
// log takes as long as making the line. Any other line takes those that wait along, so that all stay in their order.
type lateLines struct {
	to io.Writer

	mu      sync.Mutex
	waiting []byte
	timer   *time.Timer // nil while nothing waits
}

const (
	latest      = 50 * time.Millisecond // how late a line may be
	mostWaiting = 32 << 10              // bytes
)

// Write writes a line at once.
func (l *lateLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	return l.to.Write(line)
}

// later returns what writes lines that may be late.
func (l *lateLines) later() io.Writer { return laterLines{l} }

type laterLines struct{ *lateLines }

func (l laterLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, line...)
	switch {
	case len(l.waiting) >= mostWaiting:
		l.flush()
	case l.timer == nil:
		l.timer = time.AfterFunc(latest, l.Flush)
	}
	return len(line), nil
}

// Flush writes what waits.
func (l *lateLines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

func (l *lateLines) flush() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.waiting) > 0 {
		_, _ = l.to.Write(l.waiting) // as slog, which tells nobody either
		l.waiting = l.waiting[:0]
	}
}
