package replica

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// carrying returns packets with calldata.
func carrying(t *testing.T, n int, status string) (rows []index.Row) {
	t.Helper()
	for i := range n {
		row, err := index.NewRow(index.Packet{
			SortOrder: fmt.Sprintf("%08d", i), PacketHash: fmt.Sprintf("0x%064x", i), Status: &status,
			Data: new("0x" + strings.Repeat("ab", 100)),
		})
		check(t, err)
		rows = append(rows, row)
	}
	return rows
}

// A follower reads rows again and writes only its position. Rows of the next batch must be readable.
func TestABatchWithoutNewRowsLearnsNothing(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	rows := carrying(t, learnFirst-1, "sent")
	write(t, r, index.Batch{Rows: rows})
	write(t, r, index.Batch{Rows: rows[:10], Positions: map[string]string{"read": "until now"}})
	write(t, r, index.Batch{Rows: carrying(t, 1, "received")})
	if lines := bytes.Count(export(t, r), []byte("\n")); lines != len(rows) {
		t.Errorf("%d rows are read of %d", lines, len(rows))
	}
}

// TestABatchThatFailsTeachesNothing refuses the last row of a batch that has added texts and a sample to the
// dictionary. They are not on disk, and rows written next must be readable, also after the file is opened again.
func TestABatchThatFailsTeachesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	r := openReplica(t, path)
	refused := append(carrying(t, learnFirst+100, "refused"), index.Row{})
	if _, err := r.Write(t.Context(), index.Batch{Rows: refused}); appliance.CodeOf(err) != appliance.CodeInvalidField {
		t.Fatal(err)
	}
	rows := carrying(t, learnFirst-1, "sent")
	write(t, r, index.Batch{Rows: rows})
	check(t, r.Close())
	if lines := bytes.Count(export(t, openReplica(t, path)), []byte("\n")); lines != len(rows) {
		t.Errorf("%d rows are read of %d", lines, len(rows))
	}
}
