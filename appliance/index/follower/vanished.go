package follower

import (
	"context"
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// goneAfter is how many consecutive lookups must lack a row before it is removed, because an upstream may omit a row
// for a moment.
const goneAfter = 3

// maxVanishedPages bounds how many pages of the index are compared with one page of the upstream.
const maxVanishedPages = 10

// vanished adds rows that the upstream no longer has to the ingest's removals. It returns the packets that must be
// looked up again to be certain. It considers packets that the upstream does not return, and packets whose transfers
// were all read.
func (f *Follower) vanished(ctx context.Context, due []*watch, answers []answer,
	in *ingest) (uncertain []*watch, err error) {
	listed := make(map[index.RowID]bool)
	for _, row := range in.batch.Rows {
		listed[row.ID()] = true
	}
	for _, u := range in.batch.Unverified {
		listed[u.Row.ID()] = true
	}
	err = view(ctx, f.o.Index, func(snap snapshot) error {
		for i, e := range due {
			gone := answers[i].count == 0
			if !gone && !in.all[e.hash] {
				continue
			}
			here, err := namesOf(ctx, snap, e.hash)
			if err != nil {
				return err
			}
			if !gone || in.all[e.hash] {
				here = slices.DeleteFunc(here, func(id index.RowID) bool {
					return listed[id] || !gone && id.Type == index.PacketType
				})
			}
			switch {
			case len(here) == 0:
				e.gone = 0
			case e.gone+1 < goneAfter || !in.all[e.hash]:
				e.gone++
				uncertain = append(uncertain, e)
			default:
				e.gone, e.removed = 0, true
				in.batch.Removed = append(in.batch.Removed, here...)
			}
		}
		return nil
	})
	return uncertain, err
}

// namesOf returns the IDs of the index's rows of a packet: the packet itself and its transfers.
func namesOf(ctx context.Context, snap snapshot, hash string) (ids []index.RowID, err error) {
	packet, err := packetOf(ctx, snap, hash)
	if err != nil {
		return nil, err
	}
	if !packet.IsZero() {
		ids = append(ids, packet.ID())
	}
	q := index.TransferQuery{PacketHash: hash}
	for range maxTransferPages {
		rows, err := snap.Transfers(ctx, q)
		if err != nil || len(rows) == 0 {
			return ids, err
		}
		for _, row := range rows {
			ids = append(ids, row.ID())
		}
		q.Cursor = rows[len(rows)-1].SortOrder()
	}
	return ids, nil
}

// lookAgain schedules another complete lookup soon for packets of which the upstream did not return every row of the
// index.
func (f *Follower) lookAgain(uncertain []*watch) {
	now := f.o.Now()
	for _, e := range uncertain {
		e.looked = now
		f.watched.want(e, true)
		f.watched.set(e, now.Add(f.clampLookup(0)))
	}
}

// unlisted returns the packet hashes of rows that the index has between the first and the last row of an upstream page,
// but the page lacks. The page begins after the cursor; an empty cursor is the newest page. Pages that are not sorted
// in the index's order are skipped.
func unlisted(ctx context.Context, snap snapshot, t *index.Type, cursor string, a answer) (hashes []string, err error) {
	ordered := slices.IsSortedFunc(a.orders, func(x, y string) int { return strings.Compare(y, x) })
	if len(a.orders) == 0 || len(a.bad) > 0 || !ordered {
		return nil, nil
	}
	last := a.orders[len(a.orders)-1]
	listed := make(map[string]bool)
	for _, row := range a.rows {
		listed[row.Key()] = true
	}
	page := index.Page{Cursor: cursor}
	for range maxVanishedPages {
		var rows []index.Row
		if t == index.PacketType {
			rows, err = snap.Packets(ctx, index.PacketQuery{Page: page})
		} else {
			rows, err = snap.Transfers(ctx, index.TransferQuery{Page: page})
		}
		if err != nil || len(rows) == 0 {
			return hashes, err
		}
		for _, row := range rows {
			if row.SortOrder() < last {
				return hashes, nil
			}
			if !listed[row.Key()] {
				hashes = append(hashes, packetHashOf(row))
			}
		}
		page.Cursor = rows[len(rows)-1].SortOrder()
	}
	return hashes, nil
}

// absent returns the rows of a small table that the index has and rows lacks. rows is one reading of the whole table.
// An empty reading is not trusted: absent then returns no rows.
func (f *Follower) absent(ctx context.Context, t *index.Type, rows []index.Row) (ids []index.RowID, err error) {
	if len(rows) == 0 {
		return nil, nil
	}
	listed := make(map[string]bool)
	for _, row := range rows {
		listed[row.Key()] = true
	}
	err = view(ctx, f.o.Index, func(snap snapshot) error {
		return snap.Each(ctx, t, func(row index.Row) error {
			if key := row.Key(); !listed[key] {
				ids = append(ids, index.RowID{Type: t, Key: key})
			}
			return nil
		})
	})
	return ids, err
}
