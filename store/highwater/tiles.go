package highwater

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// tiles reads the hashes of a tree from a journal.
type tiles struct{ *journal.Hashes }

func newTiles(ctx context.Context, j journal.Journal, size int64) *tiles {
	return &tiles{journal.NewHashes(ctx, j, size)}
}

// extends returns an error unless the tree that t reads is consistent with the older one (RFC 6962, section 2.1.2).
func (t *tiles) extends(tree, older tlog.Tree) error {
	switch {
	case older.N > tree.N:
		return errShorter
	case older.N == tree.N:
		if older.Hash != tree.Hash {
			return errForked
		}
		return nil
	case older.N == 0:
		return nil
	}
	proof, err := tlog.ProveTree(tree.N, older.N, t)
	if err != nil {
		return fmt.Errorf("read the tree: %w", err)
	}
	if tlog.CheckTree(proof, tree.N, tree.Hash, older.N, older.Hash) != nil {
		return errForked
	}
	return nil
}

// Extends reports whether a journal of the same log begins with the records of a signed checkpoint.
func Extends(ctx context.Context, j journal.Journal, key journal.LogKey, signed []byte) (bool, error) {
	older, err := parse(signed, key.Verifier)
	if err != nil {
		return false, err
	}
	checkpoint, err := j.Checkpoint(ctx)
	if err != nil {
		return false, err
	}
	head, err := parse(checkpoint, key.Verifier)
	if err != nil {
		return false, err
	}
	err = newTiles(ctx, j, head.Tree.N).extends(head.Tree, older.Tree)
	if errors.Is(err, errShorter) || errors.Is(err, errForked) {
		return false, nil
	}
	return err == nil, err
}
