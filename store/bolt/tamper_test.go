package bolt_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

// sealed is a closed journal to tamper with.
type sealed struct {
	file    []byte
	key     journal.LogKey
	entries []journal.Entry
	apiKey  appliance.APIKey
	earlier []byte // checkpoint at 12 records
	at12    []byte // file at 12 records
}

func seal(t testing.TB) (j sealed) {
	t.Helper()
	j.key = newLogKey(t)
	s := mustOpen(t, newPath(t), options(j.key))
	var err error
	j.apiKey, _, err = appliance.NewAPIKey(appliance.KeyRequest{Name: "alice"}, time.Now())
	check(t, err)
	check(t, s.Keys().Create(t.Context(), j.apiKey))
	j.entries = fill(t, s, 12)
	j.earlier, err = s.Journal().Checkpoint(t.Context())
	check(t, err)
	j.at12 = snapshot(t, s)
	j.entries = append(j.entries, fill(t, s, 27)...)
	event, err := s.Journal().AppendEvent(t.Context(), storetest.Event())
	check(t, err)
	j.entries = append(j.entries, event)
	j.file = snapshot(t, s)
	check(t, s.Close())
	return j
}

func snapshot(t testing.TB, s *bolt.Store) []byte {
	t.Helper()
	var b bytes.Buffer
	check(t, s.Snapshot(&b))
	return b.Bytes()
}

// open writes the file to a temporary folder, changes it and opens it read-only.
func (j sealed) open(t testing.TB, file []byte, change func(tx *bbolt.Tx) error) (*bolt.Store, error) {
	t.Helper()
	path := newPath(t)
	check(t, os.WriteFile(path, file, 0o600))
	if change != nil {
		edit(t, path, change)
	}
	s, err := bolt.Open(path, bolt.Options{Verifier: j.key.Verifier, ReadOnly: true, LockTimeout: time.Minute})
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

func index(i int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

// flip changes a byte of a value, counted from its end.
func flip(bucket string, name []byte, fromEnd int) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		value := bytes.Clone(b.Get(name))
		if value == nil {
			return fmt.Errorf("%s has no %x", bucket, name)
		}
		value[len(value)-fromEnd] ^= 1
		return b.Put(name, value)
	}
}

// salt changes the salt of a record.
func salt(i int64) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		leaf := bytes.Clone(tx.Bucket([]byte("records")).Get(index(i)))
		digit := &leaf[len(leaf)-3]
		if *digit == '0' {
			*digit = '1'
		} else {
			*digit = '0'
		}
		return put("records", index(i), leaf)(tx)
	}
}

func remove(bucket string, name []byte) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Delete(name) }
}

func put(bucket string, name, value []byte) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put(name, value) }
}

// run changes the entries of a bucket that has one run with one chunk.
func run(bucket string, changes ...func(entries [][]byte) [][]byte) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		name, value := b.Cursor().First()
		entries := slices.Collect(slices.Chunk(bytes.Clone(value), 16))
		for _, change := range changes {
			entries = change(entries)
		}
		first := bytes.Clone(name[:8])
		return errors.Join(b.Delete(name), b.Put(append(first, entries[0]...), bytes.Join(entries, nil)))
	}
}

func without(entry []byte) func(entries [][]byte) [][]byte {
	return func(entries [][]byte) [][]byte {
		return slices.DeleteFunc(entries, func(e []byte) bool { return bytes.Equal(e, entry) })
	}
}

func with(entry []byte) func(entries [][]byte) [][]byte {
	return func(entries [][]byte) [][]byte {
		entries = append(entries, entry)
		slices.SortFunc(entries, bytes.Compare)
		return entries
	}
}

func backwards(entries [][]byte) [][]byte {
	slices.Reverse(entries)
	return entries
}

// findIndex returns the name of the entry with the index as its value.
func findIndex(tx *bbolt.Tx, bucket string, i int64) (name []byte) {
	tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
		if bytes.Equal(v, index(i)) {
			name = bytes.Clone(k)
		}
		return nil
	})
	return name
}

// change is a change to a sealed file, with the damage that Verify must report.
type change struct {
	change func(tx *bbolt.Tx) error
	want   []damage // at least these
	only   bool     // no others
}

type damage struct {
	index int64
	part  string
}

func (j sealed) changes() map[string]change {
	last := int64(len(j.entries) - 1)
	id := func(i int64) []byte { return j.entries[i].Record.ID[:] }
	byKey := func(i int64) []byte {
		return append(append([]byte(j.entries[i].Record.KeyID), 0), index(i)...)
	}
	changes := map[string]change{
		"a leaf's salt":             {salt(7), []damage{{7, "tree"}, {-1, "checkpoint"}}, true},
		"a leaf's form":             {flip("records", index(7), 1), []damage{{7, "record"}, {7, "tree"}}, false},
		"a leaf's signature":        {replaceIn(7, `"v":2`, `"v":3`), []damage{{7, "signature"}, {7, "tree"}}, false},
		"a leaf with other hashes":  {rewrite(j, 7), []damage{{-1, "checkpoint"}}, true},
		"two records swapped":       {swap(7, 9), []damage{{7, "tree"}, {9, "tree"}, {7, "lookup"}, {9, "lookup"}}, false},
		"the last record dropped":   {remove("records", index(last)), []damage{{last, "record"}}, false},
		"a record dropped":          {remove("records", index(7)), []damage{{7, "record"}}, false},
		"a record too many":         {put("records", index(last+1), []byte("{}")), []damage{{-1, "record"}}, true},
		"a record out of line":      {put("records", []byte("zz"), []byte("{}")), []damage{{-1, "record"}}, true},
		"a hash dropped":            {remove("hashes", index(tlog.StoredHashIndex(1, 3))), []damage{{7, "tree"}}, true},
		"a hash too many":           {put("hashes", index(tlog.StoredHashCount(last+1)), make([]byte, 32)), []damage{{-1, "tree"}}, true},
		"an id's index":             {put("ids", id(7), index(8)), []damage{{7, "lookup"}, {8, "lookup"}}, true},
		"an id dropped":             {remove("ids", id(7)), []damage{{7, "lookup"}}, true},
		"an id too many":            {put("ids", make([]byte, 16), index(7)), []damage{{7, "lookup"}}, true},
		"an id that leads nowhere":  {put("ids", make([]byte, 16), index(99)), []damage{{-1, "lookup"}}, false},
		"a by_key entry dropped":    {remove("by_key", byKey(7)), []damage{{7, "lookup"}}, true},
		"a by_key entry too many":   {put("by_key", append(append([]byte("zz"), 0), index(7)...), nil), []damage{{7, "lookup"}}, true},
		"a by_key entry's value":    {put("by_key", byKey(7), []byte("x")), []damage{{7, "lookup"}, {-1, "lookup"}}, true},
		"an idempotency key's":      {func(tx *bbolt.Tx) error { return put("idempotency", findIndex(tx, "idempotency", 6), index(7))(tx) }, []damage{{6, "lookup"}, {7, "lookup"}}, true},
		"an idempotency key gone":   {func(tx *bbolt.Tx) error { return remove("idempotency", findIndex(tx, "idempotency", 6))(tx) }, []damage{{6, "lookup"}}, true},
		"an idempotency key more":   {put("idempotency", make([]byte, 32), index(7)), []damage{{7, "lookup"}}, true},
		"an event where none is":    {put("events", index(7), nil), []damage{{7, "lookup"}}, true},
		"an event's dropped":        {remove("events", index(last)), []damage{{last, "lookup"}}, true},
		"the checkpoint":            {flip("meta", []byte("checkpoint"), 9), []damage{{-1, "checkpoint"}}, true},
		"the checkpoint, an older":  {put("meta", []byte("checkpoint"), j.earlier), []damage{{-1, "record"}, {-1, "tree"}}, false},
		"an API key's name":         {flip("keys", []byte(j.apiKey.ID), 40), []damage{{-1, "key"}}, true},
		"an API key's checksum":     {put("keys", []byte(j.apiKey.ID), []byte("x")), []damage{{-1, "key"}}, true},
		"something in meta":         {put("meta", []byte("x"), nil), []damage{{-1, "page"}}, true},
		"a bucket too many":         {func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err }, []damage{{-1, "page"}}, true},
		"a bucket missing":          {func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("ids")) }, []damage{{-1, "page"}, {7, "lookup"}}, false},
		"every bucket but meta and": {func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("records")) }, []damage{{-1, "page"}, {0, "record"}}, false},
	}
	maps.Copy(changes, j.runChanges())
	for level := range 6 {
		n := int64(1)<<level - 1 // the record that completes the first hash of the level
		changes[fmt.Sprint("a hash of level ", level)] = change{flip("hashes", index(tlog.StoredHashIndex(level, 0)), 5), []damage{{n, "tree"}}, true}
	}
	return changes
}

// runChanges are changes to buckets of runs.
func (j sealed) runChanges() map[string]change {
	hash := func(i int64) []byte { return j.entries[i].Record.Hash[:] }
	address := func(i int64) []byte {
		sum := sha256.Sum256(j.entries[i].Record.UnspendableAddress[:])
		return sum[:]
	}
	byTail := func(of []byte, i int64) []byte { return append(bytes.Clone(of[len(of)-8:]), index(i)...) }
	return map[string]change{
		"a by_hash entry dropped":   {run("by_hash", without(byTail(hash(7), 7))), []damage{{7, "lookup"}}, true},
		"a by_hash entry too many":  {run("by_hash", with(byTail(hash(7), 8))), []damage{{8, "lookup"}}, true},
		"a by_hash entry changed":   {run("by_hash", without(byTail(hash(7), 7)), with(byTail(hash(7), 8))), []damage{{7, "lookup"}, {8, "lookup"}}, true},
		"a by_hash entry beyond":    {run("by_hash", with(byTail(hash(7), 99))), []damage{{-1, "lookup"}}, true},
		"a by_hash chunk malformed": {put("by_hash", []byte("x"), nil), []damage{{-1, "lookup"}}, true},
		"a by_hash chunk misnamed":  {put("by_hash", append(index(1<<40), make([]byte, 16)...), byTail(hash(7), 7)), []damage{{-1, "lookup"}}, true},
		"a by_hash chunk twice":     {put("by_hash", append(index(9), byTail(hash(7), 7)...), byTail(hash(7), 7)), []damage{{-1, "lookup"}}, true},
		"by_hash out of order":      {run("by_hash", backwards), []damage{{-1, "lookup"}}, true},
		"an address's dropped":      {run("by_unspendable", without(byTail(address(7), 7))), []damage{{7, "lookup"}}, true},
		"an address's too many":     {run("by_unspendable", with(byTail(address(7), 8))), []damage{{8, "lookup"}}, true},
	}
}

func TestVerifyNamesWhatWasChanged(t *testing.T) {
	t.Parallel()
	j := seal(t)
	for name, test := range j.changes() {
		t.Run(name, func(t *testing.T) {
			s, err := j.open(t, j.file, test.change)
			check(t, err)
			report := verify(t, s, nil)
			found := make(map[damage]bool)
			for _, d := range report.Damages {
				t.Log(d)
				found[damage{d.Index, d.Part}] = true
			}
			for _, want := range test.want {
				if !found[want] {
					t.Errorf("%s of record %d is not reported", want.part, want.index)
				}
				delete(found, want)
			}
			if test.only && len(found) > 0 {
				t.Errorf("also reported: %v", found)
			}
			if report.Size != int64(len(j.entries)) && !strings.Contains(name, "older") {
				t.Errorf("it stopped after %d records", report.Size)
			}
			if test.onlyLookups() {
				return
			}
			quick, err := s.Journal().Verify(t.Context(), audit.Options{SkipRecords: true})
			if check(t, err); quick.OK() {
				t.Error("not found if records are skipped")
			}
		})
	}
}

// onlyLookups reports whether a change is in lookups, which are not compared if records are skipped.
func (c change) onlyLookups() bool {
	return !slices.ContainsFunc(c.want, func(d damage) bool { return d.part != "lookup" })
}

func TestSkippedRecordsAreThoseOfTheCheckpoint(t *testing.T) {
	t.Parallel()
	j := seal(t)
	s, err := j.open(t, j.file, nil)
	check(t, err)
	report, err := s.Journal().Verify(t.Context(), audit.Options{SkipRecords: true})
	if check(t, err); !report.OK() || report.Size != int64(len(j.entries)) || len(report.Signers) != 0 {
		t.Errorf("%+v", report)
	}
	wantClean(t, s, nil)
}

// replaceIn changes the text of a leaf.
func replaceIn(i int64, old, new string) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		leaf := tx.Bucket([]byte("records")).Get(index(i))
		return put("records", index(i), bytes.Replace(leaf, []byte(old), []byte(new), 1))(tx)
	}
}

func swap(i, k int64) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("records"))
		first, second := bytes.Clone(b.Get(index(i))), bytes.Clone(b.Get(index(k)))
		if err := b.Put(index(i), second); err != nil {
			return err
		}
		return b.Put(index(k), first)
	}
}

// rewrite changes a record and all hashes above it, as an attacker without the log key could.
func rewrite(j sealed, i int64) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		if err := salt(i)(tx); err != nil {
			return err
		}
		var frontier journal.Frontier
		for n := range int64(len(j.entries)) {
			leaf := tx.Bucket([]byte("records")).Get(index(n))
			for level, h := range frontier.Add(nil, tlog.RecordHash(leaf)) {
				if err := put("hashes", index(tlog.StoredHashIndex(0, n)+int64(level)), bytes.Clone(h[:]))(tx); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func TestEarlierCheckpointCatchesARolledBackJournal(t *testing.T) {
	t.Parallel()
	j := seal(t)
	whole, err := j.open(t, j.file, nil)
	check(t, err)
	wantClean(t, whole, j.earlier)
	newest, err := whole.Journal().Checkpoint(t.Context())
	check(t, err)

	back, err := j.open(t, j.at12, nil)
	check(t, err)
	wantClean(t, back, nil) // on its own, it is a sound journal
	report := verify(t, back, newest)
	if report.OK() || report.Damages[0].Part != "checkpoint" || !strings.Contains(report.Damages[0].Detail, "40 records") {
		t.Errorf("reported %v", report.Damages)
	}
	// So is a journal that has diverged since.
	other := seal(t)
	if report := verify(t, back, other.earlier); report.OK() || !strings.Contains(report.Damages[0].Detail, "belongs to another log") {
		t.Errorf("a checkpoint of another log was accepted: %v", report.Damages)
	}
	path := newPath(t)
	check(t, os.WriteFile(path, j.at12, 0o600))
	fork := mustOpen(t, path, options(j.key))
	fill(t, fork, 28)
	if report := verify(t, fork, newest); report.OK() {
		t.Error("a forked journal is clean")
	}
	wantClean(t, fork, j.earlier)
}

// TestDamagedFile writes random bytes into a file. Opening and verifying must not crash or hang. If they find no
// damage, the content of the file must be unchanged.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	j := seal(t)
	want := dump(t, j.file)
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, seed))
	trials := 100
	if testing.Short() {
		trials = 40
	}
	refused, found := 0, 0
	for trial := range trials {
		file := bytes.Clone(j.file)
		offset := rng.IntN(len(file) - 8)
		if trial%2 == 1 { // headers and the elements behind them, which are the most sensitive
			offset = offset&^4095 + rng.IntN(200)
		}
		for k := range 1 + rng.IntN(4) {
			file[offset+k] = byte(rng.Uint32())
		}
		s, err := j.open(t, file, nil)
		if err != nil {
			refused++
			continue
		}
		report, err := s.Journal().Verify(t.Context(), audit.Options{})
		if err != nil || !report.OK() {
			found++
		} else if !reflect.DeepEqual(dump(t, file), want) {
			t.Errorf("trial %d: bytes at %d of page %d: the damage was not found", trial, offset%4096, offset/4096)
		}
		readAll(t, s, j)
		check(t, s.Close())
		if trial%4 < 2 {
			appendTo(t, file, j)
		}
	}
	t.Logf("%d trials: %d refused, %d found damaged, %d without effect", trials, refused, found, trials-refused-found)
}

// readAll makes all ordinary reads and ignores their results.
func readAll(t testing.TB, s *bolt.Store, j sealed) {
	records := s.Journal()
	for i, e := range j.entries {
		records.ByID(t.Context(), e.Record.ID)
		records.Prove(t.Context(), int64(i))
	}
	records.List(t.Context(), journal.Query{KeyID: j.entries[0].Record.KeyID, From: j.entries[0].Record.Time})
	records.Entries(t.Context(), 0, func(journal.Entry) error { return nil })
	records.Tile(t.Context(), tlog.Tile{H: 8, L: 0, N: 0, W: 40})
	s.Snapshot(&bytes.Buffer{})
}

// appendTo opens a file for writing and appends, and ignores the results.
func appendTo(t testing.TB, file []byte, j sealed) {
	path := newPath(t)
	check(t, os.WriteFile(path, file, 0o600))
	s, err := bolt.Open(path, options(j.key))
	if err != nil {
		return
	}
	r := j.entries[0].Record
	r.ID = uuid.Must(uuid.NewV7())
	s.Journal().Append(t.Context(), r)
	s.Close()
}

// dump returns all entries of a sound file.
func dump(t testing.TB, file []byte) map[string]string {
	t.Helper()
	path := newPath(t)
	check(t, os.WriteFile(path, file, 0o600))
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	check(t, err)
	defer db.Close()
	all := make(map[string]string)
	check(t, db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				all[string(name)+" "+string(k)] = string(v)
				return nil
			})
		})
	}))
	return all
}
