package history_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance/history"
)

// open opens the history in a folder, and closes it at the end of the test. log receives the log.
func open(t *testing.T, dir string) (h *history.History, log *bytes.Buffer) {
	t.Helper()
	log = new(bytes.Buffer)
	h = history.Open(filepath.Join(dir, history.FileName), slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { _ = h.Close() })
	return h, log
}

func TestMinutesAreKeptForADayAndHalfHoursForThirty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h, log := open(t, dir)
		began := time.Now() // midnight
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			h.Run(ctx, func() history.Step {
				return history.Step{Attestations: 2, Requests: 3, P50: .01, P99: .2, Signatures: 2, HSM: .004, Sessions: 1}
			})
			close(ended)
		}()
		time.Sleep(31*24*time.Hour + 10*time.Minute + 10*time.Second)
		stop()
		<-ended
		now := time.Now()
		again, _ := open(t, dir) // a restart
		for _, h := range []*history.History{h, again} {
			for _, c := range []struct {
				ago, length  time.Duration
				steps        int
				attestations int64 // of a whole step
			}{
				{15 * time.Minute, time.Minute, 16, 2},
				{time.Hour, time.Minute, 61, 2},
				{24 * time.Hour, time.Minute, 1440, 2},
				{7 * 24 * time.Hour, 30 * time.Minute, 337, 60},
				{history.Longest, 30 * time.Minute, 1440, 60},
				{10 * history.Longest, 30 * time.Minute, 1440, 60},
			} {
				length, steps := h.Since(now.Add(-c.ago), now)
				if length != c.length || len(steps) != c.steps {
					t.Errorf("%s: %d steps of %s, want %d of %s", c.ago, len(steps), length, c.steps, c.length)
					continue
				}
				if steps[0].Attestations != c.attestations || steps[1].Start-steps[0].Start != int64(length.Seconds()) ||
					steps[len(steps)-1].Start != now.Truncate(length).Unix() {
					t.Errorf("%s: %+v … %+v", c.ago, steps[:2], steps[len(steps)-1])
				}
			}
		}
		if length, steps := again.Since(began, began.Add(time.Hour)); length != time.Minute || len(steps) != 0 {
			t.Errorf("the first hour is still there: %d steps", len(steps))
		}
		if log.Len() > 0 {
			t.Errorf("log: %s", log)
		}
	})
}

func TestAHalfHourSummarisesItsMinutes(t *testing.T) {
	t.Parallel()
	h, _ := open(t, t.TempDir())
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	h.Add(noon.Add(time.Minute), history.Step{Attestations: 1, Requests: 1, P50: .1, P99: .1, Signatures: 1, HSM: .03,
		Sessions: 1, Refusals: 1})
	h.Add(noon.Add(2*time.Minute), history.Step{Attestations: 2, Requests: 3, P50: .3, P99: .9, Signatures: 2, HSM: .06,
		Sessions: 4, Errors: 2, Reads: 5})
	h.Add(noon.Add(3*time.Minute), history.Step{}) // idle: it changes no latency
	h.Add(noon.Add(30*time.Minute+time.Second), history.Step{Attestations: 7})
	_, steps := h.Since(noon.Add(-48*time.Hour), noon.Add(time.Hour))
	want := history.Step{Start: noon.Unix(), Attestations: 3, Refusals: 1, Errors: 2, Reads: 5, Requests: 4,
		P50: .25, P99: .9, Signatures: 3, HSM: .05, Sessions: 4}
	if len(steps) != 2 || !near(steps[0], want) || steps[1].Attestations != 7 {
		t.Errorf("%+v, want %+v", steps, want)
	}
}

// near compares steps, whose means are rounded.
func near(a, b history.Step) bool {
	close := func(x, y float64) bool { return x-y < 1e-9 && y-x < 1e-9 }
	same := close(a.P50, b.P50) && close(a.HSM, b.HSM)
	a.P50, a.HSM = b.P50, b.HSM
	return same && a == b
}

func TestAStepWithoutARunningApplianceIsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for _, minute := range []int{1, 2, 9} {
		h, _ := open(t, dir) // a restart each time
		h.Add(noon.Add(time.Duration(minute)*time.Minute), history.Step{})
	}
	h, _ := open(t, dir)
	_, steps := h.Since(noon, noon.Add(10*time.Minute))
	var minutes []int64
	for _, s := range steps {
		minutes = append(minutes, (s.Start-noon.Unix())/60)
	}
	if len(minutes) != 3 || minutes[0] != 0 || minutes[1] != 1 || minutes[2] != 8 {
		t.Errorf("the minutes %d are there, want 0, 1 and 8", minutes)
	}
}

func TestADamagedHistoryStartsAgainAndSaysSo(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	replaced := func(content string) func(*testing.T, string) {
		return func(t *testing.T, path string) { write(t, path, []byte(content)) }
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, path string)
		log    string
		steps  int // that are left of two
	}{
		"another file": {replaced("something else"), "starts again", 0},
		"empty":        {replaced(""), "starts again", 0},
		"a wrong head": {func(t *testing.T, path string) {
			write(t, path, append([]byte("X"), read(t, path)[1:]...))
		}, "starts again", 0},
		"a torn step": {func(t *testing.T, path string) {
			text := read(t, path)
			first := bytes.IndexFunc(text[32:], func(r rune) bool { return r != 0 }) + 32
			text[first+20] ^= 1
			write(t, path, text)
		}, "damaged steps are left out", 1},
		"a link": {func(t *testing.T, path string) {
			if err := os.Rename(path, path+".other"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path+".other", path); err != nil {
				t.Fatal(err)
			}
		}, "starts again", 0},
		"a folder that stays": {func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(path, "in it"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "ends when attestd stops", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			h, log := open(t, dir)
			h.Add(noon.Add(time.Minute), history.Step{Attestations: 1})
			h.Add(noon.Add(2*time.Minute), history.Step{Attestations: 1})
			if log.Len() > 0 {
				t.Errorf("before: %s", log)
			}
			c.damage(t, filepath.Join(dir, history.FileName))
			h, log = open(t, dir)
			if _, steps := h.Since(noon, noon.Add(time.Hour)); len(steps) != c.steps {
				t.Errorf("%d steps are left, want %d", len(steps), c.steps)
			}
			if !strings.Contains(log.String(), c.log) {
				t.Errorf("log: %s, want %q", log, c.log)
			}
			h.Add(noon.Add(9*time.Minute), history.Step{Attestations: 9})
			if _, steps := h.Since(noon.Add(8*time.Minute), noon.Add(time.Hour)); len(steps) != 1 {
				t.Errorf("afterwards nothing is kept: %v", steps)
			}
		})
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
