package follower

import (
	"context"
	"slices"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// removedFrom returns the rows of a small table that the upstream no longer has. A row counts as removed if two
// readings of the whole table lack it.
func (f *Follower) removedFrom(ctx context.Context, t *index.Type, rows []index.Row,
	bad []error) ([]index.RowID, error) {
	ids, err := f.absent(ctx, t, rows)
	if len(ids) == 0 || len(bad) > 0 || err != nil {
		return nil, err
	}
	var again []index.Row
	err = f.inTurn(ctx, func() (err error) {
		again, bad, err = f.reader.table(ctx, t)
		return err
	})
	if err != nil || len(bad) > 0 {
		return nil, err
	}
	still, err := f.absent(ctx, t, again)
	return slices.DeleteFunc(ids, func(id index.RowID) bool { return !slices.Contains(still, id) }), err
}

// write writes a batch, logs removed and quarantined rows, and updates the status.
func (f *Follower) write(ctx context.Context, b index.Batch) error {
	if len(b.Rows)+len(b.Unverified)+len(b.Withdrawn)+len(b.Removed)+len(b.Positions) == 0 {
		return nil
	}
	b.Index = f.index
	written, err := f.o.Index.Write(ctx, b)
	if appliance.CodeOf(err) == appliance.CodeInvalidField {
		written, err = f.writeSingly(ctx, b)
	}
	if err != nil {
		return err
	}
	f.update(func(s *Status) {
		s.Written += uint64(written.Inserted + written.Updated)
		s.Removed += uint64(written.Removed)
	})
	for _, id := range b.Removed[:min(len(b.Removed), f.warnings)] {
		f.warnings--
		f.o.Log.Warn("the upstream no longer has a row; the replica removes it", "upstream", f.o.Address,
			"kind", id.Type.Name, "key", id.Key)
	}
	for _, u := range b.Unverified[:min(len(b.Unverified), f.warnings)] {
		f.warnings--
		f.o.Log.Warn("a row of the upstream does not verify and is quarantined",
			"kind", u.Row.Type().Name, "key", u.Row.Key(), "reason", u.Reason)
	}
	return f.measure(ctx)
}

// writeSingly writes a batch row by row after the index has refused it, so that only the invalid packets and transfers
// are quarantined. Invalid rows of other types are reported. The positions are written last.
func (f *Follower) writeSingly(ctx context.Context, b index.Batch) (all index.Written, err error) {
	rest := index.Batch{Index: b.Index, Positions: b.Positions, Unverified: b.Unverified, Withdrawn: b.Withdrawn,
		Removed: b.Removed}
	for _, row := range b.Rows {
		written, err := f.o.Index.Write(ctx, index.Batch{Index: b.Index, Rows: []index.Row{row}})
		switch {
		case appliance.CodeOf(err) != appliance.CodeInvalidField:
		case row.Type() == index.PacketType || row.Type() == index.TransferType:
			rest.Unverified = append(rest.Unverified, index.Unverified{Row: row, Reason: err.Error()})
			err = nil
		default:
			f.report([]error{err})
			err = nil
		}
		if err != nil {
			return all, err
		}
		all.Add(written)
	}
	written, err := f.o.Index.Write(ctx, rest)
	all.Add(written)
	return all, err
}

// measure updates the status from the index.
func (f *Follower) measure(ctx context.Context) error {
	return view(ctx, f.o.Index, func(snap snapshot) error {
		here, err := snap.Status(ctx)
		if err != nil {
			return err
		}
		f.update(func(s *Status) {
			s.Newest, s.Oldest, s.Unverified, s.Unfinished = here.Newest, here.Oldest, here.Unverified,
				len(f.watched.by)
			s.Waiting = uint64(f.watched.waiting)
			if s.Rows == nil {
				return
			}
			for _, t := range []*index.Type{index.PacketType, index.TransferType} {
				s.Rows[t.Name] = Count{Here: here.Rows[t.Name], Upstream: s.Rows[t.Name].Upstream}
			}
			s.LagRows = f.behind(here)
			s.SurplusRows = surplus(s.Rows)
		})
		return nil
	})
}

// behind returns how many rows the upstream has that the index lacks. Quarantined rows count as present. The caller
// holds f.mu.
func (f *Follower) behind(here index.Status) int64 {
	upstream, have := uint64(0), here.Held()
	for _, n := range f.status.Rows {
		upstream += n.Upstream
	}
	if upstream <= have {
		return 0
	}
	return int64(upstream - have)
}

// surplus returns how many rows the index has beyond the upstream's counts.
func surplus(rows map[string]Count) (n int64) {
	for _, count := range rows {
		if count.Upstream > 0 && count.Here > count.Upstream {
			n += int64(count.Here - count.Upstream)
		}
	}
	return n
}
