package follower_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/store/replica"
)

// tied is an index unlike ours: several rows may have the same sort_order, and a cursor skips all of them. It wraps our
// index, which stores such rows under sort_order~key.
type tied struct{ index.Index }

func (x tied) View(ctx context.Context, read func(index.Snapshot) error) error {
	return x.Index.View(ctx, func(s index.Snapshot) error { return read(tiedSnapshot{s}) })
}

type tiedSnapshot struct{ index.Snapshot }

func (s tiedSnapshot) Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error) {
	q.Page = beyondTies(q.Page)
	rows, err := s.Snapshot.Transfers(ctx, q)
	return untie(rows), err
}

func (s tiedSnapshot) Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error) {
	q.Page = beyondTies(q.Page)
	rows, err := s.Snapshot.Packets(ctx, q)
	return untie(rows), err
}

// beyondTies makes an ascending page begin after all rows with the cursor's sort_order.
func beyondTies(p index.Page) index.Page {
	if p.Ascending() {
		p.Cursor = index.TieBreak(p.Cursor, "~")
	}
	return p
}

func untie(rows []index.Row) []index.Row {
	untied := slices.Clone(rows)
	for i, row := range rows {
		order, _, cut := strings.Cut(row.SortOrder(), "~")
		if !cut {
			continue
		}
		var err error
		if untied[i], err = row.WithText(row.Type().MustField("sort_order").Number, order); err != nil {
			panic(err) // cannot happen: row was valid
		}
	}
	return untied
}

// Rows of one sort_order may lie across the end of a page. Since the cursor is a sort_order, it would skip the rest of
// them. If one sort_order has more rows than a page, no client can list them all.
func TestRowsOfOneSortOrderMayStandAcrossAPagesEnd(t *testing.T) {
	t.Parallel()
	idx := followertest.OpenReplica(t, filepath.Join(t.TempDir(), "upstream.db"), replica.Options{})
	write := dataset.Sink(t.Context(), idx)
	groups := make(map[*index.Type]*group)
	tie := func(rows []index.Row) error {
		for i, row := range rows {
			rows[i] = groups[row.Type()].join(row)
		}
		return write(rows)
	}
	for _, kind := range index.RowTypes {
		groups[kind] = &group{}
	}
	groups[index.PacketType].size, groups[index.TransferType].size = 7, 9
	began := time.Now()
	world, err := dataset.NewWorld(t.Context(), dataset.GenerateOptions{Transfers: 280, Seed: 1, Now: began, Chains: 4},
		tie)
	if err != nil {
		t.Fatal(err)
	}

	proxy := followertest.NewProxy(t, followertest.Serve(t, graphql.Options{Index: tied{idx}}))
	opened := followertest.OpenReplica(t, filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	f := newFollower(t, proxy.URL(), opened)
	run(t, f)
	awaitSameButOrder(t, idx, opened)
	for i := range 2 { // new rows with the cursor's sort_order
		rows, err := world.Advance(began.Add(time.Duration(i+1)*time.Minute), 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := tie(rows); err != nil {
			t.Fatal(err)
		}
		awaitSameButOrder(t, idx, opened)
	}
}

// group gives runs of size rows the sort_order of the first of them.
type group struct {
	size   int // zero leaves every row its own sort_order
	count  int
	order  string
	joined map[string]string // sort_orders by key
}

func (g *group) join(row index.Row) index.Row {
	if g.size == 0 {
		return row
	}
	if g.joined == nil {
		g.joined = make(map[string]string)
	}
	order, known := g.joined[row.Key()]
	if !known {
		if g.count%g.size == 0 {
			g.order = row.SortOrder()
		}
		g.count++
		order = g.order
		g.joined[row.Key()] = order
	}
	row, err := row.WithText(row.Type().MustField("sort_order").Number, order)
	if err != nil {
		panic(err) // cannot happen: row was valid
	}
	return row
}

// awaitSameButOrder waits until two indexes have the same rows. It ignores sort_order, because the first row to arrive
// keeps the plain one.
func awaitSameButOrder(t *testing.T, want, got index.Index) {
	t.Helper()
	var differences []string
	same := func() bool {
		differences = slices.DeleteFunc(followertest.Differences(t, want, got), func(d string) bool {
			_, fields, _ := strings.Cut(d, ": ")
			return strings.HasPrefix(fields, "sort_order is ") && !strings.Contains(fields, ";")
		})
		return len(differences) == 0
	}
	if !followertest.Holds(within, same) {
		t.Fatalf("%d rows differ: %s", len(differences), differences[0])
	}
}
