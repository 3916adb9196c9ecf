package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// Prove implements journal.Journal. The hashes are verified against the checkpoint.
func (j *Journal) Prove(ctx context.Context, index int64) (journal.InclusionProof, error) {
	none := func(err error) (journal.InclusionProof, error) { return journal.InclusionProof{}, err }
	h := j.store.safe.Load()
	if h == nil || index >= h.tree.N { // another appliance may have appended it
		known := h
		var err error
		if h, err = j.store.begun(ctx); err == nil {
			err = j.store.check(h, known)
		}
		if err == nil {
			if err = j.store.confirm(ctx, h); err != nil {
				err = answer(ctx, "prove a record", err)
			}
		}
		if err != nil {
			return none(err)
		}
	}
	if index < 0 || index >= h.tree.N {
		return none(appliance.Errorf(appliance.CodeNotFound, "no record %d", index))
	}
	hashes := j.store.hashes(ctx, h)
	path, err := tlog.ProveRecord(h.tree.N, index, hashes)
	if err != nil {
		return none(answer(ctx, "prove a record", err))
	}
	leaf, err := hashes.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
	if err != nil {
		return none(answer(ctx, "prove a record", err))
	}
	proof := journal.InclusionProof{
		Index: index, TreeSize: h.tree.N, Checkpoint: string(h.checkpoint), LeafHash: leaf[0][:],
		Hashes: make([][]byte, len(path)),
	}
	for i := range path {
		proof.Hashes[i] = path[i][:]
	}
	return proof, nil
}

// prove returns ErrForged unless each entry is the leaf at its index in the tree of h.
func (s *Store) prove(ctx context.Context, h *head, entries []journal.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	places := make([]int64, len(entries))
	for i, e := range entries {
		if e.Index < 0 || e.Index >= h.tree.N {
			return fmt.Errorf("%w: record %d is beyond the head's %d records", ErrForged, e.Index, h.tree.N)
		}
		places[i] = tlog.StoredHashIndex(0, e.Index)
	}
	hashes, err := s.hashes(ctx, h).ReadHashes(places)
	if err != nil {
		return fmt.Errorf("prove records: %w", err)
	}
	for i, e := range entries {
		if hashes[i] != tlog.RecordHash(e.Leaf) {
			return fmt.Errorf("%w: record %d differs from its leaf in the tree. For details run: attestd log verify",
				ErrForged, e.Index)
		}
	}
	return nil
}

// Tile implements journal.Journal.
func (j *Journal) Tile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	h, err := j.store.trusted(ctx)
	if err == nil {
		err = j.store.published(ctx, h)
	}
	if err != nil {
		return nil, err
	}
	if !inTree(t, h.tree.N) {
		return nil, appliance.Errorf(appliance.CodeNotFound, "no such tile")
	}
	data, err := (&tiles{ctx: ctx, store: j.store, head: h}).ReadTiles([]tlog.Tile{t})
	if err != nil {
		return nil, answer(ctx, "read a tile", err)
	}
	return data[0], nil
}

// inTree reports whether a tree of the given size has all hashes of a tile.
func inTree(t tlog.Tile, size int64) bool {
	if t.H != tileHeight || t.L < 0 || t.L > 7 || t.N < 0 || t.W < 1 || t.W > tileWidth {
		return false
	}
	hashes := size >> (tileHeight * t.L) // number of hashes on the level
	// the first so that the second cannot overflow
	return t.N <= hashes>>tileHeight && t.N<<tileHeight+int64(t.W) <= hashes
}

// hashes returns a reader that verifies each hash against the root of h.
func (s *Store) hashes(ctx context.Context, h *head) tlog.HashReader {
	return tlog.TileHashReader(h.tree, &tiles{ctx: ctx, store: s, head: h})
}

// tiles reads tiles from the database and caches them. Use it for one operation.
type tiles struct {
	ctx   context.Context
	store *Store
	head  *head
	kept  map[tlog.Tile][]byte
}

// Height implements tlog.TileReader.
func (t *tiles) Height() int { return tileHeight }

// SaveTiles implements tlog.TileReader. The tiles are verified.
func (t *tiles) SaveTiles(wanted []tlog.Tile, data [][]byte) {
	if t.kept == nil {
		t.kept = make(map[tlog.Tile][]byte)
	}
	for i, tile := range wanted {
		t.kept[tile] = data[i]
		t.store.tiles.add(cachedTile{t.head.log, t.head.generation, tile}, data[i])
	}
}

// cachedTile identifies a verified tile, also a partial one: a log only grows, so that the content of a tile of a width
// never changes. A reader verifies a cached tile against the root of its head again.
type cachedTile struct {
	log        string
	generation int64
	tile       tlog.Tile
}

// tileCache has verified tiles, of up to 8 KiB each. All methods are safe for concurrent use.
type tileCache struct {
	mu    sync.Mutex
	tiles map[cachedTile][]byte
}

// mostTiles is the number of tiles at which the cache is emptied.
const mostTiles = 256

func (c *tileCache) get(t cachedTile) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, found := c.tiles[t]
	return data, found
}

func (c *tileCache) add(t cachedTile, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tiles == nil || len(c.tiles) >= mostTiles {
		c.tiles = make(map[cachedTile][]byte)
	}
	c.tiles[t] = data
}

// ReadTiles implements tlog.TileReader, in one round trip.
func (t *tiles) ReadTiles(wanted []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(wanted))
	q := new(pgx.Batch)
	for i, tile := range wanted {
		if kept, found := t.kept[tile]; found {
			data[i] = kept
			continue
		}
		if kept, found := t.store.tiles.get(cachedTile{t.head.log, t.head.generation, tile}); found {
			data[i] = kept
			continue
		}
		first := tile.N << tileHeight
		end := first + int64(tile.W)
		query, args := "SELECT hash FROM records WHERE index >= $1 AND index < $2 ORDER BY index",
			[]any{first - t.head.continued, end - t.head.continued}
		if tile.L > 0 {
			query, args = "SELECT hash FROM hashes WHERE generation = $3 AND level = $4 AND n >= $1 AND n < $2 ORDER BY n", []any{first, end, t.head.generation, tile.L}
		}
		q.Queue(query, args...).Query(func(rows pgx.Rows) error { return t.read(rows, tile, &data[i]) })
	}
	if q.Len() == 0 {
		return data, nil
	}
	ctx, cancel := context.WithTimeout(t.ctx, readTimeout)
	defer cancel()
	return data, t.store.read.SendBatch(ctx, q).Close()
}

func (t *tiles) read(rows pgx.Rows, tile tlog.Tile, into *[]byte) error {
	data := make([]byte, 0, tile.W*tlog.HashSize)
	for rows.Next() {
		var hash []byte
		if err := rows.Scan(&hash); err != nil {
			return err
		}
		if len(hash) != tlog.HashSize {
			return fmt.Errorf("%w: a hash of %d bytes in tile %s", ErrDamaged, len(hash), tile.Path())
		}
		data = append(data, hash...)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(data) != tile.W*tlog.HashSize {
		return fmt.Errorf("%w: tile %s has %d hashes", ErrDamaged, tile.Path(), len(data)/tlog.HashSize)
	}
	*into = data
	return nil
}
