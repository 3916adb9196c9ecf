package journal

import (
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"
)

// Frontier is the right edge of an append-only Merkle tree (RFC 6962, section 2.1). It suffices for adding leaves and
// computing the root. The zero value is the empty tree.
type Frontier struct {
	size int64
	edge []tlog.Hash // roots of the complete subtrees from left to right, one per set bit of size
}

// NewFrontier returns the frontier of a tree of the given size. r reads its stored hashes.
func NewFrontier(size int64, r tlog.HashReader) (Frontier, error) {
	var indexes []int64
	for done, level := int64(0), 62; level >= 0; level-- {
		if size&(1<<level) != 0 {
			indexes = append(indexes, tlog.StoredHashIndex(level, done>>level))
			done += 1 << level
		}
	}
	edge, err := r.ReadHashes(indexes)
	if err != nil {
		return Frontier{}, fmt.Errorf("right edge of the tree: %w", err)
	}
	return Frontier{size: size, edge: edge}, nil
}

// Clone returns an independent copy.
func (f Frontier) Clone() Frontier { return Frontier{size: f.size, edge: slices.Clone(f.edge)} }

// Add adds a leaf. It appends to dst the roots of the subtrees that the leaf completes, from the leaf's own hash up.
// The result equals tlog.StoredHashesForRecordHash, but needs no reads.
func (f *Frontier) Add(dst []tlog.Hash, leaf tlog.Hash) []tlog.Hash {
	h := leaf
	dst = append(dst, h)
	for n := f.size; n&1 == 1; n >>= 1 {
		last := len(f.edge) - 1
		h = tlog.NodeHash(f.edge[last], h)
		f.edge = f.edge[:last]
		dst = append(dst, h)
	}
	f.edge = append(f.edge, h)
	f.size++
	return dst
}

// Edge returns the roots of the complete subtrees from left to right, one for each set bit of the size. NewFrontier
// reads the same hashes.
func (f Frontier) Edge() []tlog.Hash { return slices.Clone(f.edge) }

// Size returns the number of leaves.
func (f Frontier) Size() int64 { return f.size }

// Tree returns the size and the root.
func (f Frontier) Tree() tlog.Tree {
	if f.size == 0 {
		h, _ := tlog.TreeHash(0, nil) // SHA-256 of the empty string; never fails
		return tlog.Tree{Hash: h}
	}
	h := f.edge[len(f.edge)-1]
	for i := len(f.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(f.edge[i], h)
	}
	return tlog.Tree{N: f.size, Hash: h}
}
