package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/attestd/attestd/appliance/index"
)

// keptBlocks is how many of the newest indexed blocks can be undone after a reorganisation.
const keptBlocks = 256

// CodeReorganised is the Status.Code of a chain that was reorganised below the blocks that can be undone.
const CodeReorganised = "chain_reorganised"

// errReorganised says that the last block read is no longer on the chain.
var errReorganised = errors.New("the chain was reorganised")

// undo has the changes of a range of blocks. The index stores it as a position, under undoName.
//
// Only events of a chain change the rows of its clients, connections and channels, so their earlier values are stored.
// Events of two chains change the row of a packet, in any order. The steps that a chain has added are therefore taken
// out of the row as it is now.
type undo struct {
	Before *progress `json:"before"` // nil if no block was read before the range
	// Packets are the hashes of packets that may have a step in the range.
	Packets []string `json:"packets,omitempty"`
	Rows    []string `json:"rows,omitempty"`  // of clients, connections and channels, before the range; as lines of JSON
	Added   []string `json:"added,omitempty"` // such rows that did not exist before the range
	// Positions are the earlier values of positions, empty if there was none.
	Positions map[string]string `json:"positions,omitempty"`
}

// undoName is the name of the position with the undo of a range that ends with a block.
func undoName(chain string, last uint64) string {
	return "indexer undo " + chain + " " + strconv.FormatUint(last, 10)
}

// keepUndo stores the undo of a range with its batch, and removes old ones. A range far below the head has none. Ranges
// below it cannot be undone then.
func (r *reader) keepUndo(batch *index.Batch, u *undo, to *progress, undoable bool) error {
	kept := slices.Clone(r.at.Kept)
	if undoable {
		u.Before = nil
		if r.begun {
			before := r.at
			before.Kept = nil
			u.Before = &before
		}
		raw, err := json.Marshal(u)
		if err != nil {
			return err
		}
		batch.Positions[undoName(r.ID, to.Block.Number)] = string(raw)
		kept = append(kept, to.Block.Number)
	}
	for len(kept) > 0 && (!undoable || kept[0]+keptBlocks <= to.Block.Number) {
		batch.Positions[undoName(r.ID, kept[0])] = ""
		kept = kept[1:]
	}
	to.Kept = kept
	return nil
}

// extendUndo adds the packets of a rescan to the undo of the newest range, if the rescan has reached blocks that may be
// undone: it may have found events that an earlier read has missed.
func (r *reader) extendUndo(ctx context.Context, snap snapshot, batch *index.Batch, packets []string,
	last uint64) error {
	if len(r.at.Kept) == 0 || last+2*keptBlocks < r.at.Block.Number {
		return nil
	}
	name := undoName(r.ID, r.at.Kept[len(r.at.Kept)-1])
	u, err := loadUndo(ctx, snap, name)
	if err != nil {
		return err
	}
	u.Packets = append(u.Packets, packets...)
	slices.Sort(u.Packets)
	u.Packets = slices.Compact(u.Packets)
	raw, err := json.Marshal(u)
	batch.Positions[name] = string(raw)
	return err
}

func loadUndo(ctx context.Context, snap snapshot, name string) (u undo, err error) {
	text, _, err := snap.Position(ctx, name)
	if err == nil {
		err = json.Unmarshal([]byte(text), &u)
	}
	return u, err
}

// undo undoes the newest range. The reader compares the block before it with the chain next.
func (r *reader) undo(ctx context.Context) error {
	if err := r.identify(ctx); err != nil {
		return err // an RPC that serves another chain now
	}
	r.loaded = false
	was := r.at.Block
	if len(r.at.Kept) == 0 {
		if again := r.asked(); again != nil {
			return r.rewind(ctx, *again)
		}
		return &Contradiction{Code: CodeReorganised,
			Text: fmt.Sprintf("block %d of chain %s was %s and has another hash now: the chain was reorganised below "+
				"the %d newest blocks, which can be undone", was.Number, r.ID, was.Hash, keptBlocks),
			Remedy: fmt.Sprintf("attestd indexer rescan --chain %s --from BLOCK --to %d, with a BLOCK before the "+
				"reorganisation; set more confirmations in indexer.chains", r.ID, was.Number)}
	}
	last := r.at.Kept[len(r.at.Kept)-1]
	err := r.x.revert(ctx, r, func(snap index.Snapshot) (u undo, err error) {
		if u, err = loadUndo(ctx, snap, undoName(r.ID, last)); err != nil {
			return u, err
		}
		u.Positions = withPosition(u.Positions, undoName(r.ID, last), "")
		if u.Before != nil {
			u.Before.Kept = r.at.Kept[:len(r.at.Kept)-1]
		}
		return u, nil
	})
	if err != nil {
		return err
	}
	r.change(func(s *Status) { s.Undone++ })
	if r.undone++; r.undone <= undoneLines {
		r.log.Warn("indexer: the chain was reorganised; blocks are undone and read again", "block", was.Number,
			"hash", was.Hash.String())
	}
	return nil
}

func withPosition(positions map[string]string, name, value string) map[string]string {
	if positions == nil {
		positions = make(map[string]string)
	}
	positions[name] = value
	return positions
}

// rewind takes all steps from a rescan's first block on out of the packets, and reads on there. It follows a
// reorganisation that is deeper than the kept ranges.
func (r *reader) rewind(ctx context.Context, again Range) error {
	var before *progress
	if again.From > r.FromBlock {
		found, err := r.agree(ctx, query{first: again.From - 1, last: again.From - 1})
		if err != nil {
			return err
		}
		before = new(r.at)
		before.Block = found.last
	}
	err := r.x.revert(ctx, r, func(snap index.Snapshot) (undo, error) {
		u, err := r.scan(ctx, snap, again.From)
		u.Before, u.Positions = before, withPosition(u.Positions, rescanName(r.ID), "")
		return u, err
	})
	if err == nil {
		r.log.Warn("indexer: the chain is read again after a deep reorganisation", "from", again.From)
	}
	return err
}

// scan returns the undo of all blocks from first on. The clients, connections and channels that they opened stay.
func (r *reader) scan(ctx context.Context, snap index.Snapshot, first uint64) (u undo, err error) {
	err = snap.Each(ctx, index.PacketType, func(row index.Row) error {
		var p index.Packet
		if err := row.Decode(&p); err != nil {
			return err
		}
		if p.SourceUniversalChainID == r.ID || p.DestUniversalChainID == r.ID {
			u.Packets = append(u.Packets, p.PacketHash)
		}
		return nil
	})
	if err != nil {
		return u, err
	}
	err = snap.Each(ctx, index.ClientType, func(row index.Row) error {
		var c index.Client
		if err := row.Decode(&c); err != nil {
			return err
		}
		if c.UniversalChainID != r.ID || c.Status == nil || !reaches(c.Status.Height, first) {
			return nil
		}
		c.Status = nil
		cleared, err := index.NewRow(c)
		u.Rows = append(u.Rows, string(cleared.AppendLine(nil)))
		u.Positions = withPosition(u.Positions, updateName(keyOf(r.ID, uint32(c.ClientID))), "")
		return err
	})
	return u, err
}

// reaches reports whether a height is first or above.
func reaches(height *string, first uint64) bool {
	if height == nil {
		return false
	}
	n, err := strconv.ParseUint(*height, 10, 64)
	return err == nil && n >= first
}

// revert undoes the changes of a chain's blocks in one batch.
func (x *Indexer) revert(ctx context.Context, r *reader, load func(index.Snapshot) (undo, error)) error {
	x.writing.Lock()
	defer x.writing.Unlock()
	var batch index.Batch
	err := x.o.Index.View(ctx, func(snap index.Snapshot) error {
		u, err := load(snap)
		if err != nil {
			return err
		}
		first, progress := r.FromBlock, ""
		if u.Before != nil {
			first = u.Before.Block.Number + 1
			raw, err := json.Marshal(u.Before)
			if err != nil {
				return err
			}
			progress = string(raw)
		}
		b := newBook(snap, x, false)
		for _, hash := range u.Packets {
			if err := b.takeBack(ctx, hash, r.ID, first); err != nil {
				return err
			}
		}
		if batch, _, err = b.batch(ctx); err != nil {
			return err
		}
		maps.Copy(batch.Positions, u.Positions)
		batch.Positions[progressName(r.ID)] = progress
		if u.Before != nil {
			row, err := index.NewRow(r.row(*u.Before))
			if err != nil {
				return err
			}
			batch.Rows = append(batch.Rows, row)
		}
		return u.tables(&batch)
	})
	if err != nil {
		return err
	}
	_, err = x.o.Index.Write(ctx, batch)
	return err
}

// tables adds the earlier rows of clients, connections and channels to a batch.
func (u *undo) tables(batch *index.Batch) error {
	for _, line := range u.Rows {
		row, err := index.ParseLine([]byte(line))
		if err != nil {
			return err
		}
		batch.Rows = append(batch.Rows, row)
	}
	for _, line := range u.Added {
		row, err := index.ParseLine([]byte(line))
		if err != nil {
			return err
		}
		batch.Removed = append(batch.Removed, row.ID())
	}
	return nil
}

// takeBack takes the steps of a chain's blocks from first on out of a packet. Steps of the other chain wait again if
// the packet's sending is among them.
func (b *book) takeBack(ctx context.Context, hash, chain string, first uint64) error {
	isUndone := func(s *step) bool { return s.At.UniversalChainID == chain && reaches(s.At.Height, first) }
	waiting, err := b.waitingFor(ctx, hash)
	if err != nil {
		return err
	}
	b.waiting[hash] = slices.DeleteFunc(waiting, isUndone)
	p, err := b.packet(ctx, hash)
	if err != nil || !p.exists || len(p.row.Traces) != atAck+1 {
		return err
	}
	steps := stepsOf(&p.row)
	left := slices.DeleteFunc(slices.Clone(steps), isUndone)
	switch {
	case p.row.SourceUniversalChainID == chain && reaches(p.row.SendHeight, first):
		b.waiting[hash] = append(b.waiting[hash], left...)
		return b.remove(p)
	case len(left) < len(steps):
		forget(&p.row)
		for _, s := range left {
			take(&p.row, s)
		}
		p.changed = true
	}
	return nil
}

// remove removes a packet with its transfer and its proof.
func (b *book) remove(p *entry[index.Packet]) error {
	b.positions[index.ProofPosition(p.row.PacketHash)] = ""
	row, err := index.NewRow(p.row)
	if err != nil {
		return err
	}
	b.removed = append(b.removed, row.ID())
	if t, ok := transferOf(&p.row, b.ports); ok {
		if row, err = index.NewRow(t); err != nil {
			return err
		}
		b.removed = append(b.removed, row.ID())
	}
	return nil
}
