package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// madePart is a file of some of a world's rows, or the error that kept it from being made.
type madePart struct {
	path      string
	transfers int
	err       error
}

// makeRows writes files of so many transfers each into a folder, as `attestd replica generate` does. It makes at most
// one file ahead. All files are parts of one world. It ends with the world, an error, or ctx.
func makeRows(ctx context.Context, folder string, o dataset.GenerateOptions, each int) <-chan madePart {
	parts := make(chan madePart)
	m := &partMaker{folder: folder, each: each, parts: parts}
	o.BatchRows = min(10_000, each)
	go func() {
		defer close(parts)
		err := dataset.Generate(ctx, o, func(rows []index.Row) error { return m.take(ctx, rows) })
		if err = errors.Join(err, m.hand(ctx)); err == nil {
			return
		}
		select {
		case parts <- madePart{err: err}:
		case <-ctx.Done():
		}
	}()
	return parts
}

// partMaker writes rows into files. The generating goroutine owns it.
type partMaker struct {
	folder string
	each   int
	parts  chan<- madePart

	made int
	now  madePart
	rows chan []byte // lines for the open file; nil if none is open
	done chan error
}

func (m *partMaker) take(ctx context.Context, rows []index.Row) error {
	lines := make([]byte, 0, 1<<20)
	for _, row := range rows {
		lines = append(row.AppendLine(lines), '\n')
		if row.Type() != index.TransferType {
			continue
		}
		if m.now.transfers++; m.now.transfers == m.each {
			if err := m.write(lines); err != nil {
				return err
			}
			if err := m.hand(ctx); err != nil {
				return err
			}
			lines = nil
		}
	}
	return m.write(lines)
}

func (m *partMaker) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if m.rows == nil {
		m.open()
	}
	select {
	case m.rows <- lines:
		return nil
	case err := <-m.done:
		m.rows = nil
		return err
	}
}

// open begins a file. A goroutine writes it until rows is closed.
func (m *partMaker) open() {
	m.made++
	m.now.path = filepath.Join(m.folder, fmt.Sprintf("%d.ndjson.zst", m.made))
	m.rows, m.done = make(chan []byte), make(chan error, 1)
	go func(path string, rows <-chan []byte, done chan<- error) {
		done <- dataset.WriteFile(path, io.Discard, func(w io.Writer) error {
			buffered := bufio.NewWriterSize(w, 1<<20)
			for lines := range rows {
				if _, err := buffered.Write(lines); err != nil {
					return err
				}
			}
			return buffered.Flush()
		})
	}(m.now.path, m.rows, m.done)
}

// hand ends the open file, if any, and sends it.
func (m *partMaker) hand(ctx context.Context) error {
	if m.rows == nil {
		return nil
	}
	close(m.rows)
	m.rows = nil
	if err := <-m.done; err != nil {
		return err
	}
	select {
	case m.parts <- m.now:
		m.now = madePart{}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runWatched runs a command to its end, and returns its peak memory and its output. ctx ends the command.
func runWatched(ctx context.Context, tb testing.TB, cmd *exec.Cmd) (peak daemontest.Memory, out []byte, err error) {
	tb.Helper()
	var written bytes.Buffer
	cmd.Stdout, cmd.Stderr = &written, &written
	if err := cmd.Start(); err != nil {
		return peak, nil, err
	}
	peak = daemontest.MemoryOf(cmd.Process.Pid) // the first tick may come late
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(time.Second / 20)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				err = errors.New("interrupted")
			}
			return peak, written.Bytes(), err
		case <-tick.C:
			peak = peak.Most(daemontest.MemoryOf(cmd.Process.Pid))
		}
	}
}
