package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"golang.org/x/mod/sumdb/tlog"
)

func everyProof(t *testing.T, s suite) {
	var entries []journal.Entry
	for size := int64(1); size <= 40; size++ {
		entries = append(entries, s.append(t, Record(t, "key")))
		tree := s.tree(t)
		if tree.N != size {
			t.Fatalf("the checkpoint is of %d records, not %d", tree.N, size)
		}
		for _, e := range entries {
			proof, err := s.journal.Prove(t.Context(), e.Index)
			check(t, err)
			if err := proof.Verify(e.Leaf, s.verifier); err != nil {
				t.Errorf("record %d of %d: %v", e.Index, size, err)
			}
			path := make(tlog.RecordProof, len(proof.Hashes))
			for i, h := range proof.Hashes {
				path[i] = tlog.Hash(h)
			}
			if err := tlog.CheckRecord(path, tree.N, tree.Hash, e.Index, tlog.RecordHash(e.Leaf)); err != nil {
				t.Errorf("record %d of %d: %v", e.Index, size, err)
			}
			other := entries[(e.Index+1)%size]
			if size > 1 && proof.Verify(other.Leaf, s.verifier) == nil {
				t.Errorf("the proof of record %d also proves record %d", e.Index, other.Index)
			}
		}
	}
}

// tileReader is a tlog client's source of tiles.
type tileReader struct {
	ctx     context.Context
	journal audit.Journal
}

func (r tileReader) Height() int { return 8 }

func (r tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

func (r tileReader) ReadTiles(tiles []tlog.Tile) (all [][]byte, err error) {
	for _, tile := range tiles {
		hashes, err := r.journal.Tile(r.ctx, tile)
		if err != nil {
			return nil, fmt.Errorf("tile %s: %w", tile.Path(), err)
		}
		all = append(all, hashes)
	}
	return all, nil
}

func tilesProveConsistency(t *testing.T, s suite) {
	var trees []tlog.Tree
	for _, size := range []int{1, 2, 7, 255, 256, 257, 300, 513, 600} {
		for s.tree(t).N < int64(size) {
			s.append(t, Record(t, "key"))
		}
		trees = append(trees, s.tree(t))
	}
	for j, newer := range trees {
		hashes := tlog.TileHashReader(newer, tileReader{t.Context(), s.journal})
		for _, older := range trees[:j] {
			proof, err := tlog.ProveTree(newer.N, older.N, hashes)
			check(t, err)
			if err := tlog.CheckTree(proof, newer.N, newer.Hash, older.N, older.Hash); err != nil {
				t.Errorf("%d is not consistent with %d: %v", newer.N, older.N, err)
			}
		}
		for _, index := range []int64{0, newer.N / 2, newer.N - 1} {
			proof, err := tlog.ProveRecord(newer.N, index, hashes)
			check(t, err)
			var e journal.Entry
			stop := errors.New("stop")
			if err := s.journal.Entries(t.Context(), index, func(got journal.Entry) error {
				e = got
				return stop
			}); !errors.Is(err, stop) {
				t.Fatal(err)
			}
			if err := tlog.CheckRecord(proof, newer.N, newer.Hash, index, tlog.RecordHash(e.Leaf)); err != nil {
				t.Errorf("record %d is not in the tree of %d: %v", index, newer.N, err)
			}
		}
	}
}

func noSuchTile(t *testing.T, s suite) {
	s.appendMany(t, 260)
	for tile, there := range map[tlog.Tile]bool{
		{H: 8, L: 0, N: 0, W: 256}:       true,
		{H: 8, L: 0, N: 0, W: 100}:       true,
		{H: 8, L: 0, N: 1, W: 4}:         true,
		{H: 8, L: 1, N: 0, W: 1}:         true,
		{H: 8, L: 0, N: 1, W: 5}:         false,
		{H: 8, L: 0, N: 1, W: 256}:       false,
		{H: 8, L: 0, N: 2, W: 1}:         false,
		{H: 8, L: 1, N: 0, W: 2}:         false,
		{H: 8, L: 2, N: 0, W: 1}:         false,
		{H: 8, L: -1, N: 0, W: 1}:        false,
		{H: 8, L: 63, N: 0, W: 1}:        false,
		{H: 8, L: 0, N: -1, W: 1}:        false,
		{H: 8, L: 0, N: 1 << 60, W: 1}:   false,
		{H: 8, L: 0, N: 0, W: 0}:         false,
		{H: 8, L: 0, N: 0, W: 257}:       false,
		{H: 2, L: 0, N: 0, W: 4}:         false,
		{H: 8, L: 0, N: 1<<55 + 1, W: 4}: false,
	} {
		hashes, err := s.journal.Tile(t.Context(), tile)
		switch {
		case !there:
			if appliance.CodeOf(err) != appliance.CodeNotFound {
				t.Errorf("tile %+v: %d bytes, %v", tile, len(hashes), err)
			}
		case err != nil || len(hashes) != tile.W*tlog.HashSize:
			t.Errorf("tile %+v: %d bytes, %v", tile, len(hashes), err)
		}
	}
}

func verifies(t *testing.T, s suite) {
	t.Helper()
	tree := s.tree(t)
	var done, total int64
	report, err := s.journal.Verify(t.Context(), audit.Options{Progress: func(d, n int64) {
		done, total = d, n
	}})
	check(t, err)
	for _, damage := range report.Damages {
		if damage.Part != "api_key" { // these tests create keys without events; eventsOfKeys tests both
			t.Error(damage)
		}
	}
	if report.Size != tree.N || !bytes.Equal(report.Root, tree.Hash[:]) {
		t.Errorf("verified %d records with root %x, the checkpoint is of %d with root %x", report.Size, report.Root,
			tree.N, tree.Hash)
	}
	if done != tree.N || total != tree.N {
		t.Errorf("progress ended at %d of %d, not at %d", done, total, tree.N)
	}
}
