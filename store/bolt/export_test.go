package bolt

import "go.etcd.io/bbolt"

// BreakFile makes every later write fail with an error other than a full disk.
func (s *Store) BreakFile() {
	f := s.writer.checkpointer
	f.mu.Lock()
	defer f.mu.Unlock()
	s.file.Close()
	if f.wal != nil {
		f.wal.file.Close()
	}
}

// WithWAL returns o with the size of the write-ahead log in bytes.
func WithWAL(o Options, size int64) Options {
	o.walSize = size
	return o
}

// NotWritten exports notWritten.
var NotWritten = notWritten

// WithSchema returns o with a current schema of the given version and migrations.
func WithSchema(o Options, version int64, migrations map[int64]func(*bbolt.Tx) error) Options {
	o.schema = &schema{version: version, migrations: migrations}
	return o
}

// Tail returns how many records the file may lack.
func (s *Store) Tail() int64 {
	h := s.head.Load()
	if h == nil {
		return 0
	}
	return h.tree.N - h.inFile()
}

// Settle waits until the file holds every answered record.
func (s *Store) Settle() error { return s.waitFlushed() }

// HoldFile blocks all writes to the file until release. Records appended before the release are in the write-ahead log
// only.
func (s *Store) HoldFile() (release func() error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		panic(err)
	}
	return tx.Rollback
}

// BreakDB makes every later write to the file fail, but not writes to the write-ahead log.
func (s *Store) BreakDB() { s.file.Close() }

// The functions that write and read a bucket of runs.
var (
	AddRun        = addRun
	LastInRuns    = lastInRuns
	RecordsInRuns = recordsInRuns
)

// Indexed exports indexed.
type Indexed = indexed

// CopyInSteps changes the sizes of the steps of Make and ContinueTo until restore. The test must not be parallel.
func CopyInSteps(entries, sorted int) (restore func()) {
	before, beforeSorted := copyStep, sortStep
	copyStep, sortStep = entries, sorted
	return func() { copyStep, sortStep = before, beforeSorted }
}
