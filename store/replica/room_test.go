package replica

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

func TestAReplicaLeavesRoomForTheJournal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	batch := index.Batch{Positions: map[string]string{"a": "1"}}
	for _, c := range []struct {
		minFree int64
		want    appliance.Code
	}{{math.MaxInt64, appliance.CodeReplicaUnavailable}, {1, ""}, {0, ""}} {
		r, err := Open(path, Options{MinFree: c.minFree})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Write(context.Background(), batch); appliance.CodeOf(err) != c.want {
			t.Errorf("with %d bytes to leave: %v, want %q", c.minFree, err, c.want)
		}
		if err := r.View(t.Context(), func(index.Snapshot) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
