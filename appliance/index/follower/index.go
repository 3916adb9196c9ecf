package follower

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// snapshot is the part of index.Snapshot that Follower and Verify use.
type snapshot interface {
	Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error)
	Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error)
	Each(ctx context.Context, t *index.Type, yield func(index.Row) error) error
	Sample(ctx context.Context, t *index.Type, n int) ([]index.Row, error)
	Unfinished(ctx context.Context, behind index.Row, yield func(index.Row) error) error
	Unverified(ctx context.Context, yield func(index.Unverified) error) error
	Status(ctx context.Context) (index.Status, error)
	Position(ctx context.Context, name string) (string, bool, error)
}

// view calls index.Index.View.
func view(ctx context.Context, of index.Index, read func(snapshot) error) error {
	return of.View(ctx, func(snap index.Snapshot) error { return read(snap) })
}

// packetOf returns the packet with this hash, or the zero row.
func packetOf(ctx context.Context, snap snapshot, hash string) (index.Row, error) {
	rows, err := snap.Packets(ctx, index.PacketQuery{Page: index.Page{Limit: new(int32(1))}, PacketHash: hash})
	if err != nil || len(rows) == 0 {
		return index.Row{}, err
	}
	return rows[0], nil
}

// sameIn returns the index's row with the key of row, or the zero row.
func sameIn(ctx context.Context, snap snapshot, row index.Row) (index.Row, error) {
	if row.Type() == index.PacketType {
		return packetOf(ctx, snap, row.Key())
	}
	number, _ := row.Int(index.TransferIndexColumn)
	rows, err := snap.Transfers(ctx, index.TransferQuery{
		Page: index.Page{Limit: new(int32(1))}, PacketHash: hashOf(row), TransferIndex: &number,
	})
	if err != nil || len(rows) == 0 {
		return index.Row{}, err
	}
	return rows[0], nil
}
