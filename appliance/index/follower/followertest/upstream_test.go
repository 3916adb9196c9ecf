package followertest_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/store/replica"
)

var began = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

func newUpstream(t *testing.T, transfers int) *followertest.Upstream {
	t.Helper()
	return followertest.NewUpstream(t, dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: began, Chains: 4})
}

func emptyReplica(t *testing.T) *replica.Store {
	t.Helper()
	return followertest.OpenReplica(t, filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
}

// copyOf returns an index with the rows of another after change; zero rows are left out.
func copyOf(t *testing.T, idx index.Index, change func(index.Row) index.Row) index.Index {
	t.Helper()
	to := emptyReplica(t)
	var rows []index.Row
	err := idx.View(t.Context(), func(s index.Snapshot) error {
		for _, kind := range index.RowTypes {
			err := s.Each(t.Context(), kind, func(row index.Row) error {
				if row = change(row.Clone()); !row.IsZero() {
					rows = append(rows, row)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = dataset.Sink(t.Context(), to)(rows)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestDifferencesAreNamed(t *testing.T) {
	u := newUpstream(t, 50)
	same := copyOf(t, u.Index, func(row index.Row) index.Row { return row })
	followertest.Equal(t, u.Index, same)
	followertest.AwaitEqual(t, time.Minute, u.Index, same)

	var changed, removed string
	amount := index.TransferType.MustField("base_amount").Number
	other := copyOf(t, u.Index, func(row index.Row) index.Row {
		switch {
		case row.Type() == index.TransferType && changed == "":
			changed = row.Key()
			row, err := row.WithText(amount, "7")
			if err != nil {
				t.Fatal(err)
			}
			return row
		case row.Type() == index.ChainType && removed == "":
			removed = row.Key()
			return index.Row{}
		}
		return row
	})
	differences := followertest.Differences(t, u.Index, other)
	if len(differences) != 2 || differences[0] != "chain "+removed+" is missing" ||
		!strings.HasPrefix(differences[1], "transfer "+changed+": base_amount is \"7\", want ") {
		t.Errorf("%q", differences)
	}
	if back := followertest.Differences(t, other, u.Index); len(back) != 2 ||
		back[0] != "chain "+removed+" is surplus" {
		t.Errorf("%q", back)
	}
	noted := recorder{TB: t}
	if followertest.Equal(&noted, u.Index, other); noted.errors != 1 {
		t.Errorf("%d complaints", noted.errors)
	}
}

func TestAClientPagesThroughAllRows(t *testing.T) {
	u := newUpstream(t, 250)
	for _, kind := range []*index.Type{index.PacketType, index.TransferType} {
		var want []string // oldest first
		err := u.Index.View(t.Context(), func(s index.Snapshot) error {
			return s.Each(t.Context(), kind, func(row index.Row) error { want = append(want, row.Key()); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []index.Direction{index.Older, index.Newer} {
			cursor := map[index.Direction]string{index.Newer: "0"}[d]
			pages := 0
			rows, err := followertest.Walk(t.Context(), u.URL, kind, cursor, d, 30, func() { pages++ })
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, row := range rows {
				got = append(got, row.Key)
			}
			if d == index.Older {
				slices.Reverse(got)
			}
			if !slices.Equal(got, want) || pages < len(want)/30 || rows[0].Status == "" {
				t.Errorf("%s, direction %d: %d rows in %d pages, want %d", kind.Name, d, len(got), pages, len(want))
			}
		}
	}
}

func TestAnUpstreamGoesOn(t *testing.T) {
	u := newUpstream(t, 20)
	before := total(t, u.Index)
	u.Late(1, 0)
	u.Grow(30, time.Minute)
	if n := total(t, u.Index) - before; n < 29 || n > 33 {
		t.Errorf("it has grown by %d", n)
	}
	if !u.Now().Equal(began.Add(time.Minute)) {
		t.Errorf("its clock stands at %s", u.Now())
	}
	before = total(t, u.Index)
	stop := u.Live(time.Millisecond, 3, 60)
	followertest.Await(t, time.Minute, "transfers", func() bool { return total(t, u.Index) > before+30 })
	stop()
	before = total(t, u.Index)
	time.Sleep(10 * time.Millisecond)
	if after := total(t, u.Index); after != before {
		t.Errorf("it has not stopped: %d, %d", before, after)
	}
}

func TestAnEmptyUpstreamHasNoRow(t *testing.T) {
	u := newUpstream(t, 0)
	followertest.Equal(t, emptyReplica(t), u.Index)
	u.Grow(3, time.Minute)
	if n := total(t, u.Index); n < 3 {
		t.Errorf("%d transfers", n)
	}
	if rows, err := followertest.Walk(t.Context(), u.URL, index.TransferType, "", index.Older, 100, nil); err != nil ||
		len(rows) < 3 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// total counts the transfers of an index.
func total(t *testing.T, idx index.Index) (n int) {
	t.Helper()
	err := idx.View(t.Context(), func(s index.Snapshot) error {
		status, err := s.Status(t.Context())
		n = int(status.Rows[index.TransferType.Name])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
