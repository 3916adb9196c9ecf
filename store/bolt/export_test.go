package bolt

import "go.etcd.io/bbolt"

// BreakFile makes every later write fail, other than for want of space.
func (s *Store) BreakFile() { s.file.Close() }

// NotWritten is notWritten.
var NotWritten = notWritten

// WithSchema is o for a package whose current schema is of that version and has these migrations.
func WithSchema(o Options, version int64, migrations map[int64]func(*bbolt.Tx) error) Options {
	o.schema = &schema{version: version, migrations: migrations}
	return o
}
