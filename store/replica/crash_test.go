package replica

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

const crashBatch = 500

// TestDrillKilledWriter kills a process during its writes. Each batch that it reported as written exists, every batch
// is whole, and rows, postings and counts agree.
func TestDrillKilledWriter(t *testing.T) {
	if path := os.Getenv("REPLICA_CRASH_TEST"); path != "" {
		writeUntilKilled(t, path)
	}
	path := filepath.Join(t.TempDir(), "replica.db")
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDrillKilledWriter$")
		cmd.Env = append(os.Environ(), "REPLICA_CRASH_TEST="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		reported := 0
		for lines := bufio.NewScanner(out); reported < (round+1)*2 && lines.Scan(); reported++ {
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the error says that it was killed

		r := openReplica(t, path)
		rows := agree(t, r)
		if rows%crashBatch != 0 || rows < reported*crashBatch {
			t.Errorf("%d rows after %d batches of %d", rows, reported, crashBatch)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// writeUntilKilled writes batches of new transfers, and prints a line for each.
func writeUntilKilled(t *testing.T, path string) {
	r, err := Open(path, Options{recentKeys: 100})
	if err != nil {
		t.Fatal(err)
	}
	all := plain(crashBatch * 400)
	have := agree(t, r)
	for first := have; first < len(all); first += crashBatch {
		if _, err := r.Write(t.Context(), index.Batch{Rows: all[first : first+crashBatch]}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("written")
	}
}

// agree checks that each row is found by its hash, its transaction and its account, and that the counts are right. It
// returns the number of rows.
func agree(t *testing.T, r *Store) int {
	t.Helper()
	n := 0
	err := r.View(t.Context(), func(s index.Snapshot) error {
		err := s.Each(t.Context(), index.TransferType, func(row index.Row) error {
			n++
			if n%50 != 0 {
				return nil
			}
			hash, _ := row.Text(index.TransferPacketColumn)
			tx, _ := row.Text(index.TransferSendTransactionColumn)
			sender, _ := row.Text(index.TransferSenderCanonicalColumn)
			newer := index.Page{Cursor: row.SortOrder()[:7], Direction: index.Newer}
			for _, q := range []index.TransferQuery{{PacketHash: hash}, {TransactionHash: tx},
				{Addresses: []string{sender}, PacketHash: hash}, {Page: newer, SourceChain: "a.1", PacketHash: hash}} {
				found, err := s.Transfers(t.Context(), q)
				if err != nil || len(found) != 1 || found[0].SortOrder() != row.SortOrder() {
					t.Errorf("%+v finds %d rows, %v", q, len(found), err)
				}
			}
			return nil
		})
		stats, statsErr := s.Stats(t.Context())
		if statsErr == nil && stats[0].Value != uint64(n) {
			t.Errorf("counted %d, there are %d", stats[0].Value, n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
