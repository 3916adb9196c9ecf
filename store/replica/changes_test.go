package replica

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

func changedPacket(t *testing.T, n int, status string, sent time.Time) index.Row {
	t.Helper()
	row, err := index.NewRow(index.Packet{SortOrder: fmt.Sprintf("%09d", n), PacketHash: fmt.Sprintf("0x%064x", n),
		Status: &status, SourceUniversalChainID: "a.1", DestUniversalChainID: "b.2", SendTimestamp: &sent})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func loggedChanges(t *testing.T, r *Store, from int64) (all []string) {
	t.Helper()
	check(t, r.ReadChanges(context.Background(), from, func(c index.Change) error {
		all = append(all, fmt.Sprintf("%d %s %s", c.Number, c.Row.SortOrder(), c.Status))
		return nil
	}))
	return all
}

// New statuses and newer rows are logged in order, also across a restart. Rows of a backfill, and rows that only
// changed otherwise, are not.
func TestChangesAreLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replica.db")
	now := time.Now()
	r, err := Open(path, Options{Now: func() time.Time { return now }})
	check(t, err)
	old := now.Add(-24 * time.Hour)
	write := func(rows ...index.Row) {
		t.Helper()
		_, err := r.Write(context.Background(), index.Batch{Rows: rows})
		check(t, err)
	}
	write(changedPacket(t, 50, "SEND", old))                                   // the first rows are of a backfill
	write(changedPacket(t, 40, "SEND", old))                                   // older than the newest
	write(changedPacket(t, 60, "SEND", old), changedPacket(t, 50, "ACK", old)) // newer; a new status
	write(changedPacket(t, 45, "SEND", now))                                   // late, but recent
	write(changedPacket(t, 60, "SEND", old.Add(time.Second)))                  // the status is the same
	check(t, r.Close())
	r, err = Open(path, Options{Now: func() time.Time { return now.Add(time.Minute) }})
	check(t, err)
	t.Cleanup(func() { r.Close() })
	write(changedPacket(t, 45, "RECV", now))
	want := []string{"1 000000060 SEND", "2 000000050 ACK", "3 000000045 SEND", "4 000000045 RECV"}
	if got := loggedChanges(t, r, 0); !slices.Equal(got, want) {
		t.Errorf("logged: %q", got)
	}
	if got := loggedChanges(t, r, 4); !slices.Equal(got, want[3:]) {
		t.Errorf("from 4: %q", got)
	}
	if _, oldest, next, err := r.Changed(context.Background()); err != nil || oldest != 1 || next != 5 {
		t.Errorf("from %d to %d, %v", oldest, next, err)
	}
	for at, want := range map[time.Duration]int64{0: 1, time.Second: 4, time.Hour: 5} {
		n, reaches, err := r.ChangedSince(context.Background(), now.Add(at))
		if err != nil || n != want || reaches != (at > 0) {
			t.Errorf("since %s: %d, %t, %v", at, n, reaches, err)
		}
	}
}

func TestTheLogOfChangesIsBounded(t *testing.T) {
	r := newReplica(t)
	now := r.now()
	for n := 0; n < keptChanges+2000; n += 2000 {
		rows := make([]index.Row, 2000)
		for i := range rows {
			rows[i] = changedPacket(t, 1+n+i, "SEND", now)
		}
		_, err := r.Write(context.Background(), index.Batch{Rows: rows})
		check(t, err)
	}
	_, oldest, next, err := r.Changed(context.Background())
	check(t, err)
	if next-oldest != keptChanges || oldest == 1 {
		t.Errorf("the log has the changes %d to %d", oldest, next)
	}
}

// A stream of another replica continues at a replica without packets: no change is missing there.
func TestALogWithoutChangesHasAllChanges(t *testing.T) {
	r := newReplica(t)
	_, reaches, err := r.ChangedSince(context.Background(), r.now().Add(-time.Hour))
	check(t, err)
	if !reaches {
		t.Error("an empty log of changes is said to lack changes")
	}
}
