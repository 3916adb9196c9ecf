package main

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// logWriter is the daemon's buffered log. Its reader, such as journald, may stall or end, and Write never waits for it.
// One goroutine writes the buffer. If the buffer is full or a write fails, lines are dropped and counted. After the
// next successful write, one line reports the count.
type logWriter struct {
	to     io.Writer
	report func(w io.Writer, dropped uint64) // writes the line that reports dropped lines
	wake   chan struct{}                     // holds one element if the goroutine must write at once

	mu      sync.Mutex
	waiting []byte
	timer   *time.Timer   // nil unless only lines wait that may be late
	dropped uint64        // not reported yet
	lost    uint64        // dropped since the start
	busy    bool          // the goroutine has lines that are not written yet
	idle    chan struct{} // closed when the buffer is empty and written; nil unless flush waits
}

const (
	latest      = 50 * time.Millisecond // delay of a line of the access log
	mostWaiting = 32 << 10              // bytes that wait before later lines are written at once
	mostLines   = 1 << 20               // bytes of the buffer
	flushLimit  = 2 * time.Second       // how long the process waits for the reader when it ends
)

func newLogWriter(to io.Writer, report func(w io.Writer, dropped uint64)) *logWriter {
	l := &logWriter{to: to, report: report, wake: make(chan struct{}, 1)}
	go l.run()
	return l
}

// surviveClosedLog makes writes to a closed standard error fail. By default, SIGPIPE would end the process.
func surviveClosedLog() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// Write queues a line, and wakes the goroutine to write the buffer.
func (l *logWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(line)
	l.signal()
	return len(line), nil
}

// later returns a writer for lines that may be late. Under load, a system call for each line of the access log takes as
// long as formatting it.
func (l *logWriter) later() io.Writer { return laterLines{l} }

type laterLines struct{ *logWriter }

func (l laterLines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(line)
	switch {
	case len(l.waiting) >= mostWaiting:
		l.signal()
	case l.timer == nil:
		l.timer = time.AfterFunc(latest, l.signal)
	}
	return len(line), nil
}

// add appends a line to the buffer, or drops it. The caller holds l.mu.
func (l *logWriter) add(line []byte) {
	if len(l.waiting)+len(line) > mostLines {
		l.drop(1)
		return
	}
	l.waiting = append(l.waiting, line...)
}

func (l *logWriter) drop(lines uint64) {
	l.dropped += lines
	l.lost += lines
}

func (l *logWriter) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // the goroutine is woken already
	}
}

func (l *logWriter) run() {
	var lines []byte
	for range l.wake {
		for {
			var dropped uint64
			if lines, dropped = l.take(lines); len(lines) == 0 && dropped == 0 {
				break
			}
			l.write(lines, dropped)
		}
	}
}

// take returns the buffered lines, and how many lines were dropped after them. It reuses the buffer written.
func (l *logWriter) take(written []byte) (lines []byte, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	lines, l.waiting = l.waiting, written[:0]
	if len(lines) > 0 { // without new lines, the reader may still be away: the count waits for the next line
		dropped, l.dropped = l.dropped, 0
	}
	l.busy = len(lines) > 0
	if !l.busy && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
	return lines, dropped
}

func (l *logWriter) write(lines []byte, dropped uint64) {
	if _, err := l.to.Write(lines); err != nil {
		l.mu.Lock()
		l.drop(uint64(bytes.Count(lines, []byte("\n"))))
		l.dropped += dropped
		l.mu.Unlock()
		return
	}
	if dropped == 0 {
		return
	}
	var line bytes.Buffer
	l.report(&line, dropped)
	if _, err := l.to.Write(line.Bytes()); err != nil {
		l.mu.Lock()
		l.dropped += dropped
		l.mu.Unlock()
	}
}

// linesDropped returns how many lines were dropped since the start.
func (l *logWriter) linesDropped() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// flush returns when all lines are written, or when the limit has passed.
func (l *logWriter) flush(limit time.Duration) {
	l.mu.Lock()
	if len(l.waiting) == 0 && !l.busy {
		l.mu.Unlock()
		return
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.signal()
	l.mu.Unlock()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
}
