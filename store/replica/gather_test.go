package replica

import (
	"fmt"
	"slices"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// TestPagesAreFullThoughRowsDoNotPass checks that a page is full although rows are looked up in groups and some do not
// pass. Each row occurs once, in order.
func TestPagesAreFullThoughRowsDoNotPass(t *testing.T) {
	t.Parallel()
	const every = 3 // one row in so many passes
	r := newReplica(t)
	var rows []index.Row
	var want []string
	for i := range 10 * atOnce {
		transfer := index.Transfer{
			SortOrder: fmt.Sprintf("%08d", i), PacketHash: fmt.Sprintf("0x%064x", i), SourceUniversalChainID: "a.1",
			DestUniversalChainID: "b.1",
			SenderCanonical:      new("0xff"), TransferIndex: int32(i % every),
		}
		if i%every == 0 {
			want = append(want, transfer.SortOrder)
		}
		row, err := index.NewRow(transfer)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	write(t, r, index.Batch{Rows: rows})
	for _, direction := range []index.Direction{index.Older, index.Newer} {
		slices.Reverse(want) // newest first
		for _, limit := range []int32{1, atOnce/every + 1, atOnce, atOnce + 1, 100} {
			page := index.Page{Limit: &limit, Direction: direction, Cursor: "\x00"}
			if direction == index.Older {
				page.Cursor = ""
			}
			var got []string
			for {
				found := pageOf(t, r,
					index.TransferQuery{Page: page, Addresses: []string{"0xff"}, TransferIndex: new(int32(0))})
				if len(found) != min(int(limit), len(want)-len(got)) {
					t.Fatalf("limit %d, direction %d: %d rows after %d of %d", limit, direction, len(found), len(got),
						len(want))
				}
				if len(found) == 0 {
					break
				}
				got = append(got, found...)
				page.Cursor = got[len(got)-1]
			}
			if !slices.Equal(got, want) {
				t.Errorf("limit %d, direction %d: %q, want %q", limit, direction, got, want)
			}
		}
	}
}

// pageOf returns the sort_orders that a query finds.
func pageOf(t *testing.T, r *Store, q index.TransferQuery) (found []string) {
	t.Helper()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		rows, err := s.Transfers(t.Context(), q)
		for _, row := range rows {
			found = append(found, row.SortOrder())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
