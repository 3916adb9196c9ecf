package follower_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// fleeting is an index that overwrites its rows when a View ends, as unmapping the file may do.
type fleeting struct{ index.Index }

func (f fleeting) View(ctx context.Context, read func(index.Snapshot) error) error {
	lent := &lent{}
	defer lent.end()
	return f.Index.View(ctx, func(s index.Snapshot) error {
		lent.Snapshot = s
		return read(lent)
	})
}

type lent struct {
	index.Snapshot
	mu   sync.Mutex
	rows [][]byte
}

func (l *lent) row(row index.Row) index.Row {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = append(l.rows, bytes.Clone(row.Bytes()))
	return index.RowOf(row.Type(), l.rows[len(l.rows)-1])
}

func (l *lent) all(rows []index.Row, err error) ([]index.Row, error) {
	for i := range rows {
		rows[i] = l.row(rows[i])
	}
	return rows, err
}

// end clears the rows.
func (l *lent) end() {
	for _, row := range l.rows {
		clear(row)
	}
}

func (l *lent) Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error) {
	return l.all(l.Snapshot.Packets(ctx, q))
}

func (l *lent) Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error) {
	return l.all(l.Snapshot.Transfers(ctx, q))
}

func (l *lent) Unfinished(ctx context.Context, behind index.Row, yield func(index.Row) error) error {
	return l.Snapshot.Unfinished(ctx, behind, func(row index.Row) error { return yield(l.row(row)) })
}

func (l *lent) Unverified(ctx context.Context, yield func(index.Unverified) error) error {
	return l.Snapshot.Unverified(ctx, func(u index.Unverified) error {
		u.Row = l.row(u.Row)
		return yield(u)
	})
}

// Rows are not used after their View: an access to unmapped memory would end the process, which also signs.
func TestRowsAreNotUsedAfterTheirView(t *testing.T) {
	r := newRig(t, 60)
	r.sync(r.follower())
	r.upstream.Grow(200, time.Minute) // unfinished packets, which are looked up as they change
	f := newFollower(t, r.proxy.URL(), fleeting{r.index})
	run(t, f)
	stop := r.live()
	begun := rows(t, r.upstream.Index, index.TransferType)
	followertest.Await(t, within, "growth", func() bool {
		return rows(t, r.upstream.Index, index.TransferType) > begun+20
	})
	stop()
	r.awaitEqual()
	if s := f.Status(); strings.Contains(s.LastError, "cannot be read") || s.Unverified > 0 {
		t.Errorf("%+v", s)
	}
}
