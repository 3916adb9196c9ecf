package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// touchedBy returns how many keys a query reads.
func touchedBy(t *testing.T, r *Store, q index.TransferQuery) (rows int, touched uint64) {
	t.Helper()
	before := r.touched.Load()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		found, err := s.Transfers(t.Context(), q)
		rows = len(found)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows, r.touched.Load() - before
}

// plain returns transfers of one busy route, sent by two accounts in turn, and a few of others scattered among them.
func plain(n int) []index.Row {
	var rows []index.Row
	for i := range n {
		transfer := index.Transfer{
			SortOrder: fmt.Sprintf("%08d", i), PacketHash: fmt.Sprintf("0x%064x", i), SourceUniversalChainID: "a.1",
			DestUniversalChainID: "b.1",
			SenderCanonical:      new(fmt.Sprintf("0x%040x", i%2)), ReceiverCanonical: new("0xff"),
			SendTransactionHash: new(fmt.Sprintf("0x%064x", 1_000_000+i)),
		}
		if i%(n/5) == 1 {
			transfer.SenderCanonical, transfer.DestUniversalChainID = new("0xrare"), "c.1"
		}
		row, err := index.NewRow(transfer)
		if err != nil {
			panic(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestCostGrowsWithThePage checks that the number of keys a query reads does not grow with the rows that it skips.
func TestCostGrowsWithThePage(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2_000, 20_000} {
		r := newReplica(t)
		if _, err := r.Write(t.Context(), index.Batch{Rows: plain(n)}); err != nil {
			t.Fatal(err)
		}
		middle := index.Page{Cursor: fmt.Sprintf("%08d", n/2)}
		back := index.Page{Cursor: fmt.Sprintf("%08d", n/2), Direction: index.Newer}
		for _, test := range []struct {
			name string
			q    index.TransferQuery
			rows int
			most uint64
		}{
			{"first page", index.TransferQuery{}, 100, 100},
			{"middle page", index.TransferQuery{Page: middle}, 100, 101},
			{"middle page, newer", index.TransferQuery{Page: back}, 100, 101},
			{"transaction", index.TransferQuery{TransactionHash: fmt.Sprintf("0x%064x", 1_000_000+n/2)}, 1, 4},
			{"packet", index.TransferQuery{PacketHash: fmt.Sprintf("0x%064x", n/2)}, 1, 4},
			{"no such packet", index.TransferQuery{PacketHash: "0x77"}, 0, 1},
			{"busy account", index.TransferQuery{Addresses: []string{"0xFF"}}, 100, 210},
			{"rare account", index.TransferQuery{Addresses: []string{"0xrare"}}, 5, 15},
			{"rare account of the busy route's source",
				index.TransferQuery{Addresses: []string{"0xrare"}, SourceChain: "a.1"}, 5, 40},
			{"rare route of a busy account", index.TransferQuery{Addresses: []string{"0xff"}, DestinationChain: "c.1"},
				5, 40},
			{"rare route of another account", index.TransferQuery{Addresses: []string{"0x" + fmt.Sprintf("%040x", 0)},
				DestinationChain: "c.1"}, 0, 40},
			{"no such transfer_index", index.TransferQuery{TransferIndex: new(int32(3))}, 0, 1},
			{"the network of all chains", index.TransferQuery{Network: index.Mainnet}, 100, 100},
			{"the network of none", index.TransferQuery{Network: index.Testnet}, 0, 0},
			{"no addresses", index.TransferQuery{Addresses: []string{}}, 0, 0},
		} {
			rows, touched := touchedBy(t, r, test.q)
			if rows != test.rows || touched > test.most {
				t.Errorf("%d transfers, %s: %d rows, %d keys; want %d, at most %d", n, test.name, rows, touched,
					test.rows, test.most)
			}
		}
	}
}

// TestASmallBatchRewritesLittle checks that a batch rewrites pages in proportion to its own rows. Keys that larger
// batches left for merging are merged gradually.
func TestASmallBatchRewritesLittle(t *testing.T) {
	t.Parallel()
	const many, few = 20_000, 10
	r := reopen(t, filepath.Join(t.TempDir(), "replica.db"), Options{recentKeys: few})
	rows := plain(2*many + 3*few)
	written := func(n int) (pages int64) {
		t.Helper()
		before := r.db.Stats().TxStats
		if _, err := r.Write(t.Context(), index.Batch{Rows: rows[:n]}); err != nil {
			t.Fatal(err)
		}
		rows = rows[n:]
		after := r.db.Stats().TxStats
		return (after.GetPageAlloc() - before.GetPageAlloc()) / r.pageSize
	}
	recent := func() (keys uint64) {
		_ = r.db.View(func(tx *bbolt.Tx) error {
			keys = tx.Bucket(transferByHash.recent).Sequence()
			return nil
		})
		return keys
	}
	written(many) // into the main buckets, which are empty
	written(many) // into the recent buckets
	for left := recent(); len(rows) > 0; left = recent() {
		// Three buckets have postings in random order. Each key costs a page, a page for the keys that it displaces,
		// and their branches.
		if pages := written(few); pages > 3*(2*few+4) {
			t.Errorf("%d rows behind %d keys to merge: %d pages are written", few, left, pages)
		}
		if now := recent(); now >= left {
			t.Errorf("%d keys were to be merged, and %d are still", left, now)
		}
	}
}

// TestLateRowsShareTheirPages checks that late rows, a few per batch, do not begin a page each.
func TestLateRowsShareTheirPages(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	rows := plain(9000)
	var late []index.Row
	inTime := slices.DeleteFunc(slices.Clone(rows), func(row index.Row) bool {
		isLate := strings.HasSuffix(row.SortOrder(), "5")
		if isLate {
			late = append(late, row)
		}
		return isLate
	})
	write(t, r, index.Batch{Rows: inTime})
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	for batch := range slices.Chunk(late, 10) {
		write(t, r, index.Batch{Rows: batch})
	}
	check(t, r.view(func(tx *bbolt.Tx) error {
		s := tx.Bucket(transfers.rows).Stats()
		if full := float64(s.LeafInuse) / float64(s.LeafAlloc); s.KeyN != len(rows) || full < 0.5 {
			t.Errorf("%d pages of %d rows are %.0f %% full, want 50", s.LeafPageN, s.KeyN, 100*full)
		}
		return nil
	}))
}

// TestReadersSeeOneMoment checks that a view neither waits for a later write nor sees it.
func TestReadersSeeOneMoment(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	rows := plain(3000)
	if _, err := r.Write(t.Context(), index.Batch{Rows: rows[:1000]}); err != nil {
		t.Fatal(err)
	}
	err := r.View(t.Context(), func(s index.Snapshot) error {
		first, err := s.Transfers(t.Context(), index.TransferQuery{})
		if err != nil {
			return err
		}
		before := first[0].Clone()
		written := make(chan error)
		go func() {
			_, err := r.Write(context.WithoutCancel(t.Context()), index.Batch{Rows: rows[1000:]})
			written <- err
		}()
		if err := <-written; err != nil { // while this view is open
			return err
		}
		again, err := s.Transfers(t.Context(), index.TransferQuery{})
		if err != nil {
			return err
		}
		if string(again[0].Bytes()) != string(before.Bytes()) || string(first[0].Bytes()) != string(before.Bytes()) {
			t.Error("the view has changed under its reader")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := touchedBy(t, r, index.TransferQuery{Page: index.Page{Cursor: "00003000"}}); found != 100 {
		t.Errorf("%d rows afterwards", found)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := openReplica(t, path)
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", stat.Mode(), err)
	}
	if _, err := Open(path, Options{LockTimeout: time.Millisecond}); err == nil {
		t.Error("opened twice")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	for _, key := range [][]byte{keyLayout, keyFormat} {
		t.Run(string(key), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "replica.db")
			r := openReplica(t, path)
			err := r.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(key, []byte("0")) })
			if err != nil || r.Close() != nil {
				t.Fatal(err)
			}
			for _, o := range []Options{{}, {ReadOnly: true}} {
				if _, err := Open(path, o); !errors.Is(err, ErrSchema) {
					t.Errorf("%+v: %v", o, err)
				}
			}
		})
	}
}

func TestStatusAndHealth(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 400)
	err := r.View(t.Context(), func(s index.Snapshot) error {
		status, err := s.Status(t.Context())
		if err != nil || status.Rows["transfer"] != 400 || status.Rows["chain"] != 14 || status.Bytes == 0 ||
			!status.Newest.After(status.Oldest) {
			t.Errorf("%+v, %v", status, err)
		}
		checks, err := s.Health(t.Context())
		if err != nil || len(checks) != 2 || checks[0].Environment != index.Mainnet ||
			checks[0].Status != index.HealthOK {
			t.Errorf("%+v, %v", checks, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRelated follows a transfer to its chains, its tokens, and its packet with traces.
func TestRelated(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 400)
	err := r.View(t.Context(), func(s index.Snapshot) error {
		rows, err := s.Transfers(t.Context(), index.TransferQuery{})
		if err != nil {
			return err
		}
		tokens := 0
		for _, row := range rows {
			for _, relation := range row.Type().Relations {
				related := s.Related(row, relation)
				if relation.To == index.TokenType {
					if !related.IsZero() {
						tokens++
					}
					continue
				}
				if related.Key() != string(row.AppendKey(nil, relation.By)) {
					t.Errorf("%s leads to %q", relation.Name, related.Key())
				}
			}
			packet, _ := row.Type().Relation("packet")
			if s.Related(row, packet).Len(index.PacketType.MustField("traces").Number) < 6 {
				t.Error("no traces")
			}
		}
		if tokens < len(rows) {
			t.Errorf("%d tokens of %d transfers", tokens, len(rows))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBatchesAreAtomic checks that a failed batch leaves no trace.
func TestBatchesAreAtomic(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	fill(t, r, 50)
	before := export(t, r)
	trace := index.RowOf(index.TraceType, []byte{0, 2})
	_, err := r.Write(t.Context(), index.Batch{Rows: append(plain(100), trace), Positions: map[string]string{"x": "y"}})
	if appliance.CodeOf(err) != appliance.CodeInvalidField {
		t.Errorf("a trace is taken for a row: %v", err)
	}
	if string(export(t, r)) != string(before) {
		t.Error("half a batch was written")
	}
	_ = r.View(t.Context(), func(s index.Snapshot) error {
		if _, ok, _ := s.Position(t.Context(), "x"); ok {
			t.Error("a position was written")
		}
		return nil
	})
}
