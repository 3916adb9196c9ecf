package bolt_test

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt"
)

func TestAReplicaLeavesRoomForTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "replica.db")
	batch := appliance.Batch{Positions: map[string]string{"a": "1"}}
	for _, c := range []struct {
		minFree int64
		want    appliance.Code
	}{{math.MaxInt64, appliance.CodeReplicaUnavailable}, {1, ""}, {0, ""}} {
		r, err := bolt.OpenReplica(path, bolt.ReplicaOptions{MinFree: c.minFree})
		check(t, err)
		if _, err := r.Write(context.Background(), batch); appliance.CodeOf(err) != c.want {
			t.Errorf("with %d bytes to leave: %v, want %q", c.minFree, err, c.want)
		}
		check(t, r.View(t.Context(), func(appliance.Snapshot) error { return nil }))
		check(t, r.Close())
	}
}
