package bolt_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/disk/disktest"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
)

var powerCuts = flag.Int("powercuts", 40,
	"how many power cuts TestDrillPowerCuts simulates; more than 300 with more records")

// The environment variables of a child of TestDrillPowerCuts: its folder, and whether it closes the journal.
const (
	envPowerCut = "ATTESTD_TEST_POWER_CUT"
	envEndsWell = "ATTESTD_TEST_ENDS_WELL"
)

// TestDrillPowerCuts records the writes, the syncs and the changes of names of the journal's files. A power cut keeps all
// that was synced, and any sectors written since, in any order, one of them torn. Each such folder must open, verify,
// and hold every record that was answered before the cut. A second process takes over the folder of the first and
// appends to it.
func TestDrillPowerCuts(t *testing.T) {
	if os.Getenv(envPowerCut) != "" {
		appendAndTell(t)
		return
	}
	t.Parallel()
	disk := disktest.Mount(t)
	_, secret, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	key, err := journal.ParseLogKey(secret)
	check(t, err)
	for _, ends := range []string{"", "ends well"} {
		child := exec.Command(os.Args[0], "-test.run=^TestDrillPowerCuts$", fmt.Sprintf("-powercuts=%d", *powerCuts))
		child.Env = append(os.Environ(), envPowerCut+"="+disk.Dir, envKillKey+"="+secret, envEndsWell+"="+ends)
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	r := recordingOf(t, disk.Ops())
	cuts := r.cutAtRandom(t, key, *powerCuts, func(int) bool { return true })
	for _, failure := range cuts.failures {
		t.Error(failure)
	}
	t.Logf("%d cuts in %d changes left %d different folders, %d of them with a tail, with up to %d records", *powerCuts,
		len(r.ops), cuts.different, cuts.tails, cuts.most)
	if cuts.different < *powerCuts/10 || cuts.most == 0 || cuts.tails < *powerCuts/10 {
		t.Error("the cuts are too much alike to prove anything")
	}
	// Control: a disk that ignores some syncs must be detected.
	random := rand.New(rand.NewPCG(3, 4))
	if lying := r.cutAtRandom(t, key, 60, func(int) bool { return random.IntN(4) == 0 }); len(lying.failures) == 0 {
		t.Error("a disk that does not sync when it is told to is not found out")
	}
}

// appendAndTell appends records from several goroutines. It writes the answered ids to a file on the same disk, so that
// the recording shows the order of both.
func appendAndTell(t *testing.T) {
	key, err := journal.ParseLogKey(os.Getenv(envKillKey))
	check(t, err)
	dir := os.Getenv(envPowerCut)
	answered, err := os.OpenFile(filepath.Join(dir, "answered"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(t, err)
	// A half of this write-ahead log holds four commits, so that it turns often and most records are flushed.
	s, err := bolt.Open(filepath.Join(dir, "attestd.db"), bolt.WithWAL(options(key), 32<<10))
	check(t, err)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for i := range min(100, max(12, *powerCuts/50)) {
				r := storetest.Record(t, "key")
				if i%2 == 0 {
					r.IdempotencyKey = r.ID.String()
				}
				if _, _, err := s.Journal().Append(t.Context(), r); err != nil {
					t.Error(err)
				}
				if _, err := fmt.Fprintln(answered, r.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 3 {
		apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "one"}, time.Now())
		check(t, err)
		check(t, s.Keys().Create(t.Context(), apiKey))
		_, err = s.Keys().Revoke(t.Context(), apiKey.ID, time.Now())
		check(t, err)
	}
	wg.Wait()
	if os.Getenv(envEndsWell) != "" {
		check(t, s.Close())
	}
}

// recording is the sequence of operations on the disk.
type recording struct {
	ops      []disktest.Op
	answered map[int][]uuid.UUID // ids answered before each op
}

func recordingOf(t *testing.T, all []disktest.Op) recording {
	t.Helper()
	r := recording{answered: make(map[int][]uuid.UUID)}
	for _, op := range all {
		if id, err := uuid.Parse(strings.TrimSpace(string(op.Data))); err == nil && op.Kind == disktest.Written {
			r.answered[len(r.ops)] = append(r.answered[len(r.ops)], id)
			continue
		}
		r.ops = append(r.ops, op)
	}
	if len(r.ops) == 0 || len(r.answered) == 0 {
		t.Fatalf("%d changes, %d answers were recorded", len(r.ops), len(r.answered))
	}
	return r
}

// outcome is the result of a series of cuts.
type outcome struct {
	failures               []string
	different, tails, most int
}

// cutAtRandom makes the given number of cuts, with a fixed random seed. honest reports whether the disk executes the
// n-th sync.
func (r recording) cutAtRandom(t *testing.T, key journal.LogKey, cuts int, honest func(n int) bool) (o outcome) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	at := make(map[int]int) // number of cuts before each op
	for range cuts {
		at[random.IntN(len(r.ops)+1)]++
	}
	seen := make(map[[32]byte]bool)
	d := newPlatter(random)
	var answered []uuid.UUID
	for i := 0; ; i++ {
		answered = append(answered, r.answered[i]...)
		for range at[i] {
			folder := d.afterCut()
			sum := folder.sum()
			if seen[sum] {
				continue
			}
			seen[sum] = true
			tail, err := folder.opensAndHolds(t, key, answered, len(seen)%10 == 0)
			if err != nil {
				o.failures = append(o.failures, fmt.Sprintf("a cut before change %d of %d: %v", i, len(r.ops), err))
			}
			if tail {
				o.tails++
			}
		}
		if i == len(r.ops) {
			break
		}
		d.do(r.ops[i], honest(i))
	}
	o.different, o.most = len(seen), len(answered)
	return o
}

// folder is the state of a folder after a cut: contents by name.
type folder map[string][]byte

func (f folder) sum() (sum [32]byte) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(h, "%s %d ", name, len(f[name]))
		h.Write(written(f[name]))
	}
	return [32]byte(h.Sum(nil))
}

// written returns content without trailing zeros, of which a bbolt file has many.
func written(content []byte) []byte { return bytes.TrimRight(content, "\x00") }

// opensAndHolds returns an error if a folder after a cut is unsound, and whether the write-ahead log had records that
// the file lacked. If thorough, it also appends a record.
func (f folder) opensAndHolds(t *testing.T, key journal.LogKey, answered []uuid.UUID,
	thorough bool) (tail bool, err error) {
	t.Helper()
	if f["attestd.db"] == nil {
		if len(answered) > 0 || len(f["attestd.db-wal"]) > 0 {
			err = fmt.Errorf("there is no journal, and %d records were answered", len(answered))
		}
		return false, err
	}
	dir, err := os.MkdirTemp(inMemory(), "attestd-powercut-*")
	check(t, err)
	defer os.RemoveAll(dir)
	for name, content := range f {
		check(t, os.WriteFile(filepath.Join(dir, name), written(content), 0o600))
		check(t, os.Truncate(filepath.Join(dir, name), int64(len(content))))
	}
	path := filepath.Join(dir, "attestd.db")
	// A read-only opening finds the same records as the next start, and changes no file.
	o := options(key)
	o.ReadOnly = true
	read, err := bolt.Open(path, o)
	if err != nil {
		return false, err
	}
	tail = read.Tail() > 0
	if err := errors.Join(found(t, read, answered), read.Close()); err != nil {
		return tail, fmt.Errorf("read only: %w", err)
	}
	s, err := bolt.Open(path, options(key))
	if err != nil {
		return tail, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if thorough {
		if _, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key")); err != nil {
			return tail, err
		}
	}
	return tail, holds(t, s, answered)
}

// inMemory returns a folder in memory, which makes syncs cheap, or "" if the system has none.
func inMemory() string {
	const shared = "/dev/shm"
	if stat, err := os.Stat(shared); err != nil || !stat.IsDir() {
		return ""
	}
	return shared
}

// found returns an error unless a store has the records.
func found(t *testing.T, s *bolt.Store, answered []uuid.UUID) error {
	for _, id := range answered {
		if _, err := s.Journal().ByID(t.Context(), id); err != nil {
			return fmt.Errorf("%s was answered: %w", id, err)
		}
	}
	return nil
}

// holds returns an error unless a store is sound and has the records.
func holds(t *testing.T, s *bolt.Store, answered []uuid.UUID) error {
	if err := found(t, s, answered); err != nil {
		return err
	}
	report, err := audited(t.Context(), s, nil)
	if err == nil && !report.OK() {
		err = fmt.Errorf("the journal is damaged: %v", report.Damages)
	}
	return err
}
