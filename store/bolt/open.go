package bolt

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt/pages"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"
)

// Open opens the file at path. Unless read-only, it creates a missing file with mode 0600. Errors may wrap ErrInUse,
// ErrNewerSchema, ErrOlderSchema (read-only), ErrOtherLog or ErrDamaged.
func Open(path string, o Options) (*Store, error) {
	s, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return s, nil
}

func open(path string, o Options) (_ *Store, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.complete()
	s := &Store{path: path, opts: o}
	s.journal = &Journal{store: s}
	if !o.ReadOnly {
		if err := s.create(); err != nil {
			return nil, err
		}
	}
	if err := s.openFile(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = s.db.Close()
		}
	}()
	if !o.ReadOnly {
		if err := s.migrate(); err != nil {
			return nil, err
		}
	}
	frontier, err := s.load()
	if err == nil {
		frontier, err = s.loadTail(frontier)
	}
	switch {
	case err == nil:
	case o.ReadOnly && errors.Is(err, ErrDamaged):
		s.damage = err
		s.head.Store(nil)
	default:
		return nil, err
	}
	if !o.ReadOnly {
		if s.metas, err = s.readMetas(2 * s.db.Info().PageSize); err != nil {
			return nil, err
		}
		if err := s.fileTail(); err != nil {
			return nil, err
		}
		s.writer = newWriter(s, frontier)
		_ = s.checkClock() // for its warning in the log
	}
	return s, nil
}

func (o *Options) check() error {
	if o.Verifier == nil {
		return errors.New("no log verifier key is given")
	}
	if !o.ReadOnly && (o.Signer == nil || journal.LogName(o.Signer) != journal.LogName(o.Verifier)) {
		return errors.New("the log key does not match the log verifier key")
	}
	return nil
}

// complete sets the defaults.
func (o *Options) complete() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.walSize == 0 {
		o.walSize = walSize
	}
	if o.schema == nil {
		o.schema = currentSchema()
	}
}

// openFile opens the file with bbolt, which panics over a damaged free list.
func (s *Store) openFile() (err error) {
	defer func() {
		if err != nil && s.file.File != nil {
			s.file.Close() // after a panic, bbolt has not closed it; closing releases the lock
		}
	}()
	defer survive(&err)()
	s.db, err = bbolt.Open(s.path, 0o600, s.boltOptions())
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return fmt.Errorf("%w; is attestd running?", ErrInUse)
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum),
		errors.Is(err, bbolterrors.ErrVersionMismatch):
		return fmt.Errorf("%w, or not a journal: %w", ErrDamaged, err)
	}
	return err
}

func (s *Store) boltOptions() *bbolt.Options {
	return &bbolt.Options{
		Timeout:         s.opts.LockTimeout,
		ReadOnly:        s.opts.ReadOnly,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: addressSpace,
		NoStatistics:    true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag, mode)
			if err != nil {
				return nil, err
			}
			if !s.opts.ReadOnly {
				forgetCached(f)
			}
			s.file, err = newHandle(f, name)
			return f, err
		},
	}
}

// forgetCached drops the file from the page cache. After a failed sync, the cache may hold pages as clean that never
// reached the disk, and a restarted process would build on them.
func forgetCached(f *os.File) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // advice, which some file systems ignore
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// create creates a missing file with its buckets and the checkpoint of the empty tree. The file gets its name once it
// is complete on the disk, so that a power cut leaves a journal or none. It never replaces an existing file.
func (s *Store) create() error {
	switch stat, err := os.Lstat(s.path); {
	case err == nil && stat.Mode().IsRegular() && stat.Size() == 0:
		return fmt.Errorf("%w: the file is empty", ErrDamaged) // bbolt would initialise it
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := checkRemoved(s.path); err != nil {
		return err
	}
	if frames, err := readFrames(WALPath(s.path), journal.LogName(s.opts.Verifier), true); err != nil ||
		len(frames) > 0 {
		return fmt.Errorf("%w: the file is missing, but its write-ahead log %s has records: restore the file (%w)",
			ErrDamaged, WALPath(s.path), cmp.Or(err, os.ErrNotExist))
	}
	dir := filepath.Dir(s.path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(s.path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := f.Close(); err != nil {
		return err
	}
	if err := s.createAt(f.Name()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), s.path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(dir) // otherwise a power cut could lose the new file's name
}

func (s *Store) createAt(path string) error {
	checkpoint, err := journal.SignCheckpoint(journal.Frontier{}.Tree(), s.opts.Signer)
	if err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	return createFile(path, s.opts.Verifier, s.opts.schema, checkpoint)
}

// createFile creates a file with empty buckets and a checkpoint.
func createFile(path string, verifier note.Verifier, schema *schema, checkpoint []byte) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return fmt.Errorf("create bucket %s: %w", name, err)
			}
		}
		meta := tx.Bucket([]byte(bucketMeta))
		return errors.Join(
			meta.Put([]byte(metaVersion), encodeIndex(schema.version)),
			meta.Put([]byte(metaLog), []byte(journal.LogName(verifier))),
			meta.Put([]byte(metaCheckpoint), checkpoint),
		)
	})
	return errors.Join(err, db.Close())
}

// load reads the API keys and the journal's head into memory. It validates all that it reads.
func (s *Store) load() (frontier journal.Frontier, err error) {
	s.keys = &Keys{store: s, byID: make(map[string]appliance.APIKey), dirty: make(map[string]bool)}
	err = s.pages(func(p *pages.Reader) error {
		if err := s.checkMeta(p); err != nil {
			return err
		}
		if err := s.keys.load(p); err != nil {
			return err
		}
		var h *head
		if h, frontier, err = s.loadHead(p); err != nil {
			return err
		}
		s.head.Store(h)
		s.flushedCheckpoint = h.checkpoint
		return nil
	})
	return frontier, err
}

func (s *Store) checkMeta(p *pages.Reader) error {
	v, err := readVersion(p)
	if err != nil {
		return err
	}
	if err := s.opts.schema.check(v, s.opts.ReadOnly); err != nil {
		return err
	}
	log, err := p.Get(bucketMeta, []byte(metaLog))
	if err != nil {
		return err
	}
	if want := journal.LogName(s.opts.Verifier); string(log) != want {
		return fmt.Errorf("%w: the journal belongs to log %q, the log key to log %q", ErrOtherLog, log, want)
	}
	return nil
}

// loadHead reads the newest checkpoint and verifies that records and hashes end at its size.
func (s *Store) loadHead(p *pages.Reader) (*head, journal.Frontier, error) {
	damaged := func(err error) (*head, journal.Frontier, error) {
		return nil, journal.Frontier{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	h := new(head)
	var err error
	if h.checkpoint, err = p.Get(bucketMeta, []byte(metaCheckpoint)); err != nil {
		return damaged(err)
	}
	if h.tree, err = journal.OpenCheckpoint(h.checkpoint, s.opts.Verifier); err != nil {
		return damaged(err)
	}
	frontier, err := journal.NewFrontier(h.tree.N, storedHashes(p))
	if err != nil {
		return damaged(err)
	}
	if frontier.Tree() != h.tree {
		return damaged(errors.New("the stored hashes do not match the checkpoint's root hash"))
	}
	if surplus, err := p.Get(bucketRecords, encodeIndex(h.tree.N)); err == nil {
		return damaged(fmt.Errorf("the file has more records than the checkpoint's %d: the next has %d bytes", h.tree.N,
			len(surplus)))
	}
	if h.tree.N == 0 {
		return h, frontier, nil
	}
	leaf, err := p.Get(bucketRecords, encodeIndex(h.tree.N-1))
	if err != nil {
		return damaged(err)
	}
	if h.last, err = leafTime(leaf); err != nil {
		return damaged(fmt.Errorf("record %d: %w", h.tree.N-1, err))
	}
	return h, frontier, nil
}

// storedHashes reads hashes without trusting the file.
func storedHashes(p *pages.Reader) tlog.HashReaderFunc {
	return func(indexes []int64) ([]tlog.Hash, error) {
		hashes := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			value, err := p.Get(bucketHashes, encodeIndex(index))
			if err != nil {
				return nil, fmt.Errorf("stored hash %d: %w", index, err)
			}
			if len(value) != tlog.HashSize {
				return nil, fmt.Errorf("%w: stored hash %d has %d bytes", ErrDamaged, index, len(value))
			}
			hashes[i] = tlog.Hash(value)
		}
		return hashes, nil
	}
}
