package bolt

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/attestd/attestd/store/bolt/pages"
	"go.etcd.io/bbolt"
)

// schema is the version of the file's layout, with the migrations from older versions.
type schema struct {
	version int64
	// migrations maps a version to the function that migrates a file to the next version. All migrations of a file run
	// in one transaction with the change of its version. They must not touch records, hashes or the checkpoint, which
	// are covered by signatures.
	migrations map[int64]func(tx *bbolt.Tx) error
}

// currentSchema is the layout in the package comment. The first version is 1.
func currentSchema() *schema {
	return &schema{version: 3, migrations: map[int64]func(tx *bbolt.Tx) error{1: addLookups, 2: addRuns}}
}

// check returns nil if a file of version v is usable. An older file needs migrate first, which a read-only store cannot
// run.
func (s *schema) check(v int64, readOnly bool) error {
	switch {
	case v > s.version:
		return fmt.Errorf(
			"%w: the file has schema version %d, this attestd supports %d; install the newer attestd again",
			ErrNewerSchema, v, s.version)
	case v == s.version:
		return nil
	case s.reaches(v) && readOnly:
		return fmt.Errorf("%w: the file has schema version %d, this attestd needs %d. To migrate it, run: systemctl "+
			"restart attestd", ErrOlderSchema, v, s.version)
	}
	return fmt.Errorf("%w: unknown schema version %d", ErrDamaged, v)
}

// reaches reports whether there is a migration for each step from v to the current version.
func (s *schema) reaches(v int64) bool {
	for ; v < s.version; v++ {
		if s.migrations[v] == nil {
			return false
		}
	}
	return v == s.version
}

func readVersion(p *pages.Reader) (int64, error) {
	stored, err := p.Get(bucketMeta, []byte(metaVersion))
	if err != nil {
		return 0, err
	}
	v, err := decodeIndex(stored)
	if err != nil {
		return 0, fmt.Errorf("%w: schema version: %w", ErrDamaged, err)
	}
	return v, nil
}

// migrate migrates a file to the current schema or leaves it unchanged. It ignores a damaged file, which load reports.
func (s *Store) migrate() (err error) {
	var from int64
	if err := s.pages(func(p *pages.Reader) (err error) { from, err = readVersion(p); return err }); err != nil {
		return nil //nolint:nilerr // load finds it again
	}
	to := s.opts.schema.version
	if from >= to || !s.opts.schema.reaches(from) {
		return nil
	}
	defer survive(&err)()
	err = s.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		if meta == nil {
			return fmt.Errorf("%w: bucket %s: %w", ErrDamaged, bucketMeta, pages.ErrNoBucket)
		}
		var failures error
		for v := from; v < to && failures == nil; v++ {
			failures = errors.Join(s.opts.schema.migrations[v](tx), meta.Put([]byte(metaVersion), encodeIndex(v+1)))
		}
		return failures
	})
	if err != nil {
		return fmt.Errorf("migrate from schema version %d to %d (the file is unchanged): %w", from, to, err)
	}
	s.opts.Logger.Info("journal: migrated to a newer schema", "from", from, "to", to)
	return nil
}

// addLookups migrates to schema version 2, which adds lookups by hash and unspendable address, and of events.
func addLookups(tx *bbolt.Tx) error {
	added := make(map[string]*bbolt.Bucket)
	for _, name := range []string{bucketByHash, bucketByUnspendable, bucketEvents} {
		var err error
		if added[name], err = tx.CreateBucket([]byte(name)); err != nil {
			return fmt.Errorf("create bucket %s: %w", name, err)
		}
	}
	records := tx.Bucket([]byte(bucketRecords))
	if records == nil {
		return fmt.Errorf("%w: bucket %s is missing", ErrDamaged, bucketRecords)
	}
	return records.ForEach(func(index, _ []byte) error {
		e, err := readEntry(records, index)
		if err != nil {
			return err
		}
		return eachLookup(e, index, func(bucket string, name, value []byte) error {
			if b := added[bucket]; b != nil {
				return b.Put(name, value)
			}
			return nil
		})
	})
}

// addRuns migrates to schema version 3, in which by_hash and by_unspendable are runs. It drops malformed entries; an
// audit reports their records.
func addRuns(tx *bbolt.Tx) error {
	for _, name := range []string{bucketByHash, bucketByUnspendable} {
		tree := tx.Bucket([]byte(name))
		if tree == nil {
			return fmt.Errorf("%w: bucket %s is missing", ErrDamaged, name)
		}
		runs := make(map[int64][]indexed) // by their number
		err := tree.ForEach(func(name, value []byte) error {
			if n, err := recordOf(bucketByHash, name, value); err == nil && len(name) == runEntry {
				runs[n/maxRun] = append(runs[n/maxRun], indexed(name))
			}
			return nil
		})
		if err == nil {
			err = tx.DeleteBucket([]byte(name))
		}
		if err != nil {
			return fmt.Errorf("read bucket %s: %w", name, err)
		}
		bucket, err := tx.CreateBucket([]byte(name))
		if err != nil {
			return fmt.Errorf("create bucket %s: %w", name, err)
		}
		bucket.FillPercent = 1
		for _, n := range slices.Sorted(maps.Keys(runs)) {
			if err := addRun(bucket, n*maxRun, runs[n]); err != nil {
				return fmt.Errorf("write bucket %s: %w", name, err)
			}
		}
	}
	return nil
}
