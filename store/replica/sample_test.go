package replica

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// TestSamplesAreOfAllParts checks that a sample has rows from each quarter of a collection, with its postings in the
// main bucket, in the recent bucket, or in both.
func TestSamplesAreOfAllParts(t *testing.T) {
	t.Parallel()
	const all, size, quarters = 8000, 400, 4
	var rows []index.Row
	for i := range all {
		row, err := index.NewRow(index.Transfer{
			SortOrder: fmt.Sprintf("%08d", i), PacketHash: fmt.Sprintf("0x%x", sha256.Sum256(fmt.Append(nil, i))),
			SourceUniversalChainID: "a.1", DestUniversalChainID: "b.1",
		})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	for name, recentKeys := range map[string]int{"main": 1, "both": all / 2, "recent": all} {
		t.Run(name, func(t *testing.T) {
			r := reopen(t, filepath.Join(t.TempDir(), "replica.db"), Options{recentKeys: recentKeys})
			for first := 0; first < all; first += all / 8 {
				write(t, r, index.Batch{Rows: rows[first : first+all/8]})
			}
			err := r.View(t.Context(), func(s index.Snapshot) error {
				var in [quarters]int
				seen := make(map[string]bool)
				sample, err := s.Sample(t.Context(), index.TransferType, size)
				for _, row := range sample {
					number, err := strconv.Atoi(row.SortOrder())
					if err != nil {
						return err
					}
					in[number*quarters/all]++
					seen[row.Key()] = true
				}
				if len(seen) != size {
					t.Errorf("%d different rows, want %d", len(seen), size)
				}
				for i, n := range in {
					// The expected count is 100 ± 8.7 by chance; it is out of these bounds once in 10^8.
					if n < 50 || n > 150 {
						t.Errorf("%d rows of quarter %d", n, i)
					}
				}
				if _, err := s.Sample(expired(t), index.TransferType,
					size); appliance.CodeOf(err) != appliance.CodeTimeout {
					t.Errorf("out of time: %v", err)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
