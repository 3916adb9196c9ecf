package sinks_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/appliance/sinks"
)

// linesOf returns the lines of several files.
func linesOf(t testing.TB, paths ...string) (lines []string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(t, err)
		if n := len(text); n > 0 && text[n-1] != '\n' {
			t.Fatalf("%s ends within a line", path)
		}
		lines = append(lines, slices.Collect(strings.Lines(string(text)))...)
	}
	return lines
}

func messages(first, n int) (batch []sinks.Message) {
	for i := range n {
		batch = append(batch,
			sinks.Message{Index: int64(first + i), Text: fmt.Appendf(nil, `{"index":%d,"id":"x"}`, first+i)})
	}
	return batch
}

func TestAFileHasALineForEachEntry(t *testing.T) {
	t.Parallel()
	j, path := newJournal(t), filepath.Join(t.TempDir(), "audit.jsonl")
	j.attest(t, 25)
	s := j.ship(t, t.TempDir(), sink("file", &sinks.File{Path: path}))
	until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 25 })
	if got := indexesOf(t, linesOf(t, path)); !slices.Equal(got, from(0, 25)) {
		t.Errorf("%v", got)
	}
	stat, err := os.Stat(path)
	check(t, err)
	if stat.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o", stat.Mode().Perm())
	}
}

// While logrotate(8) rotates the file, no entry is lost, and the sink stops writing to the old file.
func TestAFileIsRotated(t *testing.T) {
	t.Parallel()
	logrotate, err := exec.LookPath("logrotate")
	if err != nil {
		if logrotate, err = exec.LookPath("/usr/sbin/logrotate"); err != nil {
			t.Fatal("logrotate is not here: make deps installs it")
		}
	}
	dir := t.TempDir()
	path, state, conf := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "state"), filepath.Join(dir, "conf")
	check(t, os.WriteFile(conf, []byte(documented(t, "logrotate", "/var/log/attestd/audit.jsonl", path,
		"create 0600 attestd attestd", "create 0600", "    compress\n", "")), 0o600))
	j := newJournal(t)
	s := j.ship(t, t.TempDir(), sink("file", &sinks.File{Path: path}))
	for round := range int64(3) {
		j.attest(t, 10)
		until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 10*(round+1) })
		if out, err := exec.CommandContext(t.Context(), logrotate, "--force", "--state", state,
			conf).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for round := range int64(3) {
		if got := indexesOf(t, linesOf(t, fmt.Sprintf("%s.%d", path, 3-round))); !slices.Equal(got,
			from(10*round, 10*round+10)) {
			t.Errorf("round %d has %v", round, got)
		}
	}
}

// A line that a crash cut off is removed and written again.
func TestAFileBeginsAfterItsLastWholeLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after string }{
		"whole lines":    {"a\nb\n", "a\nb\n"},
		"a torn line":    {"a\nb\n{\"ind", "a\nb\n"},
		"only a torn":    {"{\"ind", ""},
		"nothing":        {"", ""},
		"a long torn":    {"a\n" + strings.Repeat("x", 200_000), "a\n"},
		"no file at all": {"-", ""},
	} {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		if test.before != "-" {
			check(t, os.WriteFile(path, []byte(test.before), 0o600))
		}
		f := &sinks.File{Path: path}
		check(t, f.Send(t.Context(), messages(7, 1)))
		check(t, f.Close())
		text, err := os.ReadFile(path)
		check(t, err)
		if want := test.after + "{\"index\":7,\"id\":\"x\"}\n"; string(text) != want {
			t.Errorf("%s: %.100q, want %.100q", name, text, want)
		}
	}
}

// On a full disk the file contains whole lines only, and the sink continues once there is space.
func TestAFileOnAFullDiskHasWholeLinesOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("no small file system can be mounted here (needs root): %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	path, ballast := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "ballast")
	check(t, os.WriteFile(ballast, make([]byte, 48<<10), 0o600))
	j := newJournal(t)
	j.attest(t, 60) // about 30 KiB
	s := j.ship(t, t.TempDir(), sink("file", &sinks.File{Path: path}))
	until(t, s, "full", func(s sinks.Status) bool {
		return strings.Contains(s.Failing, "no space left") && s.Failures > 3
	})
	linesOf(t, path)
	check(t, os.Remove(ballast))
	until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 60 && s.Failing == "" })
	if got := indexesOf(t, linesOf(t, path)); !slices.Equal(got, from(0, 60)) {
		t.Errorf("%v", got)
	}
}

func TestAFileThatIsNotOursIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, open := filepath.Join(dir, "pipe"), filepath.Join(dir, "open")
	check(t, syscall.Mkfifo(pipe, 0o600))
	check(t, os.WriteFile(open, nil, 0o600))
	check(t, os.Chmod(open, 0o644))
	for path, want := range map[string]string{
		pipe: "is not a regular file", open: "chmod o= " + open,
		filepath.Join(dir, "none", "f"): "no such file or directory", dir: "is a directory",
	} {
		if err := (&sinks.File{Path: path}).Send(t.Context(), messages(0, 1)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
