package bolt

import (
	"context"
	"errors"
	"fmt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt/pages"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Beginning returns the journal.LogName of the journal in a file and its EventLogContinued events, newest first. It
// needs no log key.
func Beginning(path string) (log string, events []journal.Event, err error) {
	s := &Store{path: path, opts: Options{ReadOnly: true, LockTimeout: defaultLockTimeout}}
	if err := s.openFile(); err != nil {
		return "", nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	err = s.pages(func(p *pages.Reader) error {
		name, err := p.Get(bucketMeta, []byte(metaLog))
		if err != nil {
			return err
		}
		log = string(name)
		for i := int64(0); ; i++ {
			leaf, err := p.Get(bucketRecords, encodeIndex(i))
			if errors.Is(err, pages.ErrNoEntry) || err == nil && !journal.IsEvent(leaf) {
				return nil
			}
			if err != nil {
				return err
			}
			event, err := journal.DecodeEvent(leaf)
			if err != nil {
				return fmt.Errorf("%w: record %d: %w", ErrDamaged, i, err)
			}
			if _, ok := event.Continuation(); !ok {
				return nil
			}
			events = append(events, event)
		}
	})
	return log, events, err
}

// ContinueTo creates the file of the log that continues this one. Its first leaf is the event. The leaves of this
// journal follow unchanged, and the API keys are copied. The store may be read-only; it must not change during the
// call. progress may be nil. The file is complete on the disk once ContinueTo returns nil, and unusable after an error
// or a kill.
func (s *Store) ContinueTo(ctx context.Context, path string, event journal.Event, key journal.LogKey,
	progress func(done, total int64)) error {
	if err := s.continueTo(ctx, path, event, key, progress); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

func (s *Store) continueTo(ctx context.Context, path string, event journal.Event, key journal.LogKey,
	progress func(done, total int64)) (err error) {
	h, err := s.journal.head(ctx)
	if err != nil {
		return err
	}
	c, _ := event.Continuation()
	if tree, err := c.Tree(); err != nil || tree != h.tree {
		return errors.Join(errors.New("the event names another head than the journal's"), err)
	}
	copier, err := newCopier(path, key.Verifier, h.tree.N, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, copier.db.Close()) }()
	first, err := firstEntry(event)
	if err != nil {
		return err
	}
	if err := copier.write([]*journal.Entry{&first}, nil); err != nil {
		return err
	}
	var survivors journal.Frontier
	if err := copier.copy(ctx, func(yield func(journal.Entry) error) error {
		return s.journal.Entries(ctx, 0, func(e journal.Entry) error {
			if err := yield(e); err != nil {
				return err
			}
			survivors.Add(nil, tlog.RecordHash(e.Leaf))
			return nil
		})
	}); err != nil {
		return err
	}
	if survivors.Tree() != h.tree {
		return errRootDiffers
	}
	keys, err := s.keys.List(ctx)
	if err != nil {
		return err
	}
	checkpoint, err := journal.SignCheckpoint(copier.frontier.Tree(), key.Signer)
	if err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	return copier.finish(keys, checkpoint)
}

// errRootDiffers is returned for leaves that are not those of the checkpoint.
var errRootDiffers = fmt.Errorf("%w: the records do not match the checkpoint's root hash. For details run: "+
	"attestd log verify", ErrDamaged)

// Make creates the file of a journal that is kept elsewhere, with its newest checkpoint and its API keys. entries calls
// yield with all its leaves, in order; Make ends entries at the size of the checkpoint, and returns an error if they do
// not make its tree. The file is complete on the disk once Make returns nil, and unusable after an error or a kill.
func Make(ctx context.Context, path string, verifier note.Verifier, checkpoint []byte, keys []appliance.APIKey,
	entries func(yield func(journal.Entry) error) error) (err error) {
	tree, err := journal.OpenCheckpoint(checkpoint, verifier)
	if err != nil {
		return err
	}
	copier, err := newCopier(path, verifier, tree.N, nil)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, copier.db.Close()) }()
	if err := copier.copy(ctx, entries); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	if copier.frontier.Tree() != tree {
		return errRootDiffers
	}
	return copier.finish(keys, checkpoint)
}

func firstEntry(event journal.Event) (journal.Entry, error) {
	leaf, err := journal.EncodeEvent(event)
	return journal.Entry{Event: &event, Leaf: leaf}, err
}

// Variables for tests.
var (
	// copyStep is the number of entries per transaction. A large one saves commits, and merges of runs.
	copyStep = 4096
	// sortStep is the number of entries of idempotency that are sorted and written at once. Their names are random, so
	// that a few of them change most pages of the bucket. They take 10 MiB.
	sortStep = 1 << 18
)

// copier writes entries into a new file.
type copier struct {
	db       *bbolt.DB
	frontier journal.Frontier // the new file's tree
	copied   int64
	total    int64
	later    []named // entries of idempotency that are not in the file yet
	progress func(done, total int64)
}

// newCopier creates a file for total leaves of another journal. It has no checkpoint before finish.
func newCopier(path string, verifier note.Verifier, total int64, progress func(done, total int64)) (*copier, error) {
	if err := createFile(path, verifier, currentSchema(), nil); err != nil {
		return nil, err
	}
	// One sync at the end is enough, because the file is not used before.
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoSync: true,
		InitialMmapSize: addressSpace})
	return &copier{db: db, total: total, progress: progress}, err
}

// copy writes the first total entries.
func (c *copier) copy(ctx context.Context, entries func(yield func(journal.Entry) error) error) error {
	step := make([]*journal.Entry, 0, copyStep)
	flush := func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.write(step, nil); err != nil {
			return err
		}
		c.copied, step = c.copied+int64(len(step)), step[:0]
		if c.progress != nil {
			c.progress(c.copied, c.total)
		}
		return nil
	}
	err := entries(func(e journal.Entry) error {
		if c.copied+int64(len(step)) == c.total {
			return errEnough
		}
		if step = append(step, &e); len(step) < copyStep {
			return nil
		}
		return flush()
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return flush()
}

// finish writes the API keys and the checkpoint, and syncs.
func (c *copier) finish(keys []appliance.APIKey, checkpoint []byte) error {
	err := c.write(nil, func(t *tables) error {
		for _, k := range keys {
			if err := putKey(t.keys, k); err != nil {
				return err
			}
		}
		return errors.Join(t.putSorted(c.later), t.meta.Put([]byte(metaCheckpoint), checkpoint))
	})
	if err != nil {
		return err
	}
	return c.db.Sync()
}

// write appends entries and runs also, in one transaction.
func (c *copier) write(entries []*journal.Entry, also func(t *tables) error) error {
	return c.db.Update(func(tx *bbolt.Tx) error {
		t, err := openTables(tx)
		if err != nil {
			return err
		}
		t.later = &c.later
		next := leaves{first: c.frontier.Size(), entries: entries}
		for i, e := range entries {
			e.Index = next.first + int64(i)
			next.hashes = c.frontier.Add(next.hashes, tlog.RecordHash(e.Leaf))
		}
		if err = t.put(&next); err == nil && len(c.later) >= sortStep {
			err = t.putSorted(c.later)
			c.later = nil
		}
		if err != nil || also == nil {
			return err
		}
		return also(t)
	})
}
