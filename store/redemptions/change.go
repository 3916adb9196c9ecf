package redemptions

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/store/disk"
)

// Advance implements chain.Store.
func (s *Store) Advance(name, rpc string, to chain.Block, found []chain.Redemption) error {
	if err := s.checkRoom(); err != nil {
		return err
	}
	return s.update(name, func(tx *bbolt.Tx, b *bbolt.Bucket) error {
		for _, r := range found {
			if err := report(tx, b, rpc, r); err != nil {
				return err
			}
		}
		if err := b.Bucket(bucketPositions).Put([]byte(rpc), encodeBlock(to)); err != nil {
			return err
		}
		anchors := b.Bucket(bucketAnchors)
		if err := anchors.Put(anchorKey(rpc, to.Number), encodeBlock(to)); err != nil {
			return err
		}
		return thin(anchors, rpc)
	})
}

func (s *Store) checkRoom() error {
	room, err := disk.FreeSpace(s.db.Path())
	if err == nil && room.Free < s.minFree {
		err = fmt.Errorf("%d bytes are free, but %d are reserved for the journal", room.Free, s.minFree)
	}
	return err
}

// report adds an RPC to the reporters of a redemption.
func report(tx *bbolt.Tx, b *bbolt.Bucket, rpc string, r chain.Redemption) error {
	key := keyOf(r)
	if value := b.Bucket(bucketRedemptions).Get(key); value != nil {
		known, err := decode(value)
		if err != nil || slices.Contains(known.Reports, rpc) {
			return err
		}
		if err := addAlone(b, known.Reports, -1); err != nil {
			return err
		}
		known.Reports = append(known.Reports, rpc)
		known.Open = true
		return put(b, key, known)
	}
	r.Judgement = chain.Judgement{Reports: []string{rpc}, Open: true, Seen: r.Seen}
	if err := tx.Bucket(bucketHashes).Put(hashKey(r), nil); err != nil {
		return err
	}
	if err := addCount(b, keyCount, 1); err != nil {
		return err
	}
	if err := addAlone(b, r.Reports, 1); err != nil {
		return err
	}
	return put(b, key, r)
}

func put(b *bbolt.Bucket, key []byte, r chain.Redemption) error {
	value, err := encode(r)
	if err != nil {
		return err
	}
	if err := b.Bucket(bucketRedemptions).Put(key, value); err != nil {
		return err
	}
	if r.Open {
		return b.Bucket(bucketOpen).Put(key, nil)
	}
	return b.Bucket(bucketOpen).Delete(key)
}

// thin removes the oldest anchors of an RPC beyond keptAnchors.
func thin(anchors *bbolt.Bucket, rpc string) error {
	c := anchors.Cursor()
	n := 0
	for key, _ := c.Seek([]byte(rpc)); bytes.HasPrefix(key, []byte(rpc)); key, _ = c.Next() {
		n++
	}
	for ; n > keptAnchors; n-- {
		if key, _ := c.Seek([]byte(rpc)); !bytes.HasPrefix(key, []byte(rpc)) {
			return nil
		}
		if err := c.Delete(); err != nil {
			return err
		}
	}
	return nil
}

// Rewind implements chain.Store.
func (s *Store) Rewind(name, rpc string, to *chain.Block) (undone []chain.Redemption, err error) {
	err = s.update(name, func(tx *bbolt.Tx, b *bbolt.Bucket) error {
		undone, err = rewind(tx, b, name, rpc, to)
		return err
	})
	return undone, err
}

func rewind(tx *bbolt.Tx, b *bbolt.Bucket, name, rpc string, to *chain.Block) (undone []chain.Redemption, err error) {
	first := uint64(0)
	if to != nil {
		first = to.Number + 1
	}
	var changed []chain.Redemption
	c := b.Bucket(bucketRedemptions).Cursor()
	for key, value := c.Seek(binary.BigEndian.AppendUint64(nil, first)); key != nil; key, value = c.Next() {
		r, err := decode(value)
		if err != nil {
			return nil, err
		}
		if slices.Contains(r.Reports, rpc) {
			changed = append(changed, r)
		}
	}
	for _, r := range changed {
		if err := addAlone(b, r.Reports, -1); err != nil {
			return nil, err
		}
		r.Reports = slices.DeleteFunc(r.Reports, func(id string) bool { return id == rpc })
		if len(r.Reports) > 0 {
			r.Open = true
			if err = addAlone(b, r.Reports, 1); err == nil {
				err = put(b, keyOf(r), r)
			}
		} else {
			undone = append(undone, r)
			err = remove(tx, b, r)
		}
		if err != nil {
			return nil, err
		}
	}
	return undone, rewindPosition(b, rpc, first, to)
}

func remove(tx *bbolt.Tx, b *bbolt.Bucket, r chain.Redemption) error {
	key := keyOf(r)
	if err := b.Bucket(bucketRedemptions).Delete(key); err != nil {
		return err
	}
	if err := b.Bucket(bucketOpen).Delete(key); err != nil {
		return err
	}
	if err := tx.Bucket(bucketHashes).Delete(hashKey(r)); err != nil {
		return err
	}
	return addCount(b, keyCount, -1)
}

func rewindPosition(b *bbolt.Bucket, rpc string, first uint64, to *chain.Block) error {
	var above [][]byte
	c := b.Bucket(bucketAnchors).Cursor()
	for key, _ := c.Seek(anchorKey(rpc, first)); len(key) == len(rpc)+8 &&
		bytes.HasPrefix(key, []byte(rpc)); key, _ = c.Next() {
		above = append(above, slices.Clone(key))
	}
	for _, key := range above {
		if err := b.Bucket(bucketAnchors).Delete(key); err != nil {
			return err
		}
	}
	if to == nil {
		return b.Bucket(bucketPositions).Delete([]byte(rpc))
	}
	return b.Bucket(bucketPositions).Put([]byte(rpc), encodeBlock(*to))
}

// Open implements chain.Store.
func (s *Store) Open(name string) (open []chain.Redemption, err error) {
	err = s.view(name, func(b *bbolt.Bucket) error {
		return b.Bucket(bucketOpen).ForEach(func(key, _ []byte) error {
			r, err := decode(b.Bucket(bucketRedemptions).Get(key))
			open = append(open, r)
			return err
		})
	})
	return open, err
}

// SetVerdicts implements chain.Store.
func (s *Store) SetVerdicts(name string, judged []chain.Redemption) error {
	if len(judged) == 0 {
		return nil
	}
	return s.update(name, func(_ *bbolt.Tx, b *bbolt.Bucket) error {
		for _, r := range judged {
			value := b.Bucket(bucketRedemptions).Get(keyOf(r))
			if value == nil {
				continue // withdrawn in the meantime
			}
			kept, err := decode(value)
			if err != nil {
				return err
			}
			if len(kept.Reports) != len(r.Reports) {
				continue // another RPC has reported it in the meantime; it is judged again
			}
			kept.AttestationID, kept.KeyID, kept.Verdict, kept.Open, kept.Halted = r.AttestationID, r.KeyID, r.Verdict,
				r.Open, r.Halted
			if err := put(b, keyOf(r), kept); err != nil {
				return err
			}
		}
		return nil
	})
}

// Each implements chain.Store. yield must not change the store.
func (s *Store) Each(yield func(chain.Redemption) error) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		contracts := tx.Bucket(bucketContracts)
		if contracts == nil {
			return nil
		}
		return contracts.ForEachBucket(func(name []byte) error {
			return contracts.Bucket(name).Bucket(bucketRedemptions).ForEach(func(_, value []byte) error {
				r, err := decode(value)
				if err != nil {
					return err
				}
				return yield(r)
			})
		})
	})
}

// ByHash implements chain.Store.
func (s *Store) ByHash(hash appliance.Digest) (found []chain.Redemption, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		hashes := tx.Bucket(bucketHashes)
		if hashes == nil {
			return nil
		}
		c := hashes.Cursor()
		for key, _ := c.Seek(hash[:]); bytes.HasPrefix(key, hash[:]); key, _ = c.Next() {
			name, at, _ := bytes.Cut(key[len(hash):], []byte{0})
			r, err := decode(tx.Bucket(bucketContracts).Bucket(name).Bucket(bucketRedemptions).Get(at))
			if err != nil {
				return err
			}
			found = append(found, r)
		}
		return nil
	})
	return found, err
}
