package replica

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

const (
	// A collection of up to sampleAll rows is read whole for a sample. So is a larger one if the sample is at least
	// 1/sampleShare of its rows, because many single lookups cost more than one pass.
	sampleAll   = 4096
	sampleShare = 16
	// sampleSteps bounds how many keys anyOrder skips behind a random position in the postings. Without skipping, a key
	// behind a large gap would be chosen more often. With it, only the mean of that many gaps matters.
	sampleSteps = 256
)

// Sample implements index.Snapshot.
func (s *snapshot) Sample(ctx context.Context, t *index.Type, n int) ([]index.Row, error) {
	c := collectionOf(t)
	if c == nil {
		return nil, appliance.Errorf(appliance.CodeInvalidField,
			"samples exist for packets and transfers, not for a %s", t.Name)
	}
	var all uint64
	s.locked(func() { all = s.count(c) })
	switch {
	case n <= 0:
		return nil, nil
	case all <= sampleAll || all/sampleShare <= uint64(n):
		return s.sampleOfAll(ctx, c, n, all)
	}
	return s.sampleAnywhere(ctx, c, n)
}

// sampleOfAll reads all rows and selects n of them with equal probability (Knuth, The Art of Computer Programming,
// section 3.4.2, algorithm S).
func (s *snapshot) sampleOfAll(ctx context.Context, c *collection, n int, left uint64) (sample []index.Row, err error) {
	err = s.walk(ctx, c.rows, func(k, v []byte) error {
		if rand.Uint64N(max(left, 1)) < uint64(n-len(sample)) {
			sample = append(sample, c.found(s.dictionary, k, v))
		}
		left--
		return nil
	})
	return sample, err
}

// sampleAnywhere reads rows at random positions of the postings by hash, whose order is independent of the order of the
// rows. It makes at most 4n+16 attempts, and may return fewer than n rows.
func (s *snapshot) sampleAnywhere(ctx context.Context, c *collection, n int) (sample []index.Row, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, main, recent := s.tx.Bucket(c.rows).Cursor(), s.tx.Bucket(c.hash.bucket), s.tx.Bucket(c.hash.recent)
	taken := make(map[string]bool)
	for tries := 0; len(sample) < n && tries < 4*n+16; tries++ {
		if tries%askEvery == 0 && ctx.Err() != nil {
			return nil, timeoutError(ctx.Err())
		}
		from := main
		if rand.Uint64N(main.Sequence()+recent.Sequence()) < recent.Sequence() {
			from = recent
		}
		order := anyOrder(from)
		if order == nil || taken[string(order)] {
			continue
		}
		taken[string(order)] = true
		sample = append(sample, c.posted(s.dictionary, rows, order))
	}
	return sample, nil
}

// anyOrder returns the sort_order of a random posting, or nil if the bucket is empty.
func anyOrder(from *bbolt.Bucket) []byte {
	cursor := newBlockCursor(from)
	k := cursor.seek(binary.BigEndian.AppendUint64(nil, rand.Uint64()))
	for steps := rand.IntN(sampleSteps); ; steps-- {
		if k == nil {
			if k = cursor.start(); k == nil {
				return nil
			}
		}
		if steps == 0 {
			return k[termSize:]
		}
		k = cursor.next()
	}
}
