package replica

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/storetest"
)

// reopen opens a closed file.
func reopen(t *testing.T, path string, o Options) *Store {
	t.Helper()
	if o.Now == nil {
		o.Now = func() time.Time { return storetest.ReplicaNow }
	}
	r, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// doubted returns an unverified transfer, of a route that no other transfer has.
func doubted(t *testing.T, order, hash string) index.Unverified {
	t.Helper()
	row, err := index.NewRow(index.Transfer{SortOrder: order, PacketHash: hash, SourceUniversalChainID: "liar.1",
		DestUniversalChainID: "b.1"})
	if err != nil {
		t.Fatal(err)
	}
	return index.Unverified{Row: row, Reason: "of a liar"}
}

func write(t *testing.T, r *Store, b index.Batch) index.Written {
	t.Helper()
	written, err := r.Write(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func unverified(t *testing.T, r *Store) (all []index.Unverified) {
	t.Helper()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		return s.Unverified(t.Context(), func(u index.Unverified) error {
			u.Row = u.Row.Clone()
			all = append(all, u)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// served returns the sort_orders of the transfers from a source chain, newest first; an empty source means all chains.
func served(t *testing.T, r *Store, source string) (orders []string) {
	t.Helper()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		rows, err := s.Transfers(t.Context(), index.TransferQuery{SourceChain: source})
		for _, row := range rows {
			orders = append(orders, row.SortOrder())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return orders
}

func TestUnverifiedIsSinceItWasFirstQuarantined(t *testing.T) {
	t.Parallel()
	now := storetest.ReplicaNow
	r := reopen(t, filepath.Join(t.TempDir(), "replica.db"), Options{Now: func() time.Time { return now }})
	u := doubted(t, "1", "0x01")
	for _, step := range []struct {
		batch index.Batch
		want  index.Written
		since time.Duration // after ReplicaNow; negative if no row is quarantined
	}{
		{index.Batch{Unverified: []index.Unverified{u}}, index.Written{Inserted: 1}, 0},
		{index.Batch{Unverified: []index.Unverified{u}}, index.Written{Unchanged: 1}, 0},
		{index.Batch{Unverified: []index.Unverified{{Row: u.Row, Reason: "otherwise"}}}, index.Written{Updated: 1}, 0},
		{index.Batch{Unverified: []index.Unverified{doubted(t, "2", "0X01")}}, index.Written{Updated: 1}, 0},
		{index.Batch{Rows: []index.Row{u.Row}}, index.Written{Inserted: 1}, -1},
		{index.Batch{Unverified: []index.Unverified{u, u}}, index.Written{Inserted: 1, Unchanged: 1}, 5 * time.Hour},
		{index.Batch{Rows: []index.Row{u.Row}}, index.Written{Updated: 1}, -1},
		{index.Batch{Rows: []index.Row{u.Row}, Unverified: []index.Unverified{u}},
			index.Written{Unchanged: 1, Inserted: 1}, 7 * time.Hour},
	} {
		if written := write(t, r, step.batch); written != step.want {
			t.Errorf("%d hours in: wrote %+v, want %+v", now.Sub(storetest.ReplicaNow)/time.Hour, written, step.want)
		}
		switch all := unverified(t, r); {
		case step.since < 0 && len(all) > 0:
			t.Errorf("%+v is still kept apart", all)
		case step.since >= 0 && (len(all) != 1 || !all[0].Since.Equal(storetest.ReplicaNow.Add(step.since))):
			t.Errorf("kept apart are %+v, want one since %v", all, step.since)
		}
		now = now.Add(time.Hour)
	}
}

// TestUnverifiedRowsAreServedWhereAskedTo covers a route and an export that contain only unverified rows.
func TestUnverifiedRowsAreServedWhereAskedTo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := reopen(t, path, Options{})
	write(t, r, index.Batch{Rows: plain(20),
		Unverified: []index.Unverified{doubted(t, "1", "0x01aa"), doubted(t, "00000007", "0x02aa")}})
	before := export(t, r)
	for _, test := range []struct {
		o    Options
		want []string
	}{
		{Options{}, nil},
		{Options{ServeUnverified: true}, []string{"1", "00000007~0x02aa/0"}},
		{Options{ServeUnverified: true}, []string{"1", "00000007~0x02aa/0"}},
		{Options{ReadOnly: true}, []string{"1", "00000007~0x02aa/0"}},
		{Options{}, nil},
		{Options{ServeUnverified: true, ReadOnly: true}, nil},
	} {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = reopen(t, path, test.o)
		if got := served(t, r, "liar.1"); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%+v serves %q, want %q", test.o, got, test.want)
		}
		if now := string(export(t, r)); (now == string(before)) != (test.want == nil) {
			t.Errorf("%+v exports\n%s", test.o, now)
		}
		if all := unverified(t, r); len(all) != 2 {
			t.Errorf("%+v: %d are kept apart", test.o, len(all))
		}
	}
}

// TestServingIsSettledInSteps interrupts the conversion of a large file after its first step. Afterwards, rows and
// counts equal those of a file that was always opened with the final option.
func TestServingIsSettledInSteps(t *testing.T) {
	t.Parallel()
	var doubts []index.Unverified
	for i := range 2*settleAtOnce + 10 { // the first replaces a verified row
		doubts = append(doubts, doubted(t, fmt.Sprintf("x%05d", i), fmt.Sprintf("0x%064x", i)))
	}
	path := filepath.Join(t.TempDir(), "replica.db")
	var r *Store
	want := make(map[bool]string)
	for _, serve := range []bool{true, false} {
		path = filepath.Join(t.TempDir(), "replica.db")
		r = reopen(t, path, Options{ServeUnverified: serve})
		fill(t, r, 100)
		write(t, r, index.Batch{Rows: plain(100), Unverified: doubts})
		want[serve] = contents(t, r)
	}
	for _, serve := range []bool{true, false} {
		for _, then := range []bool{!serve, serve} {
			r.serveUnverified = serve
			next, err := r.settleStep(nil)
			if next == nil {
				t.Error("there is but one step")
			}
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatal(err)
			}
			r = reopen(t, path, Options{ServeUnverified: then})
			if contents(t, r) != want[then] {
				t.Errorf("to %v, then %v: the file is another", serve, then)
			}
		}
	}
}

// contents returns the export and all counts.
func contents(t *testing.T, r *Store) string {
	text := string(export(t, r))
	err := r.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketStats).ForEach(func(k, v []byte) error {
			text += fmt.Sprintf("%q %x\n", k, v)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestAnUpstreamMaySendAnyHashAndOrder checks that a row that cannot be served is quarantined, and that the file still
// opens.
func TestAnUpstreamMaySendAnyHashAndOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := reopen(t, path, Options{ServeUnverified: true})
	long := "0x" + strings.Repeat("ab", 50_000)
	taken := doubted(t, "7", "0x07").Row.Key()
	crowded := []index.Row{doubted(t, "7", "0x01").Row, doubted(t, index.TieBreak("7", taken), "0x02").Row}
	doubts := []index.Unverified{
		doubted(t, "1", long), doubted(t, "2", long[:len(long)-2]), // they differ in their last digits alone
		doubted(t, "7", "0x07"), // both sort_orders that it could use are taken
		doubted(t, "7", long+"cd"),
	}
	write(t, r, index.Batch{Rows: crowded, Unverified: doubts})
	for _, serve := range []bool{true, false, true} {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = reopen(t, path, Options{ServeUnverified: serve})
		want := []string{"7~0x07/0", "7"}
		if serve {
			want = []string{"7~0x07/0", "7", "2", "1"}
		}
		if got := served(t, r, "liar.1"); !reflect.DeepEqual(got, want) {
			t.Errorf("serving %v: %q, want %q", serve, got, want)
		}
		if all := unverified(t, r); len(all) != len(doubts) {
			t.Errorf("%d are kept apart, want %d", len(all), len(doubts))
		}
	}
	write(t, r, index.Batch{Rows: []index.Row{doubts[0].Row}})
	if all := unverified(t, r); len(all) != len(doubts)-1 {
		t.Errorf("%d are kept apart after a good row, want %d", len(all), len(doubts)-1)
	}
}

// TestWhatCannotBePutBackIsNotServed: while an unverified row was served, other rows took the sort_orders of the
// verified row.
func TestWhatCannotBePutBackIsNotServed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := reopen(t, path, Options{ServeUnverified: true})
	good := doubted(t, "7", "0x07")
	write(t, r, index.Batch{Rows: []index.Row{good.Row}})
	write(t, r, index.Batch{Unverified: []index.Unverified{doubted(t, "8", "0x07")}})
	write(t, r, index.Batch{Rows: []index.Row{doubted(t, "7", "0x01").Row,
		doubted(t, index.TieBreak("7", good.Row.Key()), "0x02").Row}})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = reopen(t, path, Options{})
	if got, want := served(t, r, ""), []string{"7~0x07/0", "7"}; !reflect.DeepEqual(got, want) {
		t.Errorf("served are %q, want %q", got, want)
	}
}

// TestReadersMayAskMoreWhileTheyAreYielded checks that a yield may read from the snapshot, stop, and run out of time.
func TestReadersMayAskMoreWhileTheyAreYielded(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 400)
	write(t, r, index.Batch{Unverified: []index.Unverified{doubted(t, "1", "0x01"), doubted(t, "2", "0x02")}})
	enough, ended := errors.New("enough"), expired(t)
	err := r.View(t.Context(), func(s index.Snapshot) error {
		ask := func() error {
			if _, err := s.Stats(t.Context()); err != nil {
				return err
			}
			return enough
		}
		for what, each := range map[string]func(ctx context.Context) error{
			"unfinished": func(ctx context.Context) error {
				return s.Unfinished(ctx, index.Row{}, func(index.Row) error { return ask() })
			},
			"unverified": func(ctx context.Context) error {
				return s.Unverified(ctx, func(index.Unverified) error { return ask() })
			},
		} {
			if err := each(t.Context()); !errors.Is(err, enough) {
				t.Errorf("%s: %v", what, err)
			}
			if err := each(ended); appliance.CodeOf(err) != appliance.CodeTimeout {
				t.Errorf("%s out of time: %v", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
