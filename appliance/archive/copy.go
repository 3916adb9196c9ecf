package archive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// CopySource is the store to copy.
type CopySource struct {
	Keys     appliance.Keys // not for Prepare
	Leaves   Leaves
	Verifier note.Verifier // of the log
}

// Leaves is the part of a journal that is copied.
type Leaves interface {
	// Checkpoint returns the newest signed checkpoint.
	Checkpoint(ctx context.Context) ([]byte, error)
	// Entries calls yield with each leaf, beginning at index first, until the end or until yield returns an error.
	Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error
}

// LeavesOf returns the leaves of a journal.
func LeavesOf(journal audit.Journal) Leaves { return leaves{journal} }

type leaves struct{ audit.Journal }

func (l leaves) Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error {
	return l.Journal.Entries(ctx, first, func(e journal.Entry) error { return yield(e.Leaf) })
}

// CopyTarget is an empty store, or one with an unfinished copy.
type CopyTarget struct {
	Keys    appliance.Keys
	Journal audit.Journal
	// Tree returns the tree of the leaves copied so far.
	Tree func(ctx context.Context) (tlog.Tree, error)
	// Import appends leaves unchanged and atomically. first is the index of the first one. See bolt.Store.Import.
	Import func(ctx context.Context, first int64, leaves [][]byte) error
	// Verified is the tree of the first leaves that Prepare has read back. They are not read back again. Zero means
	// none.
	Verified tlog.Tree
	// Finish makes the copy usable. Prepare does not call it.
	Finish func(ctx context.Context, checkpoint []byte) error
}

// TreeOf returns the tree of a journal's newest checkpoint.
func TreeOf(ctx context.Context, j interface {
	Checkpoint(ctx context.Context) ([]byte, error)
}, verifier note.Verifier) (tlog.Tree, error) {
	signed, err := j.Checkpoint(ctx)
	if err != nil {
		return tlog.Tree{}, err
	}
	return journal.OpenCheckpoint(signed, verifier)
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
	return fmt.Sprintf("interrupted: %d of %d records are copied; repeat the command to continue", e.Kept, e.Of)
}

func (e *Interrupted) Unwrap() error { return e.Cause }

// copyStep is the number of leaves in one import. An interruption loses at most that many.
const copyStep = 1000

// Copy copies the journal and the API keys, or continues an interrupted or a prepared copy. Nothing may be appended to
// the source meanwhile. It reads the copy back from CopyTarget.Verified on, compares every leaf, root and key, and
// finishes the copy. If ctx ends, it returns an Interrupted.
func Copy(ctx context.Context, from CopySource, to CopyTarget, progress func(done, total int64)) (c Copied, err error) {
	run := &copying{from: from, to: to, progress: progress}
	if err := run.steps(ctx, run.begin, run.beginKeys, run.copyRecords, run.copyKeys, run.compare,
		run.compareKeys); err != nil {
		return Copied{}, err
	}
	if err := to.Finish(ctx, run.checkpoint); err != nil {
		return Copied{}, fmt.Errorf("finish the copy: %w", err)
	}
	return Copied{run.tree.N, fmt.Sprintf("%x", run.tree.Hash[:]), len(run.keys), run.resumed}, nil
}

// fewRecords is how many records a Prepare leaves to Copy, which copies and compares them in a few seconds.
const fewRecords = 10_000

// Prepare copies the records that the source has, while the source may grow, and reads them back. It repeats this for
// the records that came meanwhile, until these are few. It returns the tree of the records for CopyTarget.Verified. If
// ctx ends, it returns an Interrupted.
func Prepare(ctx context.Context, from CopySource, to CopyTarget, progress func(done, total int64)) (tlog.Tree, error) {
	for last := int64(math.MaxInt64); ; {
		run := &copying{from: from, to: to, progress: progress}
		if err := run.steps(ctx, run.begin, run.copyRecords, run.compare); err != nil {
			return tlog.Tree{}, err
		}
		to.Verified = run.tree
		came := run.tree.N - run.resumed
		if came <= fewRecords || came > last/2 { // the source grows as fast as it is copied
			return run.tree, nil
		}
		last = came
	}
}

// copying is one run of Copy or of Prepare.
type copying struct {
	from          CopySource
	to            CopyTarget
	progress      func(done, total int64)
	checkpoint    []byte    // of the source
	tree          tlog.Tree // to be copied
	done, resumed int64
	keys          []appliance.APIKey // of the source, read at the beginning
}

func (c *copying) steps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = &Interrupted{c.done, c.tree.N, err}
			}
			return err
		}
	}
	return nil
}

func (c *copying) beginKeys(ctx context.Context) (err error) {
	c.keys, err = c.from.Keys.List(ctx)
	return err
}

// begin reads the state of source and target.
func (c *copying) begin(ctx context.Context) (err error) {
	if c.checkpoint, err = c.from.Leaves.Checkpoint(ctx); err != nil {
		return err
	}
	if c.tree, err = journal.OpenCheckpoint(c.checkpoint, c.from.Verifier); err != nil {
		return err
	}
	half, err := c.to.Tree(ctx)
	if err != nil {
		return fmt.Errorf("read the target: %w", err)
	}
	if half.N > c.tree.N {
		return fmt.Errorf(
			"the target has %d records, the source %d: the target is not an unfinished copy of the source", half.N,
			c.tree.N)
	}
	c.resumed, c.done = half.N, half.N
	return nil
}

// frontier returns the right edge of the target's first records. It reads the stored hashes only.
func (c *copying) frontier(ctx context.Context, size int64) (journal.Frontier, error) {
	edge, err := journal.NewFrontier(size, journal.NewHashes(ctx, c.to.Journal, c.done))
	if err != nil {
		err = fmt.Errorf("what is in the target: %w", err)
	}
	return edge, err
}

// copyRecords imports the missing leaves. With the existing ones they must make the tree of the source.
func (c *copying) copyRecords(ctx context.Context) error {
	tree, err := c.frontier(ctx, c.resumed)
	if err != nil {
		return err
	}
	var scratch []tlog.Hash
	block := make([][]byte, 0, copyStep)
	flush := func() error {
		if err := c.to.Import(ctx, c.done, block); err != nil {
			return err
		}
		c.done += int64(len(block))
		block = block[:0]
		c.progress(c.done, c.tree.N)
		return nil
	}
	err = c.from.Leaves.Entries(ctx, c.resumed, func(leaf []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if tree.Size() >= c.tree.N {
			return errEnough
		}
		scratch = tree.Add(scratch[:0], tlog.RecordHash(leaf))
		if block = append(block, slices.Clone(leaf)); len(block) == copyStep && tree.Size() < c.tree.N {
			return flush()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if tree.Tree() != c.tree {
		return c.differs()
	}
	if len(block) > 0 {
		return flush()
	}
	return nil
}

// differs is the error of records that do not make the tree of the source.
func (c *copying) differs() error {
	const damaged = "the source is damaged: its records do not match its checkpoint's root hash; for details run: " +
		"attestd log verify"
	if c.resumed == 0 {
		return errors.New(damaged)
	}
	return fmt.Errorf(
		"the %d records in the target differ from the source's first, so the target is not an unfinished "+
			"copy of the source, or %s", c.resumed, damaged)
}

var errEnough = errors.New("enough")

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

// compare reads the copy back, from the records on that Prepare has not read back.
func (c *copying) compare(ctx context.Context) error {
	var tree journal.Frontier
	if v := c.to.Verified; v.N <= c.resumed {
		edge, err := c.frontier(ctx, v.N)
		if err != nil {
			return err
		}
		if edge.Tree() == v {
			tree = edge
		}
	}
	var scratch []tlog.Hash
	err := c.to.Journal.Entries(ctx, tree.Size(), func(e journal.Entry) error {
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
		return fmt.Errorf(
			"the copy is wrong: it has %d records and the root hash %x, the source %d and %x; do not use it", read.N,
			read.Hash[:], c.tree.N, c.tree.Hash[:])
	}
	return nil
}

func (c *copying) compareKeys(ctx context.Context) error {
	copied, err := c.keysThere(ctx)
	if err != nil {
		return err
	}
	for _, k := range c.keys {
		if !sameKey(k, copied[k.ID]) {
			return fmt.Errorf("the copy is wrong: API key %s differs from the source; do not use it", k.ID)
		}
	}
	if len(copied) != len(c.keys) {
		return fmt.Errorf("the copy is wrong: it has %d API keys, the source %d; do not use it", len(copied),
			len(c.keys))
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
