package journal

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance"
	"golang.org/x/mod/sumdb/tlog"
)

// tileHeight is the height of the tiles of Journal.
const tileHeight = 8

// Tiles is the part of a Journal that proofs need.
type Tiles interface {
	Tile(ctx context.Context, t tlog.Tile) ([]byte, error)
}

// Hashes reads the hashes of a tree from a journal's tiles. It does not verify them: they are for proofs, which are
// checked afterwards.
type Hashes struct {
	ctx     context.Context
	journal Tiles
	size    int64
	read    map[tlog.Tile][]byte // tiles read so far, by tile with W = 0
}

// NewHashes returns a reader of the journal's tree at the given size.
func NewHashes(ctx context.Context, journal Tiles, size int64) *Hashes {
	return &Hashes{ctx: ctx, journal: journal, size: size, read: make(map[tlog.Tile][]byte)}
}

// ReadHashes implements tlog.HashReader.
func (h *Hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		tile := tlog.TileForIndex(tileHeight, index)
		tile.W = int(min(1<<tileHeight, h.size>>(tileHeight*tile.L)-tile.N<<tileHeight)) // width in a tree of this size
		name := tile
		name.W = 0
		held, found := h.read[name]
		if !found {
			var err error
			if held, err = h.journal.Tile(h.ctx, tile); err != nil {
				return nil, fmt.Errorf("tile %s: %w", tile.Path(), err)
			}
			h.read[name] = held
		}
		var err error
		if hashes[i], err = tlog.HashFromTile(tile, held, index); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

// ProveAt returns the proof that a leaf is in an older tree of the journal. tree is the tree of the checkpoint signed.
// If the journal does not begin with that tree, ProveAt returns an error.
func ProveAt(ctx context.Context, journal Tiles, index int64, tree tlog.Tree, signed []byte) (InclusionProof, error) {
	if index < 0 || index >= tree.N {
		return InclusionProof{}, appliance.Errorf(appliance.CodeNotFound, "no record %d among the first %d", index, tree.N)
	}
	hashes := NewHashes(ctx, journal, tree.N)
	leaf, err := hashes.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
	if err != nil {
		return InclusionProof{}, fmt.Errorf("read the tree: %w", err)
	}
	path, err := tlog.ProveRecord(tree.N, index, hashes)
	if err != nil {
		return InclusionProof{}, fmt.Errorf("read the tree: %w", err)
	}
	if err := tlog.CheckRecord(path, tree.N, tree.Hash, index, leaf[0]); err != nil {
		return InclusionProof{},
			fmt.Errorf("the journal's first %d records differ from the checkpoint: %w", tree.N, err)
	}
	proof := InclusionProof{Index: index, TreeSize: tree.N, Checkpoint: string(signed), LeafHash: leaf[0][:],
		Hashes: make([][]byte, len(path))}
	for i := range path {
		proof.Hashes[i] = path[i][:]
	}
	return proof, nil
}
