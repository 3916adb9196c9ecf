package bolt_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// shell returns a function that runs a command with the journal as $1, an older copy of its file as $2 and of its
// write-ahead log as $3.
func shell(command string) func(t *testing.T, path, older, olderWAL string) {
	return func(t *testing.T, path, older, olderWAL string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", command, "sh", path, older, olderWAL).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}

// replacements are changes by another program to the files of a running journal.
var replacements = map[string]struct {
	do       func(t *testing.T, path, older, olderWAL string)
	says     string
	restored string // the shell command that recovers all records; "" if no command is needed
	gone     bool   // the file's content is lost
}{
	"an older file is moved over it": {do: shell(`mv "$2" "$1"`), says: "was replaced by another file",
		restored: `mv "$1".removed-* "$1"`},
	"it is removed": {do: shell(`rm "$1"`), says: "was removed",
		restored: `mv "$1".removed-* "$1"`},
	"it is moved away": {do: shell(`mv "$1" "$1.away"`), says: "was moved. Stop attestd",
		restored: `mv "$1.away" "$1"`},
	"its folder is another": {do: shell(
		`d=$(dirname "$1"); cp -r "$d" "$d.new"; mv "$d" "$d.old"; mv "$d.new" "$d"`),
		says: "was replaced by another file", restored: `d=$(dirname "$1"); rm -r "$d"; mv "$d.old" "$d"`},
	"an older file is copied over it": {do: shell(`cp "$2" "$1"`), gone: true},
	"zeros are copied over it":        {do: shell(`head -c 1000000 /dev/zero > "$1"`), gone: true},
	"it is emptied":                   {do: shell(`: > "$1"`), gone: true},
	"its write-ahead log is removed":  {do: shell(`rm "$1-wal"`), says: "attestd.db-wal was removed; all "},
	"its write-ahead log is moved away": {do: shell(`mv "$1-wal" "$1-wal.away"`),
		says: "attestd.db-wal was moved. Stop"},
	"its write-ahead log is replaced": {do: shell(`mv "$3" "$1-wal"`),
		says: "attestd.db-wal was replaced by another file"},
	"an older copy is over its log":  {do: shell(`cp "$3" "$1-wal"`), says: "attestd.db-wal was overwritten"},
	"its write-ahead log is emptied": {do: shell(`: > "$1-wal"`), says: "attestd.db-wal has 0 bytes"},
	"both are removed": {do: shell(`rm "$1" "$1-wal"`), says: "was removed",
		restored: `mv "$1".removed-* "$1"`},
	"an older file, and both are moved there": {do: shell(`mv "$2" "$1"; mv "$3" "$1-wal"`),
		says: "was replaced by another file", restored: `rm -f "$1-wal"; mv "$1".removed-* "$1"`},
}

// Once a file of the journal was replaced, no call is answered, the store can be closed, and every record answered
// before is preserved.
func TestAReplacedFileStopsTheJournal(t *testing.T) {
	t.Parallel()
	for name, test := range replacements {
		for _, filed := range []bool{false, true} {
			t.Run(map[bool]string{false: name, true: name + ", with all records"}[filed], func(t *testing.T) {
				t.Parallel()
				path, key := newPath(t), newLogKey(t)
				s := mustOpen(t, path, options(key))
				entries := fill(t, s, 3)
				older := crashed(t, path)
				entries = append(entries, fill(t, s, 5)...)
				if filed {
					check(t, s.Settle())
				}
				test.do(t, path, older, older+"-wal")
				if test.gone {
					wantOverwritten(t, s)
				} else {
					wantReplaced(t, s, test.says)
				}
				_ = s.Close()
				if test.gone {
					return
				}
				if test.restored != "" {
					if early, err := bolt.Open(path, options(key)); err == nil && test.says == "was removed" {
						early.Close()
						t.Error("another journal was begun in place of the one that was removed")
					} else if err == nil {
						early.Close()
					}
					shell(test.restored)(t, path, "", "")
				}
				after := mustOpen(t, path, options(key))
				for _, e := range entries {
					if _, err := after.Journal().ByID(t.Context(), e.Record.ID); err != nil {
						t.Errorf("record %d was answered: %v", e.Index, err)
					}
				}
				wantClean(t, after, nil)
			})
		}
	}
}

func wantReplaced(t *testing.T, s *bolt.Store, says string) {
	t.Helper()
	for range 2 {
		_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key"))
		wantCode(t, err, appliance.CodeJournalUnavailable)
		wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
		apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "late"}, time.Now())
		check(t, err)
		wantCode(t, s.Keys().Create(t.Context(), apiKey), appliance.CodeJournalUnavailable)
	}
	err := <-s.Failed()
	if !errors.Is(err, bolt.ErrReplaced) || !strings.Contains(err.Error(), says) {
		t.Errorf("it stopped because: %v", err)
	}
}

// wantOverwritten is wantReplaced for a file that may be written at the same time. Records answered in between are in
// the write-ahead log, and bbolt may be the first to find the damage. A flush that ends after the copy writes its pages
// over it. If these are all pages that appends read, only an audit finds the others, and the journal goes on.
func wantOverwritten(t *testing.T, s *bolt.Store) {
	t.Helper()
	const flushed = 1000 // appends, which the write-ahead log cannot hold
	err := error(nil)
	for n := 0; err == nil; n++ {
		if n == flushed {
			return
		}
		_, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	}
	if err := <-s.Failed(); !errors.Is(err, bolt.ErrReplaced) && !errors.Is(err, bolt.ErrDamaged) {
		t.Errorf("it stopped because: %v", err)
	}
	_, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	wantCode(t, err, appliance.CodeJournalUnavailable)
}

// A hanging disk makes the journal not ready. When the write ends, the journal is ready again.
func TestACommitThatDoesNotEndMakesTheJournalNotReady(t *testing.T) {
	t.Parallel()
	o := options(newLogKey(t))
	hang := make(chan struct{})
	o.Committed = func([]byte) { <-hang } // simulates a sync that does not return
	s := mustOpen(t, newPath(t), o)
	check(t, s.Journal().Ready(t.Context()))
	appended := make(chan error, 1)
	go func() {
		_, _, err := s.Journal().Append(context.Background(), storetest.Record(t, "key"))
		appended <- err
	}()
	err := error(nil)
	for late := time.Now().Add(5 * time.Minute); err == nil &&
		time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		err = s.Journal().Ready(t.Context())
	}
	wantCode(t, err, appliance.CodeJournalUnavailable)
	if !strings.Contains(err.Error(), "the disk hangs") {
		t.Error(err)
	}
	close(hang)
	check(t, <-appended)
	for err = s.Journal().Ready(t.Context()); err != nil; err = s.Journal().Ready(t.Context()) {
		time.Sleep(time.Millisecond)
	}
}

// Without appends, the watchdog's check and a readiness probe find the replacement.
func TestAReplacedFileIsFoundWithoutAnAppend(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(t *testing.T, s *bolt.Store){
		"by the watchdog": func(t *testing.T, s *bolt.Store) { check(t, s.Responds(t.Context())) },
		"by a probe": func(t *testing.T, s *bolt.Store) {
			wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := mustOpen(t, path, options(newLogKey(t)))
			fill(t, s, 1)
			check(t, os.Remove(path))
			ask(t, s)
			if err := <-s.Failed(); !errors.Is(err, bolt.ErrReplaced) {
				t.Errorf("it stopped because: %v", err)
			}
		})
	}
}

// Harmless operations of other programs on the files do not stop the journal.
func TestAFileThatIsOnlyTouchedIsNotReplaced(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := mustOpen(t, path, options(newLogKey(t)))
	fill(t, s, 1)
	check(t, s.Settle())
	shell(
		`for f in "$1" "$1-wal"; do touch "$f"; chmod 400 "$f"; ln "$f" "$f.link"; cp "$f" "$f.copy"; touch -d 2001-01-01 "$f"; done`)(t, path, "", "")
	fill(t, s, 3)
	check(t, s.Settle())
	check(t, s.Journal().Ready(t.Context()))
}

// bbolt panics over invalid meta pages and keeps its locks. Neither reads nor Close may wait for these locks.
func TestOverwrittenFirstPagesHoldUpNeitherReadsNorTheEnd(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := mustOpen(t, path, options(newLogKey(t)))
	e := fill(t, s, 1)[0]
	check(t, s.Settle())
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check(t, err)
	_, err = f.Write(make([]byte, 4*os.Getpagesize()))
	check(t, errors.Join(err, f.Close()))
	for range 3 {
		_, err = s.Journal().ByID(t.Context(), e.Record.ID)
		wantCode(t, err, appliance.CodeJournalUnavailable)
	}
	if err := <-s.Failed(); err == nil {
		t.Error("Failed sent nil")
	}
	check(t, s.Close())
	if left, _ := filepath.Glob(path + ".removed-*"); len(left) > 0 {
		t.Errorf("copies were made: %q", left)
	}
}
