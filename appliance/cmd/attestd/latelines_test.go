package main

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// writes remembers each write.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, string(p))
	return len(p), nil
}

func (w *writes) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%q", w.all)
}

func TestLinesOfTheAccessLogShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got writes
		log := &lateLines{to: &got}
		want := func(when string, lines ...string) {
			t.Helper()
			synctest.Wait()
			if got.String() != fmt.Sprintf("%q", lines) {
				t.Fatalf("%s: written %s, want %q", when, &got, lines)
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
		want("with a line that may not be late", "1\n2\n", "3\n", "warning\n")
		fmt.Fprintln(access, "4")
		log.Flush()
		want("at the end", "1\n2\n", "3\n", "warning\n", "4\n")
		time.Sleep(latest)
		want("after the end", "1\n2\n", "3\n", "warning\n", "4\n")
		many := strings.Repeat("x", mostWaiting)
		fmt.Fprint(access, many)
		want("when many wait", "1\n2\n", "3\n", "warning\n", "4\n", many)
	})
}
