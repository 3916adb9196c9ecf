package highwater

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// tileHeight is that of appliance.Journal's tiles.
const tileHeight = 8

// tiles reads the hashes of a tree from a journal. It trusts none: they are for proofs.
type tiles struct {
	ctx     context.Context
	journal appliance.Journal
	size    int64
	read    map[tlog.Tile][]byte // what was read, by tile without its width
}

func newTiles(ctx context.Context, journal appliance.Journal, size int64) *tiles {
	return &tiles{ctx: ctx, journal: journal, size: size, read: make(map[tlog.Tile][]byte)}
}

// ReadHashes implements tlog.HashReader.
func (t *tiles) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		tile := tlog.TileForIndex(tileHeight, index)
		tile.W = int(min(1<<tileHeight, t.size>>(tileHeight*tile.L)-tile.N<<tileHeight)) // as wide as the tree has it
		name := tile
		name.W = 0
		held, found := t.read[name]
		if !found {
			var err error
			if held, err = t.journal.Tile(t.ctx, tile); err != nil {
				return nil, fmt.Errorf("tile %s: %w", tile.Path(), err)
			}
			t.read[name] = held
		}
		var err error
		if hashes[i], err = tlog.HashFromTile(tile, held, index); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

// extends returns an error unless the tree, whose hashes t reads, begins with the older one (RFC 6962, section 2.1.2).
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

// Extends says whether a journal, whose head is of the same log, begins with the records of a signed checkpoint.
func Extends(ctx context.Context, journal appliance.Journal, key appliance.LogKey, signed []byte) (bool, error) {
	older, err := parse(signed, key.Verifier)
	if err != nil {
		return false, err
	}
	checkpoint, err := journal.Checkpoint(ctx)
	if err != nil {
		return false, err
	}
	head, err := parse(checkpoint, key.Verifier)
	if err != nil {
		return false, err
	}
	err = newTiles(ctx, journal, head.Tree.N).extends(head.Tree, older.Tree)
	if errors.Is(err, errShorter) || errors.Is(err, errForked) {
		return false, nil
	}
	return err == nil, err
}
