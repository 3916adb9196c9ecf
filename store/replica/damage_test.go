package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/storetest"
)

// Damage is detected or does no harm: every row served was written, and no call panics or hangs.
func TestNoDamageIsServed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	records := filledReplica(t, path)
	written := make(map[string]bool)
	for line := range strings.Lines(string(records)) {
		written[line] = true
	}
	whole := usedPart(t, path)
	found := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		text := bytes.Clone(whole)
		for range 1 + random.IntN(3) {
			at, n := random.IntN(len(text)), 1<<random.IntN(14)
			for i := at; i < min(len(text), at+n); i++ {
				text[i] ^= byte(1 + random.IntN(255))
			}
		}
		copied := filepath.Join(t.TempDir(), "replica.db")
		check(t, os.WriteFile(copied, text, 0o600))
		r, err := Open(copied, Options{Now: func() time.Time { return storetest.ReplicaNow }})
		if err != nil {
			if found++; !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrSchema) {
				t.Errorf("seed %d: opened with %v", seed, err)
			}
			continue
		}
		if err := readEverything(t, r, written); err != nil {
			if found++; appliance.CodeOf(err) != appliance.CodeReplicaUnavailable {
				t.Errorf("seed %d: %v", seed, err)
			}
		}
		r.abandon()
	}
	t.Logf("found in %d of 60 files", found)
	if found < 30 {
		t.Errorf("damage was found in %d of 60 files only", found)
	}
}

// A damaged block name is detected or hides no key, although the order of names locates the keys of neighbouring blocks.
func TestADamagedNameHidesNoKeys(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	key := func(i int) []byte { return fmt.Appendf(nil, "%016x", uint64(i+1)*0x9e3779b1) }
	path := filepath.Join(t.TempDir(), "blocks.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, PageSize: pageSize})
	check(t, err)
	defer db.Close()
	there := make(map[string]bool)
	for i := range 1000 {
		there[string(key(i))] = true
	}
	check(t, db.Update(func(tx *bbolt.Tx) error { _, err := rewriteBlocks(tx, sortedChanges(there), 1); return err }))
	sorted := slices.Sorted(maps.Keys(there))
	for _, laps := range []string{"one lap", "two laps"} {
		var names, values [][]byte
		check(t, db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("blocks")).ForEach(func(k, v []byte) error {
				names, values = append(names, bytes.Clone(k)), append(values, bytes.Clone(v))
				return nil
			})
		}))
		whole, err := os.ReadFile(path)
		check(t, err)
		found := 0
		for n, name := range names {
			for range 6 {
				damaged := bytes.Clone(name)
				damaged[random.IntN(len(name))] ^= 1 << random.IntN(8)
				text := bytes.ReplaceAll(whole, append(bytes.Clone(name), values[n]...), append(damaged, values[n]...))
				if hides := hiddenKeys(t, text, sorted); errors.Is(hides, errDamage) {
					found++
				} else if hides != nil {
					t.Errorf("%s, block %d of %d named %x, not %x: %v", laps, n, len(names), damaged, name, hides)
				}
			}
		}
		if found < len(names) {
			t.Errorf("%s: damage was found in %d of %d files only", laps, found, 6*len(names))
		}
		check(t, db.Update(func(tx *bbolt.Tx) error {
			var e edit
			e.compact(tx.Bucket([]byte("blocks")), []postingChange{{key: []byte(sorted[300])}}, 0, nil)
			return e.apply(tx.Bucket([]byte("blocks")))
		}))
	}
}

var errDamage = errors.New("damage was found")

// hiddenKeys looks up keys in the blocks of a file, forward and backward.
func hiddenKeys(t *testing.T, file []byte, keys []string) (err error) {
	defer func() {
		if _, ok := recover().(damage); ok {
			err = errDamage
		}
	}()
	path := filepath.Join(t.TempDir(), "blocks.db")
	check(t, os.WriteFile(path, file, 0o600))
	defer os.Remove(path)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	check(t, err)
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		for _, key := range keys {
			cursor := newBlockCursor(tx.Bucket([]byte("blocks")))
			up, behind := string(cursor.seek([]byte(key))), append([]byte(key), 0)
			if down := string(newBlockCursor(tx.Bucket([]byte("blocks"))).seekDown(behind)); up != key || down != key {
				return fmt.Errorf("%s: found %q up and %q down", key, up, down)
			}
		}
		return nil
	})
}

// In a tree with a cycle, bbolt would overflow the stack or loop forever.
func TestATreeThatGoesInACircleIsDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	filledReplica(t, path)
	whole := usedPart(t, path)
	size := pageSize
	var branches []int
	for at := 2 * size; at < len(whole); at += size {
		if binary.NativeEndian.Uint16(whole[at+8:]) == 0x01 &&
			binary.NativeEndian.Uint64(whole[at:]) == uint64(at/size) {
			branches = append(branches, at)
		}
	}
	found := 0
	for _, at := range branches {
		for _, target := range branches {
			text := bytes.Clone(whole)
			last := int(binary.NativeEndian.Uint16(text[at+10:])) - 1
			binary.NativeEndian.PutUint64(text[at+16+16*last+8:], uint64(target/size)) // the last child of the branch
			copied := filepath.Join(t.TempDir(), "replica.db")
			check(t, os.WriteFile(copied, text, 0o600))
			r, err := Open(copied, Options{Now: func() time.Time { return storetest.ReplicaNow }})
			switch {
			case errors.Is(err, ErrDamaged):
				found++
			case err != nil:
				t.Errorf("branch at page %d to %d: %v", at/size, target/size, err)
			default: // the branch or the target belongs to an older state of the file
				err := r.View(t.Context(), func(s index.Snapshot) error {
					return s.Each(t.Context(), index.PacketType, func(index.Row) error { return nil })
				})
				if appliance.CodeOf(err) == appliance.CodeReplicaUnavailable {
					// the target's leaves belong to another bucket
					r.abandon()
					continue
				}
				check(t, err)
				check(t, r.Close())
			}
		}
	}
	if found < len(branches) || found == 0 {
		t.Errorf("with %d branches, %d circles were found", len(branches), found)
	}
}

// usedPart returns a file without the room that bbolt reserves after its last page.
func usedPart(t testing.TB, path string) []byte {
	t.Helper()
	r := openReplica(t, path)
	defer r.Close()
	var size int64
	check(t, r.db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil }))
	text, err := os.ReadFile(path)
	check(t, err)
	return text[:size]
}

// readEverything returns the first error. It fails the test on a row that was not written.
func readEverything(t testing.TB, r *Store, written map[string]bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // turns an endless loop into an error
	defer cancel()
	expect := func(rows []index.Row) {
		for _, row := range rows {
			if line := string(row.AppendLine(nil)) + "\n"; !written[line] {
				t.Errorf("was never written: %s", line)
			}
		}
	}
	err := r.View(ctx, func(s index.Snapshot) error {
		for _, kind := range index.RowTypes {
			if err := s.Each(ctx, kind, func(row index.Row) error {
				expect([]index.Row{row})
				return nil
			}); err != nil {
				return err
			}
		}
		rows, err := s.Transfers(ctx, index.TransferQuery{Network: index.Testnet})
		if err != nil {
			return err
		}
		expect(rows)
		for _, row := range rows {
			tx, _ := row.Text(index.TransferSendTransactionColumn)
			again, err := s.Transfers(ctx, index.TransferQuery{TransactionHash: tx})
			if err != nil {
				return err
			}
			expect(again)
			for _, relation := range index.TransferType.Relations {
				_ = s.Related(row, relation)
			}
		}
		_, err = s.Latency(ctx, index.LatencyQuery{})
		if err == nil {
			_, err = s.TransfersByChain(ctx, index.DayQuery{})
		}
		if err == nil {
			_, err = s.Sample(ctx, index.PacketType, 10)
		}
		if err == nil {
			err = s.Unfinished(ctx, index.Row{}, func(index.Row) error { return nil })
		}
		return err
	})
	if err == nil {
		_, err = r.Write(ctx, index.Batch{Rows: []index.Row{placeholder(index.Chain{UniversalChainID: "test.1"})}})
	}
	return err
}

func TestAPanicOfAReaderIsNoDamage(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 10)
	panics := func(read func(s index.Snapshot) error) (cause any) {
		defer func() { cause = recover() }()
		return r.View(t.Context(), read)
	}
	var nothing *int
	for name, read := range map[string]func(s index.Snapshot) error{
		"in the view": func(index.Snapshot) error { panic("mine") },
		"of nil":      func(index.Snapshot) error { *nothing = 1; return nil },
		"in the middle": func(s index.Snapshot) error {
			return s.Each(t.Context(), index.TransferType, func(index.Row) error { panic("mine") })
		},
	} {
		if cause := panics(read); cause == nil || r.refusal() != nil {
			t.Errorf("%s: panicked with %v, and the replica is %v", name, cause, r.refusal())
		}
	}
}
