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

func TestReplicaConforms(t *testing.T) { conform(t, ReplicaOptions{}) }

// TestReplicaConformsWhileMerging lets every batch move keys between the two buckets of an index.
func TestReplicaConformsWhileMerging(t *testing.T) { conform(t, ReplicaOptions{recentKeys: 20}) }

func conform(t *testing.T, o ReplicaOptions) {
	o.Now = func() time.Time { return storetest.ReplicaNow }
	storetest.Replica(t, func(t *testing.T) (appliance.Index, func(bool) appliance.Index) {
		path := filepath.Join(t.TempDir(), "replica.db")
		open := func(serveUnverified bool) *Replica {
			o.ServeUnverified = serveUnverified
			r, err := OpenReplica(path, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			return r
		}
		r := open(false)
		return r, func(serveUnverified bool) appliance.Index {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = open(serveUnverified)
			return r
		}
	})
}
