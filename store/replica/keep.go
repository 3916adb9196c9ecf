package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// Kept is a Store that recovers from damage. Since the replica is only a copy, Kept renames a file that is damaged, of
// another version or unreadable, and creates an empty one. While no replica is open, because the disk is full or
// another process has the file, reads and writes fail with CodeReplicaUnavailable, and Kept retries opening it. It is
// safe for concurrent use.
type Kept struct {
	path string
	o    KeepOptions

	current  atomic.Pointer[Store] // nil while no replica is open
	why      atomic.Pointer[error] // the reason why current is nil, or why the last replica was set aside
	setAside atomic.Uint64

	damaged chan error // receives the damage of the current replica
	stop    context.CancelFunc
	ended   sync.WaitGroup
}

// KeepOptions say how to open a replica and how to recover from damage.
type KeepOptions struct {
	Options
	// Opened is called each time a file was opened, before it is used; nil means no call. If it fails, the file is
	// closed.
	Opened func() error
	Log    *slog.Logger // nil means none
	// Retry is how long to wait before the next attempt after a failed open, and the least time between two
	// replacements of damaged files; zero means a minute.
	Retry time.Duration
}

// keptAside is how many of the files set aside are kept, newest first. Each may be as large as the replica.
const keptAside = 2

// asideInfix separates the name of a replica from the time at which it was set aside.
const asideInfix = ".damaged-"

// OpenAndRetry opens the replica at path. If that fails, it retries until Close.
func OpenAndRetry(path string, o KeepOptions) *Kept {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Retry == 0 {
		o.Retry = time.Minute
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &Kept{path: path, o: o, damaged: make(chan error, 1), stop: stop}
	k.o.onDamage = func(cause error) { k.damaged <- cause } // once per replica; one is open at a time
	err := k.open()
	k.ended.Go(func() { k.tend(ctx, err) })
	return k
}

// tend retries until the replica is open, and replaces it each time it is damaged.
func (k *Kept) tend(ctx context.Context, err error) {
	// begun is the time of the last replacement. It keeps a disk that damages every file from causing a tight loop of
	// replacements.
	var begun time.Time
	for {
		wait := k.o.Retry
		if err == nil {
			select {
			case <-ctx.Done():
				return
			case cause := <-k.damaged:
				k.drop(cause)
			}
			wait = time.Until(begun.Add(k.o.Retry))
			begun = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		err = k.open()
	}
}

// open opens the file. If the file is unusable, open sets it aside and creates an empty one.
func (k *Kept) open() error {
	r, err := k.try()
	if err != nil && isUseless(err) {
		if err = k.putAside(err); err == nil {
			r, err = k.try()
		}
	}
	if err != nil {
		k.o.Log.Error("the replica cannot be opened and is retried; attesting continues", "in", k.o.Retry.String(),
			"error", err.Error())
		k.why.Store(&err)
		return err
	}
	k.current.Store(r)
	return nil
}

func (k *Kept) try() (*Store, error) {
	r, err := Open(k.path, k.o.Options)
	if err != nil || k.o.Opened == nil {
		return r, err
	}
	if err := k.o.Opened(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// isUseless reports whether replacing the file could cure the error. A lock held by another process and exhausted
// resources say nothing against the file.
func isUseless(err error) bool {
	for _, other := range []error{
		errInUse, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EROFS,
		syscall.ENOTDIR, fs.ErrNotExist,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

// drop takes a damaged replica out of use. It does not wait for running reads.
func (k *Kept) drop(cause error) {
	k.why.Store(&cause)
	if r := k.current.Swap(nil); r != nil {
		r.abandon()
	}
	if err := k.putAside(cause); err != nil {
		k.o.Log.Error("the damaged replica cannot be set aside; attesting continues", "error", err.Error())
	}
}

// putAside renames the file, and deletes the oldest files set aside.
func (k *Kept) putAside(cause error) error {
	aside := k.path + asideInfix + time.Now().UTC().Format("20060102T150405.000000000Z")
	switch err := os.Rename(k.path, aside); {
	case errors.Is(err, fs.ErrNotExist):
		aside = "the file is gone"
	case err != nil:
		return fmt.Errorf("set aside the unusable replica (%w): %w", cause, err)
	}
	k.setAside.Add(1)
	k.o.Log.Error("the replica is unusable and was set aside; an empty one replaces it, and attesting continues",
		"replica", k.path, "aside", aside, "cause", cause.Error())
	found, err := SetAside(k.path)
	if err != nil {
		return nil //nolint:nilerr // it is set aside, which is what counts
	}
	for _, old := range found[:max(0, len(found)-keptAside)] {
		_ = os.Remove(old) // a folder that is not empty stays
	}
	return nil
}

// SetAside returns the files that a Kept at path has set aside, oldest first.
func SetAside(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		if ok, _ := filepath.Match(asidePattern(filepath.Base(path)), e.Name()); ok {
			found = append(found, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.Sort(found)
	return found, nil
}

func asidePattern(name string) string { return name + asideInfix + "*Z" }

// SetAsideCount returns how many files have been set aside since Keep.
func (k *Kept) SetAsideCount() uint64 { return k.setAside.Load() }

// Ready returns nil while a replica is open and undamaged, otherwise an error with the reason.
func (k *Kept) Ready() error {
	_, err := k.replica()
	return err
}

func (k *Kept) replica() (*Store, error) {
	if r := k.current.Load(); r != nil {
		return r, r.refusal()
	}
	return nil, unavailable("open it", *k.why.Load())
}

// View implements index.Index.
func (k *Kept) View(ctx context.Context, read func(index.Snapshot) error) error {
	r, err := k.replica()
	if err != nil {
		return err
	}
	return r.View(ctx, read)
}

// Write implements index.Index.
func (k *Kept) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	r, err := k.replica()
	if err != nil {
		return index.Written{}, err
	}
	return r.Write(ctx, b)
}

// Close stops the retries and closes the replica.
func (k *Kept) Close() error {
	k.stop()
	k.ended.Wait()
	r := k.current.Swap(nil)
	switch {
	case r == nil:
		return nil
	case r.fault.Load() != nil:
		r.abandon()
		return nil
	}
	return r.Close()
}
