package bolt

import "go.etcd.io/bbolt"

// BreakFile makes every later write fail, other than for want of space.
func (s *Store) BreakFile() {
	f := s.writer.filer
	f.mu.Lock()
	defer f.mu.Unlock()
	s.file.Close()
	if f.wal != nil {
		f.wal.file.Close()
	}
}

// WithWAL is o for a write-ahead log of that size.
func WithWAL(o Options, size int64) Options {
	o.walSize = size
	return o
}

// NotWritten is notWritten.
var NotWritten = notWritten

// WithSchema is o for a package whose current schema is of that version and has these migrations.
func WithSchema(o Options, version int64, migrations map[int64]func(*bbolt.Tx) error) Options {
	o.schema = &schema{version: version, migrations: migrations}
	return o
}

// Tail is how many records the file may lack.
func (s *Store) Tail() int64 {
	h := s.head.Load()
	if h == nil {
		return 0
	}
	return h.tree.N - h.inFile()
}

// Settle returns when the file has all that was answered.
func (s *Store) Settle() error { return s.settle() }

// HoldFile keeps everything from being written to the file, until release. What is appended meanwhile is in the write-ahead log alone.
func (s *Store) HoldFile() (release func() error) {
	tx, err := s.db.Begin(true)
	if err != nil {
		panic(err)
	}
	return tx.Rollback
}

// BreakDB makes every later write to the file fail, but none to the write-ahead log.
func (s *Store) BreakDB() { s.file.Close() }

// What a bucket of runs is written and read with.
var (
	AddRun        = addRun
	LastInRuns    = lastInRuns
	RecordsInRuns = recordsInRuns
)

// Indexed is indexed.
type Indexed = indexed
