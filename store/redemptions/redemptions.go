// Package redemptions stores the watchtower's reads from chains in one bbolt file. The file may be deleted: the chains
// are read again.
package redemptions

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

// Store implements chain.Store. Its buckets:
//
//	contracts/NAME/contract     JSON: address, chain id
//	contracts/NAME/count        8 bytes: number of redemptions
//	contracts/NAME/positions/   RPC → block
//	contracts/NAME/anchors/     RPC ‖ block number → block
//	contracts/NAME/redemptions/ key → JSON
//	contracts/NAME/open/        key → empty
//	contracts/NAME/alone/       RPC → 8 bytes: number of redemptions that no other RPC reports
//	hashes/                     hash ‖ NAME ‖ 0 ‖ key → empty
//
// A key is the block's number and hash, the event's index in the block, and a hash of the event's content. Another
// block with the same number has other redemptions, and a false event from one RPC does not replace the true event from
// another.
type Store struct {
	db      *bbolt.DB
	minFree int64
}

var (
	bucketContracts   = []byte("contracts")
	bucketHashes      = []byte("hashes")
	bucketPositions   = []byte("positions")
	bucketAnchors     = []byte("anchors")
	bucketRedemptions = []byte("redemptions")
	bucketOpen        = []byte("open")
	bucketAlone       = []byte("alone")
	keyContract       = []byte("contract")
	keyCount          = []byte("count")
)

// keptAnchors is how many positions of an RPC are kept, newest first. A deeper reorganisation makes the watchtower read
// the chain again.
const keptAnchors = 1024

// lockTimeout is how long to wait for another process to release the file's lock.
const lockTimeout = 2 * time.Second

// ErrDamaged means that the file is not a store's file, or is damaged.
var ErrDamaged = errors.New("the file is damaged")

// Open opens the file at path, or creates it with mode 0600. Advance fails while the disk has less than minFree bytes
// free: redemptions invented by RPCs must not take the journal's space. If the file is unusable, the error wraps
// ErrDamaged.
func Open(path string, minFree int64) (*Store, error) {
	s, err := open(path, false)
	if err != nil {
		return nil, err
	}
	s.minFree = minFree
	return s, nil
}

// Read opens an existing file for reading.
func Read(path string) (*Store, error) { return open(path, true) }

func open(path string, readOnly bool) (s *Store, err error) {
	defer func() {
		if cause := recover(); cause != nil { // bbolt panics over a damaged free list
			err = fmt.Errorf("open %s: %w: %v", path, ErrDamaged, cause)
		}
	}()
	db, err := bbolt.Open(path, 0o600,
		&bbolt.Options{Timeout: lockTimeout, ReadOnly: readOnly, FreelistType: bbolt.FreelistMapType})
	switch {
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum),
		errors.Is(err, bbolterrors.ErrVersionMismatch):
		return nil, fmt.Errorf("open %s: %w: %w", path, ErrDamaged, err)
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: in use by another process; is attestd running?", path)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if readOnly {
		return &Store{db: db}, nil
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucketContracts)
		if err == nil {
			_, err = tx.CreateBucketIfNotExists(bucketHashes)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return &Store{db: db}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// contractRow is the stored form of a contract.
type contractRow struct {
	Address appliance.Address `json:"address"`
	ChainID string            `json:"chainId,omitempty"`
}

// row is the stored form of a redemption, with the fields that its own JSON omits.
type row struct {
	chain.Redemption
	Reports []string  `json:"reports"`
	Open    bool      `json:"open,omitempty"`
	Halted  bool      `json:"halted,omitempty"`
	Seen    time.Time `json:"seen,omitzero"`
}

func encode(r chain.Redemption) ([]byte, error) {
	return json.Marshal(row{r, r.Reports, r.Open, r.Halted, r.Seen})
}

func decode(value []byte) (chain.Redemption, error) {
	var r row
	if err := json.Unmarshal(value, &r); err != nil {
		return chain.Redemption{}, fmt.Errorf("redemption: %w", err)
	}
	r.Judgement = chain.Judgement{Verdict: r.Verdict, Reports: r.Reports, Open: r.Open, Halted: r.Halted, Seen: r.Seen}
	return r.Redemption, nil
}

func keyOf(r chain.Redemption) []byte {
	key := binary.BigEndian.AppendUint64(nil, r.Block)
	key = append(key, r.BlockHash[:]...)
	key = binary.BigEndian.AppendUint32(key, uint32(r.LogIndex))
	said := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Concat(r.Hash[:], r.Amount[:], r.TransactionHash[:]),
		uint64(r.Time.Unix())))
	return append(key, said[:16]...)
}

func hashKey(r chain.Redemption) []byte {
	return slices.Concat(r.Hash[:], []byte(r.Contract), []byte{0}, keyOf(r))
}

func encodeBlock(b chain.Block) []byte {
	value := binary.BigEndian.AppendUint64(nil, b.Number)
	value = append(value, b.Hash[:]...)
	return binary.BigEndian.AppendUint64(value, uint64(b.Time.Unix()))
}

func decodeBlock(value []byte) (b chain.Block, err error) {
	if len(value) != 8+32+8 {
		return b, fmt.Errorf("a block has %d bytes", len(value))
	}
	return chain.Block{
		Number: binary.BigEndian.Uint64(value), Hash: appliance.Digest(value[8:40]),
		Time: time.Unix(int64(binary.BigEndian.Uint64(value[40:])), 0).UTC(),
	}, nil
}

// Begin implements chain.Store.
func (s *Store) Begin(name string, address appliance.Address, rpcs []string) (chainID string, err error) {
	err = s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketContracts).Bucket([]byte(name))
		if b != nil {
			var kept contractRow
			if err := json.Unmarshal(b.Get(keyContract), &kept); err != nil {
				return fmt.Errorf("contract %s: %w", name, err)
			}
			if kept.Address == address && b.Bucket(bucketAlone) != nil {
				chainID = kept.ChainID
				return forgetOthers(tx, b, name, rpcs)
			}
			if err := drop(tx, b, name); err != nil {
				return err
			}
		}
		return create(tx, name, address)
	})
	return chainID, err
}

func create(tx *bbolt.Tx, name string, address appliance.Address) error {
	b, err := tx.Bucket(bucketContracts).CreateBucket([]byte(name))
	if err != nil {
		return err
	}
	for _, within := range [][]byte{bucketPositions, bucketAnchors, bucketRedemptions, bucketOpen, bucketAlone} {
		if _, err := b.CreateBucket(within); err != nil {
			return err
		}
	}
	return putContract(b, contractRow{Address: address})
}

func putContract(b *bbolt.Bucket, c contractRow) error {
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return b.Put(keyContract, value)
}

// drop removes a contract, its redemptions and their hashes.
func drop(tx *bbolt.Tx, b *bbolt.Bucket, name string) error {
	err := b.Bucket(bucketRedemptions).ForEach(func(_, value []byte) error {
		r, err := decode(value)
		if err != nil {
			return err
		}
		return tx.Bucket(bucketHashes).Delete(hashKey(r))
	})
	if err != nil {
		return err
	}
	return tx.Bucket(bucketContracts).DeleteBucket([]byte(name))
}

// forgetOthers removes the reports of RPCs that are not configured any more.
func forgetOthers(tx *bbolt.Tx, b *bbolt.Bucket, name string, rpcs []string) error {
	var others []string
	err := b.Bucket(bucketPositions).ForEach(func(rpc, _ []byte) error {
		if !slices.Contains(rpcs, string(rpc)) {
			others = append(others, string(rpc))
		}
		return nil
	})
	for _, rpc := range others {
		if err == nil {
			_, err = rewind(tx, b, name, rpc, nil)
		}
	}
	return err
}

// update changes the stored data of a contract in a write transaction.
func (s *Store) update(name string, change func(tx *bbolt.Tx, b *bbolt.Bucket) error) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketContracts).Bucket([]byte(name))
		if b == nil {
			return fmt.Errorf("unknown contract %s", name)
		}
		return change(tx, b)
	})
}

// view reads the stored data of a contract. It does not call read for an unknown contract.
func (s *Store) view(name string, read func(b *bbolt.Bucket) error) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		contracts := tx.Bucket(bucketContracts)
		if contracts == nil {
			return nil
		}
		b := contracts.Bucket([]byte(name))
		if b == nil {
			return nil
		}
		return read(b)
	})
}

// SetChain implements chain.Store.
func (s *Store) SetChain(name, chainID string) error {
	return s.update(name, func(_ *bbolt.Tx, b *bbolt.Bucket) error {
		var kept contractRow
		if err := json.Unmarshal(b.Get(keyContract), &kept); err != nil {
			return err
		}
		kept.ChainID = chainID
		return putContract(b, kept)
	})
}

// Position implements chain.Store.
func (s *Store) Position(name, rpc string) (at chain.Block, found bool, err error) {
	err = s.view(name, func(b *bbolt.Bucket) error {
		value := b.Bucket(bucketPositions).Get([]byte(rpc))
		if found = value != nil; !found {
			return nil
		}
		at, err = decodeBlock(value)
		return err
	})
	return at, found, err
}

func anchorKey(rpc string, number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(rpc), number)
}

// Anchor implements chain.Store.
func (s *Store) Anchor(name, rpc string, most uint64) (at chain.Block, found bool, err error) {
	err = s.view(name, func(b *bbolt.Bucket) error {
		c := b.Bucket(bucketAnchors).Cursor()
		key, value := c.Seek(anchorKey(rpc, most))
		if !bytes.Equal(key, anchorKey(rpc, most)) {
			if key == nil {
				key, value = c.Last()
			} else {
				key, value = c.Prev()
			}
		}
		if found = key != nil && len(key) == len(rpc)+8 && bytes.HasPrefix(key, []byte(rpc)); !found {
			return nil
		}
		at, err = decodeBlock(value)
		return err
	})
	return at, found, err
}

// Count implements chain.Store.
func (s *Store) Count(name string) (n int64, err error) {
	err = s.view(name, func(b *bbolt.Bucket) error {
		n = countOf(b, keyCount)
		return nil
	})
	return n, err
}

// Alone implements chain.Store.
func (s *Store) Alone(name, rpc string) (n int64, err error) {
	err = s.view(name, func(b *bbolt.Bucket) error {
		n = countOf(b.Bucket(bucketAlone), []byte(rpc))
		return nil
	})
	return n, err
}

func countOf(b *bbolt.Bucket, key []byte) int64 {
	if value := b.Get(key); len(value) == 8 {
		return int64(binary.BigEndian.Uint64(value))
	}
	return 0
}

func addCount(b *bbolt.Bucket, key []byte, n int) error {
	return b.Put(key, binary.BigEndian.AppendUint64(nil, uint64(countOf(b, key)+int64(n))))
}

// addAlone adds n to the count of redemptions that only one RPC reports, if that is the case here.
func addAlone(b *bbolt.Bucket, reports []string, n int) error {
	if len(reports) != 1 {
		return nil
	}
	return addCount(b.Bucket(bucketAlone), []byte(reports[0]), n)
}
