package bolt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"go.etcd.io/bbolt"
)

// lookupBuckets index the records. See eachLookup.
var lookupBuckets = buckets[4:]

// leadsByName reports whether the names in a lookup bucket end in the record's index, so that several records can share
// a prefix. Their values are empty. In the other buckets, the value is the index.
func leadsByName(bucket string) bool { return bucket != bucketIDs && bucket != bucketIdempotency }

// eachLookup calls fn with each lookup entry of a record. index is the encoded index. In a bucket of runs, the name is
// an entry of a run.
func eachLookup(e journal.Entry, index []byte, fn func(bucket string, name, value []byte) error) error {
	id := e.ID()
	err := fn(bucketIDs, id[:], index)
	if e.Event != nil {
		return errors.Join(err, fn(bucketEvents, index, nil))
	}
	r := e.Record
	if err == nil {
		err = fn(bucketByKey, append(keyPrefix(r.KeyID), index...), nil)
	}
	if err == nil {
		err = fn(bucketByHash, append(prefix(r.Hash[:]), index...), nil)
	}
	if err == nil {
		err = fn(bucketByUnspendable, append(unspendablePrefix(r.UnspendableAddress), index...), nil)
	}
	if err == nil && r.IdempotencyKey != "" {
		err = fn(bucketIdempotency, idempotencyName(r.KeyID, r.IdempotencyKey), index)
	}
	return err
}

// keyPrefix is the prefix of an API key's entries in by_key.
func keyPrefix(keyID string) []byte {
	return append(append(make([]byte, 0, len(keyID)+9), keyID...), 0)
}

// prefix is the key of a record in by_hash: the last 8 bytes of its hash. On a collision, the other records are read,
// too. Whole hashes would make the file half as large again.
func prefix(of []byte) []byte { return append(make([]byte, 0, 16), of[len(of)-8:]...) }

// unspendablePrefix is the key of a record in by_unspendable: the last 8 bytes of the address's SHA-256. A client could
// choose many addresses with the same last bytes, but not with the same hash.
func unspendablePrefix(a appliance.Address) []byte {
	sum := sha256.Sum256(a[:])
	return prefix(sum[:])
}

// idempotencyName is the name of an entry in idempotency. The length separates the two strings.
func idempotencyName(keyID, idempotencyKey string) []byte {
	h := sha256.New()
	h.Write(encodeIndex(int64(len(keyID))))
	h.Write([]byte(keyID))
	h.Write([]byte(idempotencyKey))
	return h.Sum(nil)
}

// recordOf returns the index of the record of a lookup entry.
func recordOf(bucket string, name, value []byte) (int64, error) {
	if !leadsByName(bucket) {
		return decodeIndex(value)
	}
	if len(name) < 8 || len(value) != 0 {
		return 0, errors.New("malformed")
	}
	return decodeIndex(name[len(name)-8:])
}

// narrowest returns a function that returns the last candidate index below another one, or -1. It uses the most
// selective bucket of the query.
func narrowest(tx *bbolt.Tx, q journal.Query) func(before int64) int64 {
	switch {
	case q.Hash != nil:
		return lastInRuns(tx.Bucket([]byte(bucketByHash)), prefix(q.Hash[:]))
	case q.Unspendable != nil:
		return lastInRuns(tx.Bucket([]byte(bucketByUnspendable)), unspendablePrefix(*q.Unspendable))
	case q.EventsOnly:
		return under(tx.Bucket([]byte(bucketEvents)), nil)
	case q.KeyID != "":
		return under(tx.Bucket([]byte(bucketByKey)), keyPrefix(q.KeyID))
	}
	return func(before int64) int64 { return before - 1 }
}

// under returns a function that returns the last index below another one among the names with a prefix, or -1.
func under(bucket *bbolt.Bucket, prefix []byte) func(before int64) int64 {
	c := bucket.Cursor()
	return func(before int64) int64 {
		bound := binary.BigEndian.AppendUint64(bytes.Clone(prefix), uint64(before))
		name, _ := seekBefore(c, bound)
		if len(name) != len(bound) || !bytes.HasPrefix(name, prefix) {
			return -1
		}
		i, err := decodeIndex(name[len(prefix):])
		if err != nil {
			return -1
		}
		return i
	}
}
