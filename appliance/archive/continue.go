package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// ContinueOptions configure Continue.
type ContinueOptions struct {
	Reason, By string
	Published  []byte // the largest checkpoint that is known to have been published; may be nil
	Now        time.Time
	// NewKey generates an independent key for the new log, for an old key that was stolen or is missing. Otherwise the
	// new key is derived from the old one. The other members of a cluster must be given an independent key.
	NewKey bool
	// the old log's key; with NewKey, the public half is enough; zero means log.key in the folder
	Old      journal.LogKey
	HSM      journal.LogSigner       // the key that journal.key names; nil if the log key is a file
	Progress func(done, total int64) // of the records; may be nil
}

// ErrSameLogKey is returned by RotateLogKey if the HSM has the key that is to be replaced.
var ErrSameLogKey = errors.New("journal.key still names the old log key: generate another key (attestd hsm keygen " +
	"--algorithm ed25519 --label LABEL) and set journal.key to it")

// Continued is a log that continues another one.
type Continued struct {
	Key   journal.LogKey
	Head  Head
	Aside string // path of the old journal, which is kept
}

// Continue turns the journal in a folder into one of a new log: see journal.Continuation. No daemon may use the
// folder. The new journal is written beside the old one and renamed into its place, so that a kill leaves one of the
// two. The next start updates log.key and the mark.
func Continue(ctx context.Context, dir string, o ContinueOptions) (c Continued, err error) {
	if err := FlushLog(dir); err != nil { // otherwise the old write-ahead log would lie beside the new journal
		return c, err
	}
	store, key, err := o.open(dir)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, store.Close()) }() // its lock keeps a daemon from starting
	surviving, err := store.Journal().Checkpoint(ctx)
	if err != nil {
		return c, err
	}
	event, next, secret, err := o.Successor(key, surviving)
	if err != nil {
		return c, err
	}
	c.Key = next
	if err := removeLeftovers(dir); err != nil {
		return c, err
	}
	scratch, err := os.MkdirTemp(dir, continueScratch)
	if err != nil {
		return c, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	made := filepath.Join(scratch, StoreFile)
	if err := store.ContinueTo(ctx, made, event, next, o.Progress); err != nil {
		return c, err
	}
	c.Aside = filepath.Join(dir, StoreFile+freeSuffix(dir, ".before-continue-"+o.Now.UTC().Format("20060102T150405Z")))
	if o.NewKey { // an independent key could not be derived again after a kill
		if err := KeepNextKey(dir, secret); err != nil {
			return c, err
		}
	}
	if err := putInPlace(dir, made, c.Aside); err != nil {
		return c, err
	}
	if err := ReplaceLogKey(dir, key, secret); err != nil {
		return c, err
	}
	if c.Head, err = ReadHead(ctx, dir); err != nil {
		return c, err
	}
	return c, highwater.Write(filepath.Join(dir, highwater.FileName), c.Head.Checkpoint)
}

func (o ContinueOptions) open(dir string) (*bolt.Store, journal.LogKey, error) {
	if o.Old.Verifier == nil {
		return OpenStore(dir)
	}
	store, err := openPublic(dir, o.Old)
	return store, o.Old, err
}

// Successor returns the first leaf of the log that continues the one of key, with the new log's key and its secret
// text.
func (o ContinueOptions) Successor(key journal.LogKey,
	surviving []byte) (e journal.Event, next journal.LogKey, secret string, err error) {
	if e, err = journal.NewContinuation(key, surviving, o.Published, o.Reason, o.By, o.Now); err != nil {
		return e, next, "", err
	}
	if o.NewKey {
		next, secret, err = e.GiveNewLogKey(o.HSM)
	} else if o.Old.Verifier != nil {
		return e, next, "", errors.New("the old log key is missing")
	} else {
		next, secret, err = key.Continue(e)
	}
	return e, next.SignedBy(o.HSM), secret, err
}

// CheckRotation returns ErrSameLogKey if the new log would have the public key of the old one.
func (o ContinueOptions) CheckRotation(old journal.LogKey) error {
	if o.HSM != nil && old.PublicKey().Equal(o.HSM.PublicKey()) {
		return ErrSameLogKey
	}
	return nil
}

// RotateLogKey is Continue with an independent key for a complete journal, for example after the old key was stolen.
func RotateLogKey(ctx context.Context, dir string, o ContinueOptions) (c Continued, err error) {
	err = asOwner(dir, func() error {
		key, err := readLogKey(dir)
		if err == nil {
			err = o.CheckRotation(key)
		}
		if err != nil {
			return err
		}
		if o.Published, err = PublishedMark(filepath.Join(dir, highwater.FileName), key); err != nil {
			return err
		}
		o.NewKey = true
		c, err = Continue(ctx, dir, o)
		return err
	})
	return c, err
}

// continueScratch is the name of the folder in which Continue writes the new journal.
const continueScratch = ".continue-*"

// removeLeftovers removes the folders of killed runs.
func removeLeftovers(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, continueScratch))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// putInPlace replaces the journal and keeps the old one under a second name.
func putInPlace(dir, made, aside string) error {
	journal := filepath.Join(dir, StoreFile)
	if err := os.Link(journal, aside); err != nil {
		return err
	}
	if err := os.Rename(made, journal); err != nil {
		return err
	}
	if err := files.HandOver(dir, StoreFile); err != nil {
		return err
	}
	return files.SyncFolder(dir)
}

// ErrNothingLost is returned by AcceptLoss if the journal agrees with the mark.
var ErrNothingLost = errors.New("no loss to accept: the journal has all published records")

// AcceptLoss runs Continue if the journal in a folder contradicts the high-water mark. Otherwise it returns
// ErrNothingLost.
func AcceptLoss(ctx context.Context, dir string, o ContinueOptions) (c Continued, loss *highwater.Loss, err error) {
	err = asOwner(dir, func() error {
		if loss, o.Published, err = findLoss(ctx, dir); err != nil {
			return err
		}
		if loss == nil {
			return ErrNothingLost
		}
		c, err = Continue(ctx, dir, o)
		return err
	})
	return c, loss, err
}

// findLoss compares the journal with the mark. It returns the largest checkpoint that is known to have been published.
func findLoss(ctx context.Context, dir string) (loss *highwater.Loss, published []byte, err error) {
	store, key, err := OpenStore(dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	path := filepath.Join(dir, highwater.FileName)
	if published, err = PublishedMark(path, key); err != nil {
		return nil, nil, err
	}
	_, loss, err = highwater.Compare(ctx, path, store.Journal(), key)
	return loss, published, err
}

// PublishedMark returns the checkpoint in the file of a mark, also of another log; nil if there is none.
func PublishedMark(path string, key journal.LogKey) ([]byte, error) {
	mark, err := highwater.Read(path, key.Verifier)
	if errors.Is(err, highwater.ErrOtherLog) || errors.Is(err, highwater.ErrDamaged) || errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("high-water mark: %w", err)
	}
	return mark.Signed, nil
}
