package archive

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// CopySource is the store to copy. Nothing may be appended to it meanwhile.
type CopySource struct {
	Keys     appliance.Keys
	Journal  appliance.Journal
	Verifier note.Verifier // of the log
}

// CopyTarget is an empty store, or one with an unfinished copy.
type CopyTarget struct {
	Keys    appliance.Keys
	Journal appliance.Journal
	// Tree returns the tree of the leaves copied so far.
	Tree func(ctx context.Context) (tlog.Tree, error)
	// Import appends leaves unchanged and atomically. first is the index of the first one. See bolt.Store.Import.
	Import func(ctx context.Context, first int64, leaves [][]byte) error
	// Finish makes the copy usable.
	Finish func(ctx context.Context, checkpoint []byte) error
}

// TreeOf returns the tree of a journal's newest checkpoint.
func TreeOf(ctx context.Context, journal interface {
	Checkpoint(ctx context.Context) ([]byte, error)
}, verifier note.Verifier) (tlog.Tree, error) {
	signed, err := journal.Checkpoint(ctx)
	if err != nil {
		return tlog.Tree{}, err
	}
	return appliance.OpenCheckpoint(signed, verifier)
}

// Copied is the content of a finished copy.
type Copied struct {
	Records  int64  `json:"records"`
	RootHash string `json:"rootHash"` // of the tree of these records, hex
	Keys     int    `json:"keys"`
	Resumed  int64  `json:"resumed"` // records copied by an earlier run
}

// Interrupted is returned by an interrupted copy, with its progress.
type Interrupted struct {
	Kept, Of int64 // records
	Cause    error
}

func (e *Interrupted) Error() string {
	return fmt.Sprintf("interrupted: %d of %d records are kept; the same command goes on from there", e.Kept, e.Of)
}

func (e *Interrupted) Unwrap() error { return e.Cause }

// copyStep is the number of leaves in one import. An interruption loses at most that many.
const copyStep = 1000

// Copy copies the journal and the API keys, or continues an interrupted copy. It reads the copy back, compares every leaf, root, index and
// key, and finishes the copy. If ctx ends, it returns an Interrupted.
func Copy(ctx context.Context, from CopySource, to CopyTarget, progress func(done, total int64)) (c Copied, err error) {
	run := &copying{from: from, to: to, progress: progress}
	for _, step := range []func(context.Context) error{run.begin, run.copyRecords, run.copyKeys, run.compare} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = &Interrupted{run.done, run.tree.N, err}
			}
			return Copied{}, err
		}
	}
	if err := to.Finish(ctx, run.checkpoint); err != nil {
		return Copied{}, fmt.Errorf("finish the copy: %w", err)
	}
	return Copied{run.tree.N, fmt.Sprintf("%x", run.tree.Hash[:]), len(run.keys), run.resumed}, nil
}

// copying is one run of Copy.
type copying struct {
	from          CopySource
	to            CopyTarget
	progress      func(done, total int64)
	checkpoint    []byte    // of the source
	tree          tlog.Tree // to be copied
	done, resumed int64
	keys          []appliance.APIKey // of the source, read at the beginning
}

// begin reads the state of source and target.
func (c *copying) begin(ctx context.Context) (err error) {
	if c.keys, err = c.from.Keys.List(ctx); err != nil {
		return err
	}
	if c.checkpoint, err = c.from.Journal.Checkpoint(ctx); err != nil {
		return err
	}
	if c.tree, err = appliance.OpenCheckpoint(c.checkpoint, c.from.Verifier); err != nil {
		return err
	}
	half, err := c.to.Tree(ctx)
	if err != nil {
		return fmt.Errorf("what is in the target: %w", err)
	}
	if half.N > c.tree.N {
		return fmt.Errorf("the target has %d records, the source %d: it is no unfinished copy of it", half.N, c.tree.N)
	}
	c.resumed, c.done = half.N, half.N
	return nil
}

// copyRecords imports the missing leaves. It compares the root of the existing ones.
func (c *copying) copyRecords(ctx context.Context) error {
	var tree appliance.Frontier
	var scratch []tlog.Hash
	leaves := make([][]byte, 0, copyStep)
	flush := func() error {
		if err := c.to.Import(ctx, c.done, leaves); err != nil {
			return err
		}
		c.done += int64(len(leaves))
		leaves = leaves[:0]
		c.progress(c.done, c.tree.N)
		return nil
	}
	err := c.from.Journal.Entries(ctx, 0, func(e appliance.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		place := tree.Size() // a leading EventLogContinued has a place in the tree but no record index
		if place >= c.tree.N {
			return errEnough
		}
		scratch = tree.Add(scratch[:0], tlog.RecordHash(e.Leaf))
		if place < c.resumed {
			if place == c.resumed-1 {
				return c.compareHalf(ctx, tree)
			}
			return nil
		}
		if leaves = append(leaves, slices.Clone(e.Leaf)); len(leaves) == copyStep {
			return flush()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if tree.Size() != c.tree.N || tree.Tree() != c.tree {
		return errors.New("the source is damaged: its records do not make the tree of its checkpoint; attestd log verify tells what is wrong")
	}
	if len(leaves) > 0 {
		return flush()
	}
	return nil
}

var errEnough = errors.New("enough")

// compareHalf returns an error unless the target has the tree of the source's first records.
func (c *copying) compareHalf(ctx context.Context, tree appliance.Frontier) error {
	there, err := c.to.Tree(ctx)
	if err == nil && there != tree.Tree() {
		err = fmt.Errorf("the %d records in the target are not the source's first: it is no unfinished copy of it", there.N)
	}
	return err
}

// copyKeys creates the missing keys and revokes those revoked since.
func (c *copying) copyKeys(ctx context.Context) error {
	there, err := c.keysThere(ctx)
	if err != nil {
		return err
	}
	for _, k := range c.keys {
		copied, found := there[k.ID]
		switch {
		case !found:
			err = c.to.Keys.Create(ctx, k)
		case copied.Revoked.IsZero() && !k.Revoked.IsZero():
			_, err = c.to.Keys.Revoke(ctx, k.ID, k.Revoked)
		}
		if err != nil {
			return fmt.Errorf("API key %s: %w", k.ID, err)
		}
	}
	return nil
}

func (c *copying) keysThere(ctx context.Context) (map[string]appliance.APIKey, error) {
	list, err := c.to.Keys.List(ctx)
	there := make(map[string]appliance.APIKey)
	for _, k := range list {
		there[k.ID] = k
	}
	return there, err
}

// compare reads the copy back.
func (c *copying) compare(ctx context.Context) error {
	var tree appliance.Frontier
	var scratch []tlog.Hash
	err := c.to.Journal.Entries(ctx, 0, func(e appliance.Entry) error {
		scratch = tree.Add(scratch[:0], tlog.RecordHash(e.Leaf))
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("read the copy back: %w", err)
	}
	there, err := c.to.Tree(ctx)
	if err != nil {
		return err
	}
	if read := tree.Tree(); there != c.tree || read != c.tree {
		return fmt.Errorf("the copy is not good: it has %d records and the root hash %x, the source %d and %x; do not use it", read.N, read.Hash[:], c.tree.N, c.tree.Hash[:])
	}
	return c.compareKeys(ctx)
}

func (c *copying) compareKeys(ctx context.Context) error {
	copied, err := c.keysThere(ctx)
	if err != nil {
		return err
	}
	for _, k := range c.keys {
		if !sameKey(k, copied[k.ID]) {
			return fmt.Errorf("the copy is not good: API key %s is not as in the source; do not use it", k.ID)
		}
	}
	if len(copied) != len(c.keys) {
		return fmt.Errorf("the copy is not good: it has %d API keys, the source %d; do not use it", len(copied), len(c.keys))
	}
	return nil
}

// sameKey compares two keys without their last use, which may change between two runs.
func sameKey(a, b appliance.APIKey) bool {
	a.LastUsed, b.LastUsed = time.Time{}, time.Time{}
	for _, k := range []*appliance.APIKey{&a, &b} {
		k.Created, k.Expires, k.Revoked = k.Created.UTC(), k.Expires.UTC(), k.Revoked.UTC()
		if len(k.AllowFrom) == 0 {
			k.AllowFrom = nil
		}
	}
	return reflect.DeepEqual(a, b)
}
