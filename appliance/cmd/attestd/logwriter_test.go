package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// writes remembers each write.
type writes struct {
	mu  sync.Mutex
	all []string
	err error // if not nil, each write fails with it
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.all = append(w.all, string(p))
	return len(p), nil
}

func (w *writes) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%q", w.all)
}

func (w *writes) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func reportDropped(w io.Writer, n uint64) { fmt.Fprintf(w, "%d dropped\n", n) }

// inBubble runs a test in a synctest bubble. It ends the log's goroutine.
func inBubble(t *testing.T, test func(t *testing.T, log *logWriter, got *writes)) {
	synctest.Test(t, func(t *testing.T) {
		var got writes
		log := newLogWriter(&got, reportDropped)
		test(t, log, &got)
		synctest.Wait()
		close(log.wake)
	})
}

func TestLinesOfTheAccessLogShareAWrite(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, log *logWriter, got *writes) {
		want := func(when string, lines ...string) {
			t.Helper()
			synctest.Wait()
			if got.String() != fmt.Sprintf("%q", lines) {
				t.Fatalf("%s: written %s, want %q", when, got, lines)
			}
		}
		access := log.later()
		fmt.Fprintln(access, "1")
		fmt.Fprintln(access, "2")
		want("at once")
		time.Sleep(latest)
		want("in time", "1\n2\n")
		fmt.Fprintln(access, "3")
		fmt.Fprintln(log, "warning")
		want("with a line that may not be late", "1\n2\n", "3\nwarning\n")
		fmt.Fprintln(access, "4")
		log.flush(time.Minute)
		want("at the end", "1\n2\n", "3\nwarning\n", "4\n")
		log.flush(time.Minute)
		time.Sleep(latest)
		want("after the end", "1\n2\n", "3\nwarning\n", "4\n")
		many := strings.Repeat("x", mostWaiting)
		fmt.Fprint(access, many)
		want("when many wait", "1\n2\n", "3\nwarning\n", "4\n", many)
	})
}

func TestLinesThatCannotBeWrittenAreCountedAndReported(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, log *logWriter, got *writes) {
		got.fail(errors.New("no reader"))
		for range 3 {
			fmt.Fprintln(log, "lost")
			synctest.Wait()
		}
		if n := log.linesDropped(); n != 3 {
			t.Errorf("%d dropped, not 3", n)
		}
		got.fail(nil)
		fmt.Fprintln(log, "read")
		synctest.Wait()
		if want := fmt.Sprintf("%q", []string{"read\n", "3 dropped\n"}); got.String() != want {
			t.Errorf("written %s, want %s", got, want)
		}
	})
}

// A full pipe delays neither the callers of Write nor the end of the process. Once the pipe is read, the kept lines
// arrive in order, followed by the number of dropped lines.
func TestAFullPipeHoldsUpNothing(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	log := newLogWriter(w, reportDropped)
	const lines = 4000
	text := strings.Repeat("x", 1000)
	for i := range lines {
		fmt.Fprintf(log, "%d %s\n", i, text)
	}
	log.flush(time.Millisecond) // returns although the pipe is not read
	dropped := log.linesDropped()
	if dropped == 0 || dropped >= lines {
		t.Errorf("%d of %d lines dropped", dropped, lines)
	}
	var read bytes.Buffer
	in := bufio.NewScanner(r)
	for kept := 0; in.Scan(); kept++ {
		if in.Text() == fmt.Sprintf("%d dropped", dropped) {
			if kept != lines-int(dropped) {
				t.Errorf("%d lines came, and %d were dropped of %d", kept, dropped, lines)
			}
			return
		}
		if !strings.HasPrefix(in.Text(), fmt.Sprintf("%d x", kept)) {
			t.Fatalf("line %d is %q", kept, in.Text())
		}
		read.Write(in.Bytes())
	}
	t.Error("the count of dropped lines did not come: ", in.Err())
}

// stderrOf starts the daemon with that standard error, and kills it when the test ends.
func stderrOf(t *testing.T, d *daemontest.Daemon, stderr *os.File) {
	t.Helper()
	d.Cmd = d.Command("serve")
	d.Cmd.Stderr = stderr
	if err := d.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.End)
}

// If the reader of the daemon's standard error stalls or ends, the daemon still attests, and SIGTERM ends it with
// status 0.
func TestAttestingNeedsNoReaderOfTheLog(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]struct {
		before func(t *testing.T, r, w *os.File)
		after  func(r *os.File) error
	}{
		"the pipe is full": {before: fillPipe, after: func(*os.File) error { return nil }},
		"the reader ends":  {before: func(*testing.T, *os.File, *os.File) {}, after: (*os.File).Close},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.New(t)
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			d.Configure("ATTESTD_LOG_LEVEL=debug") // each request is a line
			read.before(t, r, w)
			stderrOf(t, d, w)
			w.Close()
			daemontest.Await(t, "it attests", func() (bool, string) {
				if err := daemontest.WaitReady(d.Dir + "/admin.sock"); err != nil {
					return false, err.Error()
				}
				_, status, code := attestation(t, d)
				return status == 200, code
			})
			if err := read.after(r); err != nil {
				t.Fatal(err)
			}
			for range 50 {
				if _, status, code := attestation(t, d); status != 200 {
					t.Fatalf("status %d, %s", status, code)
				}
			}
			d.Signal(t, syscall.SIGHUP) // the reload's result is a line that may not be late
			d.Signal(t, syscall.SIGTERM)
			if err := d.Cmd.Wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// fillPipe writes to a pipe until it is full.
func fillPipe(t *testing.T, _, w *os.File) {
	t.Helper()
	fd := int(w.Fd()) // Fd sets blocking mode
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{4096, 1} {
		for err := error(nil); err == nil; {
			_, err = syscall.Write(fd, make([]byte, size))
		}
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
}
