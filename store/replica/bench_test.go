package replica

import (
	"os"
	"strconv"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// BenchmarkReplicaPage times pages of 100 over REPLICA_BENCH_TRANSFERS generated transfers, by default 10,000. The
// ratio of its results for 10,000 and 1,000,000 transfers shows the cost of size.
func BenchmarkReplicaPage(b *testing.B) {
	transfers := 10_000
	if n, err := strconv.Atoi(os.Getenv("REPLICA_BENCH_TRANSFERS")); err == nil {
		transfers = n
	}
	r := newReplica(b)
	fill(b, r, transfers)
	var orders, senders, transactions []string
	sampled := 0
	err := r.View(b.Context(), func(s index.Snapshot) error {
		return s.Each(b.Context(), index.TransferType, func(row index.Row) error {
			if sampled++; sampled%max(1, transfers/2000) == 0 {
				sender, _ := row.Text(index.TransferSenderCanonicalColumn)
				transaction, _ := row.Text(index.TransferSendTransactionColumn)
				orders, senders, transactions = append(orders, row.SortOrder()), append(senders, sender),
					append(transactions, transaction)
			}
			return nil
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	at := func(list []string, i int) string { return list[i*7919%len(list)] }
	for _, bench := range []struct {
		name  string
		query func(i int) index.TransferQuery
	}{
		{"first", func(int) index.TransferQuery { return index.TransferQuery{} }},
		{"cursor", func(i int) index.TransferQuery {
			return index.TransferQuery{Page: index.Page{Cursor: at(orders, i)}}
		}},
		{"address", func(i int) index.TransferQuery {
			return index.TransferQuery{Addresses: []string{at(senders, i)}}
		}},
		{"transaction", func(i int) index.TransferQuery {
			return index.TransferQuery{TransactionHash: at(transactions, i)}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				err := r.View(b.Context(), func(s index.Snapshot) error {
					_, err := s.Transfers(b.Context(), bench.query(i))
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
