package replica

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// TestADamagedKeyIsFound damages keys and leaves their values intact: the key of a chain, which decides its network, of
// a dictionary text, of a count, and of a follower's position.
func TestADamagedKeyIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "replica.db")
	filledReplica(t, path)
	r := openReplica(t, path)
	_, err := r.Write(t.Context(), index.Batch{Positions: map[string]string{"here": "1"}})
	check(t, errors.Join(err, r.Close()))
	whole, err := os.ReadFile(path)
	check(t, err)
	for _, bucket := range []string{index.ChainType.Name, string(bucketTexts), string(bucketStats),
		string(bucketPositions)} {
		check(t, os.WriteFile(path, whole, 0o600))
		db, err := bbolt.Open(path, 0o600, nil)
		check(t, err)
		check(t, db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			key, value := b.Cursor().Last()
			key, value = bytes.Clone(key), bytes.Clone(value)
			damaged := bytes.Clone(key)
			damaged[0] ^= 0x40
			return errors.Join(b.Delete(key), b.Put(damaged, value))
		}))
		check(t, db.Close())
		r, err := Open(path, Options{})
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("with a damaged key in %s it was opened with %v", bucket, err)
		}
		if err == nil {
			check(t, r.Close())
		}
	}
}
