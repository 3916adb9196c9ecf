package bolt_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/disk/disktest"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
)

var powerCuts = flag.Int("powercuts", 300, "how many power cuts TestPowerCuts simulates; more than 300 with more records")

// envPowerCut is the folder in which a child of TestPowerCuts appends.
const envPowerCut = "ATTESTD_TEST_POWER_CUT"

// TestPowerCuts records what is written to the file and when it is synced. After a power cut a disk holds all that was
// synced, and of what was written since whatever it got to: any sectors, in any order, one of them half written. Each such
// file must open, verify, and hold every record that was answered before the cut.
func TestPowerCuts(t *testing.T) {
	if os.Getenv(envPowerCut) != "" {
		appendAndTell(t)
		return
	}
	t.Parallel()
	disk := disktest.Mount(t)
	_, secret, err := appliance.NewLogKey("example.com/attestd")
	check(t, err)
	key, err := appliance.ParseLogKey(secret)
	check(t, err)
	child := exec.Command(os.Args[0], "-test.run=^TestPowerCuts$", fmt.Sprintf("-powercuts=%d", *powerCuts))
	child.Env = append(os.Environ(), envPowerCut+"="+disk.Dir, envKillKey+"="+secret)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := newRecording(t, disk.Ops())
	cuts := r.cutAtRandom(t, key, *powerCuts, func(int) bool { return true })
	for _, failure := range cuts.failures {
		t.Error(failure)
	}
	t.Logf("%d cuts in %d writes and syncs left %d different files, with up to %d records", *powerCuts, len(r.ops), cuts.different, cuts.most)
	if cuts.different < *powerCuts/10 || cuts.most == 0 {
		t.Error("the cuts are too much alike to prove anything")
	}
	// What would be found if it were otherwise: a disk that ignores some syncs.
	random := rand.New(rand.NewPCG(3, 4))
	if lying := r.cutAtRandom(t, key, 60, func(int) bool { return random.IntN(4) == 0 }); len(lying.failures) == 0 {
		t.Error("a disk that does not sync when it is told to is not found out")
	}
}

// appendAndTell appends records from several goroutines. What is answered it writes to a file on the same disk, so that the
// recording tells the order of both.
func appendAndTell(t *testing.T) {
	key, err := appliance.ParseLogKey(os.Getenv(envKillKey))
	check(t, err)
	dir := os.Getenv(envPowerCut)
	answered, err := os.OpenFile(filepath.Join(dir, "answered"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(t, err)
	s, err := bolt.Open(filepath.Join(dir, "attestd.db"), options(key))
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
	for range 5 {
		apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "one"}, time.Now())
		check(t, err)
		check(t, s.Keys().Create(t.Context(), apiKey))
		_, err = s.Keys().Revoke(t.Context(), apiKey.ID, time.Now())
		check(t, err)
	}
	wg.Wait()
	check(t, s.Close())
}

// recording is what happened to the journal's file.
type recording struct {
	ops      []disktest.Op // of that file, from when it has its name
	first    []disktest.Op // before that
	answered map[int][]uuid.UUID
}

// newRecording takes apart what happened to the file and what was told of answers. answered says which were told before each op.
func newRecording(t *testing.T, all []disktest.Op) recording {
	t.Helper()
	r := recording{answered: make(map[int][]uuid.UUID)}
	journal := uint64(0)
	for _, op := range all {
		if op.Kind == disktest.Linked && op.Name == "attestd.db" {
			journal = op.File
		}
	}
	named := false
	for _, op := range all {
		switch {
		case op.File == journal && op.Kind == disktest.Linked:
			named = true
			if last := r.first[len(r.first)-1]; last.Kind != disktest.Synced {
				t.Error("the file got its name before it was on the disk")
			}
		case op.File == journal && named:
			r.ops = append(r.ops, op)
		case op.File == journal:
			r.first = append(r.first, op)
		case op.Kind == disktest.Written:
			id, err := uuid.Parse(strings.TrimSpace(string(op.Data)))
			if err == nil {
				r.answered[len(r.ops)] = append(r.answered[len(r.ops)], id)
			}
		}
	}
	if len(r.ops) == 0 || len(r.answered) == 0 {
		t.Fatalf("%d writes and syncs, %d answers were recorded", len(r.ops), len(r.answered))
	}
	return r
}

// outcome is what became of cuts.
type outcome struct {
	failures        []string
	different, most int
}

// cutAtRandom makes so many cuts, in a fixed order of chance. honest says whether the disk does the n-th sync.
func (r recording) cutAtRandom(t *testing.T, key appliance.LogKey, cuts int, honest func(n int) bool) (o outcome) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	at := make(map[int]int) // how many cuts there are before each op
	for range cuts {
		at[random.IntN(len(r.ops)+1)]++
	}
	seen := make(map[[32]byte]bool)
	d := &platter{random: random}
	for _, op := range r.first {
		d.do(op, true)
	}
	var answered []uuid.UUID
	for i := 0; ; i++ {
		answered = append(answered, r.answered[i]...)
		for range at[i] {
			image := d.afterCut()
			sum := sha256.Sum256(image)
			if seen[sum] {
				continue
			}
			seen[sum] = true
			if err := opensAndHolds(t, key, image, answered, len(seen)%10 == 0); err != nil {
				o.failures = append(o.failures, fmt.Sprintf("a cut before write %d of %d: %v", i, len(r.ops), err))
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

// platter is a disk with a cache that a power cut empties.
type platter struct {
	random  *rand.Rand
	synced  []byte
	pending []disktest.Op
}

func (p *platter) do(op disktest.Op, honest bool) {
	switch {
	case op.Kind != disktest.Synced:
		p.pending = append(p.pending, op)
	case honest:
		for _, op := range p.pending {
			p.synced = apply(p.synced, op.Kind, op.Offset, op.Data)
		}
		p.pending = nil
	}
}

func apply(image []byte, kind disktest.Kind, at int64, data []byte) []byte {
	end := at + int64(len(data))
	if missing := end - int64(len(image)); missing > 0 {
		image = append(image, make([]byte, missing)...)
	}
	if kind == disktest.Resized {
		return image[:at]
	}
	copy(image[at:end], data)
	return image
}

// afterCut is what a cut leaves: of each write since the last sync all, nothing, or some sectors, one of them half.
func (p *platter) afterCut() []byte {
	const sector = 512
	image := bytes.Clone(p.synced)
	torn := p.random.IntN(2) == 0
	share := p.random.IntN(4) // of the sectors that get there: none, some, most, all
	for _, op := range p.pending {
		if op.Kind == disktest.Resized {
			if share > 0 {
				image = apply(image, op.Kind, op.Offset, nil)
			}
			continue
		}
		for at := 0; at < len(op.Data); at += sector {
			part := op.Data[at:min(at+sector, len(op.Data))]
			if p.random.IntN(3) >= share {
				if !torn {
					continue
				}
				torn = false
				part = part[:p.random.IntN(len(part))]
			}
			image = apply(image, op.Kind, op.Offset+int64(at), part)
		}
	}
	return image
}

// opensAndHolds returns what is wrong with a file after a cut. thorough also goes on with it.
func opensAndHolds(t *testing.T, key appliance.LogKey, image []byte, answered []uuid.UUID, thorough bool) (err error) {
	t.Helper()
	path := newPath(t)
	check(t, os.WriteFile(path, image, 0o600))
	defer os.Remove(path)
	s, err := bolt.Open(path, options(key))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, id := range answered {
		if _, err := s.Journal().ByID(t.Context(), id); err != nil {
			return fmt.Errorf("%s was answered: %w", id, err)
		}
	}
	if thorough {
		if _, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key")); err != nil {
			return err
		}
	}
	report, err := s.Journal().Verify(t.Context(), appliance.VerifyOptions{})
	if err == nil && !report.OK() {
		err = fmt.Errorf("the journal is damaged: %v", report.Damages)
	}
	return err
}
