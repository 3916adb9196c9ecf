package replica

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/storetest"
)

func openReplica(t testing.TB, path string) *Store {
	t.Helper()
	r, err := Open(path, Options{Now: func() time.Time { return storetest.ReplicaNow }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestReplicaConforms(t *testing.T) {
	t.Parallel()
	conform(t, Options{}, 3)
}

// TestDrillReplicaConformsToManySeeds makes more random batches and queries than every run of the tests needs.
func TestDrillReplicaConformsToManySeeds(t *testing.T) {
	conform(t, Options{}, 20)
	conform(t, Options{recentKeys: 20}, 20)
}

// TestReplicaConformsWhileMerging lets every batch move keys from the recent bucket to the main one.
func TestReplicaConformsWhileMerging(t *testing.T) {
	t.Parallel()
	conform(t, Options{recentKeys: 20}, 3)
}

func conform(t *testing.T, o Options, seeds uint64) {
	o.Now = func() time.Time { return storetest.ReplicaNow }
	storetest.Replica(t, func(t *testing.T) (index.Index, func(bool) index.Index) {
		path := filepath.Join(t.TempDir(), "replica.db")
		open := func(serveUnverified bool) *Store {
			o.ServeUnverified = serveUnverified
			r, err := Open(path, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			return r
		}
		r := open(false)
		return r, func(serveUnverified bool) index.Index {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = open(serveUnverified)
			return r
		}
	}, seeds)
}
