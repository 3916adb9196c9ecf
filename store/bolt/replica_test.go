package bolt

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/storetest"
)

func openReplica(t testing.TB, path string) *Replica {
	t.Helper()
	r, err := OpenReplica(path, ReplicaOptions{Now: func() time.Time { return storetest.ReplicaNow }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestReplicaConforms(t *testing.T) {
	storetest.Replica(t, func(t *testing.T) (appliance.Index, func() appliance.Index) {
		path := filepath.Join(t.TempDir(), "replica.db")
		r := openReplica(t, path)
		return r, func() appliance.Index {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			return openReplica(t, path)
		}
	})
}
