package bolt_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// held returns a store whose records stay in the write-ahead log until the test ends.
func held(t testing.TB, path string, o bolt.Options) *bolt.Store {
	t.Helper()
	s := mustOpen(t, path, o)
	release := s.HoldFile()
	t.Cleanup(func() { release() })
	return s
}

// crashed copies a store's files in their current state, as a kill would leave them.
func crashed(t testing.TB, path string) string {
	t.Helper()
	to := newPath(t)
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(path + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		check(t, err)
		check(t, os.WriteFile(to+suffix, content, 0o600))
	}
	return to
}

// misfit is a write-ahead log with three records, one per frame, next to a file without these records, and a change to
// them.
type misfit struct {
	change func(t *testing.T, path string)
	holds  int // number of records
	want   error
	says   string
}

const frameAt = 4096 // frames begin at multiples of this offset

// inWAL returns a function that changes the bytes of the write-ahead log.
func inWAL(change func(b []byte) []byte) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		b, err := os.ReadFile(path + "-wal")
		check(t, err)
		check(t, os.WriteFile(path+"-wal", change(b), 0o600))
	}
}

func flipAt(at int) func(t *testing.T, path string) {
	return inWAL(func(b []byte) []byte {
		b[at] ^= 1
		return b
	})
}

// forged changes a byte of the second frame and corrects the frame's checksum.
func forged(at int) func(t *testing.T, path string) {
	return inWAL(func(b []byte) []byte {
		b[frameAt+at] ^= 1
		frame := b[frameAt:][:binary.BigEndian.Uint32(b[frameAt+16:])]
		table := crc32.MakeTable(crc32.Castagnoli)
		binary.BigEndian.PutUint32(frame[20:], crc32.Update(crc32.Checksum(frame[:20], table), table, frame[24:]))
		return b
	})
}

func misfits(t *testing.T, other journal.LogKey) map[string]misfit {
	theirs := newPath(t)
	fill(t, held(t, theirs, options(other)), 1)
	foreign, err := os.ReadFile(theirs + "-wal")
	check(t, err)
	return map[string]misfit{
		"as it was left": {func(*testing.T, string) {}, 3, nil, ""},
		"its last frame is torn": {inWAL(func(b []byte) []byte {
			clear(b[2*frameAt+512 : 3*frameAt])
			return b
		}), 2, nil, ""},
		"its last frame is not there": {inWAL(func(b []byte) []byte {
			clear(b[2*frameAt:])
			return b
		}), 2, nil, ""},
		"it ends in its last frame": {inWAL(func(b []byte) []byte { return b[:2*frameAt+100] }), 2, nil, ""},
		"it has no byte":            {inWAL(func([]byte) []byte { return nil }), 0, nil, ""},
		"it is rubbish": {inWAL(func([]byte) []byte {
			return bytes.Repeat([]byte("\xffattwal\x01"), 9000)
		}), 0, nil, ""},
		"a bit of the second frame": {flipAt(frameAt + 700), 0, bolt.ErrDamaged, "records 1 to 1 are missing"},
		"a bit of the first frame":  {flipAt(30), 0, bolt.ErrDamaged, "records 0 to 0 are missing"},
		"two frames are gone": {inWAL(func(b []byte) []byte {
			clear(b[:2*frameAt])
			return b
		}), 0, bolt.ErrDamaged, "records 0 to 1 are missing: the journal's file is older"},
		"a frame twice": {inWAL(func(b []byte) []byte {
			copy(b[3*frameAt:], b[:frameAt])
			return b
		}), 0, bolt.ErrDamaged, "its frame has records 0 to 0"},
		"a leaf is forged":                  {forged(44 + 20), 0, bolt.ErrDamaged, "record 1"},
		"a leaf's salt is forged":           {inWAL(forgeSalt), 0, bolt.ErrDamaged, "do not match their checkpoint"},
		"a frame of no leaf":                {forged(35), 0, bolt.ErrDamaged, "malformed"},
		"a leaf that ends behind its frame": {forged(41), 0, bolt.ErrDamaged, "malformed"},
		"of another log": {inWAL(func([]byte) []byte {
			return foreign
		}), 0, bolt.ErrOtherLog, "records of another log"},
		"its file is gone": {func(t *testing.T, path string) {
			check(t, os.Remove(path))
		}, 0, bolt.ErrDamaged, "restore the file"},
	}
}

// forgeSalt changes the last digit of the salt in the second frame, and corrects the checksum.
func forgeSalt(b []byte) []byte {
	leaf := 44 + int(binary.BigEndian.Uint32(b[frameAt+40:]))
	digit := &b[frameAt+leaf-3]
	if *digit == '0' {
		*digit = '2'
	} else {
		*digit = '0'
	}
	frame := b[frameAt:][:binary.BigEndian.Uint32(b[frameAt+16:])]
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.BigEndian.PutUint32(frame[20:], crc32.Update(crc32.Checksum(frame[:20], table), table, frame[24:]))
	return b
}

func TestAWriteAheadLogThatDoesNotFit(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	path := newPath(t)
	entries := fill(t, held(t, path, options(key)), 3)
	for name, test := range misfits(t, newLogKey(t)) {
		t.Run(name, func(t *testing.T) {
			path := crashed(t, path)
			test.change(t, path)
			o := options(key)
			o.ReadOnly = true
			test.reads(t, path, o, entries)
			s, err := bolt.Open(path, options(key))
			if test.want != nil {
				if err == nil {
					s.Close()
				}
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) ||
					!strings.Contains(err.Error(), path+"-wal") {
					t.Fatalf("the error is %v", err)
				}
				if _, err := os.Stat(path + "-wal"); err != nil {
					t.Errorf("what may be needed is gone: %v", err)
				}
				return
			}
			check(t, err)
			test.has(t, s, entries)
			wantClean(t, s, nil)
			fill(t, s, 1)
			check(t, s.Close())
			if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a clean stop leaves a write-ahead log: %v", err)
			}
		})
	}
}

// reads checks the result of a read-only opening: the same records, or the damage.
func (m misfit) reads(t *testing.T, path string, o bolt.Options, entries []journal.Entry) {
	t.Helper()
	s, err := bolt.Open(path, o)
	switch {
	case errors.Is(m.want, bolt.ErrOtherLog) || strings.Contains(m.says, "restore the file"):
		if err == nil {
			s.Close()
			t.Error("it was opened for reading")
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	defer s.Close()
	report := verify(t, s, nil)
	if m.want == nil {
		m.has(t, s, entries)
		if !report.OK() || report.Size != int64(m.holds) {
			t.Errorf("for reading: %+v", report)
		}
		return
	}
	if report.OK() || report.Damages[0].Part != "write-ahead log" ||
		!strings.Contains(report.Damages[0].Detail, m.says) {
		t.Errorf("reported %v", report.Damages)
	}
}

func (m misfit) has(t *testing.T, s *bolt.Store, entries []journal.Entry) {
	t.Helper()
	for i, e := range entries {
		got, err := s.Journal().ByID(t.Context(), e.Record.ID)
		if i >= m.holds {
			wantCode(t, err, appliance.CodeNotFound)
		} else if check(t, err); !bytes.Equal(got.Leaf, e.Leaf) {
			t.Errorf("record %d is %s", i, got.Leaf)
		}
	}
}

// If the file is newer than its write-ahead log, the records were flushed before the kill.
func TestAWriteAheadLogOlderThanTheFile(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	fill(t, s, 5)
	check(t, s.Settle())
	after := mustOpen(t, crashed(t, path), options(key))
	if n := verify(t, after, nil).Size; n != 5 {
		t.Errorf("%d records", n)
	}
	fill(t, s, 2) // in the other half, behind frames of the first
	release := s.HoldFile()
	fill(t, s, 2)
	copied := crashed(t, path)
	check(t, release())
	if n := verify(t, mustOpen(t, copied, options(key)), nil).Size; n != 9 {
		t.Errorf("%d records", n)
	}
}

// A kill of a busy journal, with a write-ahead log that turns constantly, loses no record.
func TestAWriteAheadLogThatIsAlwaysFull(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, bolt.WithWAL(options(key), 64<<10))
	record := storetest.Record(t, "key")
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 20 {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				if _, _, err := s.Journal().Append(context.Background(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	release := s.HoldFile()
	copied := crashed(t, path)
	check(t, release())
	after := mustOpen(t, copied, options(key))
	if report := verify(t, after, nil); report.Size != 64*20 {
		t.Errorf("%d records are left of %d", report.Size, 64*20)
	}
	wantClean(t, after, nil)
	wantClean(t, s, nil)
}

// While the file cannot be written, records are answered until the write-ahead log is full. Then they wait.
func TestRecordsWaitForRoomInTheWriteAheadLog(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	release := s.HoldFile()
	fill(t, s, 1) // the log has room for some
	for err := error(nil); err == nil; {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, _, err = s.Journal().Append(ctx, storetest.Record(t, "key"))
		cancel()
		if err != nil {
			wantCode(t, err, appliance.CodeTimeout)
		}
	}
	check(t, release())
	fill(t, s, 40)
	wantClean(t, s, nil)
}

// Answered records are safe if the file fails for good before their flush.
func TestTheFileFailsBehindTheWriteAheadLog(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	fill(t, s, 1)
	check(t, s.Settle())
	s.BreakDB()
	entries := fill(t, s, 1)
	if err := s.Settle(); err == nil {
		t.Error("it was filed")
	}
	select {
	case err := <-s.Failed():
		if !strings.Contains(err.Error(), path) {
			t.Errorf("it failed with %v", err)
		}
	case <-t.Context().Done():
		t.Fatal("Failed sent nothing")
	}
	_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	wantCode(t, err, appliance.CodeJournalUnavailable)
	s.Close()
	after := mustOpen(t, path, options(key))
	if _, err := after.Journal().ByID(t.Context(), entries[0].Record.ID); err != nil {
		t.Error(err)
	}
	wantClean(t, after, nil)
}

func TestMoreThanAHalfOfTheWriteAheadLog(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	from := mustOpen(t, newPath(t), options(key))
	fill(t, from, 100)
	leaves := leavesOf(t, from)
	to := mustOpen(t, path, bolt.WithWAL(options(key), 32<<10))
	check(t, to.Import(t.Context(), 0, leaves[:2]))
	check(t, to.Import(t.Context(), 2, leaves[2:]))
	if tail := to.Tail(); tail != 0 {
		t.Errorf("%d records are not in the file", tail)
	}
	wantClean(t, to, nil)
	after := mustOpen(t, crashed(t, path), options(key))
	if n := verify(t, after, nil).Size; n != 100 {
		t.Errorf("%d records", n)
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	check(t, bolt.FlushWAL(path, key.Verifier)) // the write-ahead log does not exist
	fill(t, held(t, path, options(key)), 3)
	left := crashed(t, path)
	if err := bolt.FlushWAL(left, newLogKey(t).Verifier); !errors.Is(err, bolt.ErrOtherLog) {
		t.Errorf("by another log's key: %v", err)
	}
	check(t, bolt.FlushWAL(left, key.Verifier))
	if names, _ := filepath.Glob(left + "*"); len(names) != 1 {
		t.Errorf("%v are left", names)
	}
	s := mustOpen(t, left, options(key))
	if s.Tail() != 0 || verify(t, s, nil).Size != 3 {
		t.Error("the file has not all")
	}
}
