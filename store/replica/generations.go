package replica

import (
	"bytes"
	"encoding/binary"

	"go.etcd.io/bbolt"
)

// bbolt leaves a third of each page empty if keys arrive in random order, and none if they arrive in ascending order.
// So the key of a block is a generation number of 4 bytes followed by the block's first key. Compaction goes through
// the blocks in key order: it deletes them at the beginning of the bucket, and appends the merged blocks at the end,
// under the number of the next generation. At most two generations exist. The older one holds the larger keys: all keys
// from that of the bucket's first block on.
//
//	1 g… 1 k… 1 p… 2 a… 2 c…     compaction has come to g: blocks whose first key is below g are of generation 2
const generationSize = 4

// generations iterates over the blocks of a bucket in the order of their first keys, across both generations. A block's
// name is its generation and its first key. The bucket must not change during the iteration.
type generations struct {
	cursor *bbolt.Cursor
	oldest []byte // name of the bucket's first block; nil if the bucket is empty
	at     []byte // name of the block under the cursor
	key    []byte // buffer for the argument of a seek
}

func newGenerations(bucket *bbolt.Bucket) generations {
	l := generations{cursor: bucket.Cursor()}
	l.oldest, _ = l.cursor.First()
	return l
}

// generation returns the generation of a block with the given first key, whether or not the block exists yet.
func (l *generations) generation(first []byte) uint32 {
	if l.oldest == nil {
		return 0
	}
	older := binary.BigEndian.Uint32(l.oldest)
	if bytes.Compare(first, l.oldest[generationSize:]) < 0 {
		return older + 1
	}
	return older
}

// newest returns the number of the newest generation.
func (l *generations) newest() uint32 {
	last, _ := l.end()
	if last == nil {
		return 0
	}
	return binary.BigEndian.Uint32(last)
}

func (l *generations) isOld(block []byte) bool {
	return bytes.HasPrefix(block, l.oldest[:generationSize])
}

// found returns a block that the cursor has found. It panics if the block's generation does not fit its first key: then
// the name is damaged.
func (l *generations) found(block, sealed []byte) (_, _ []byte) {
	if block != nil && binary.BigEndian.Uint32(block) != l.generation(block[generationSize:]) {
		panic(damage("a block belongs to another generation than its keys"))
	}
	return block, sealed
}

func (l *generations) to(block, sealed []byte) (_, _ []byte) {
	l.at = block
	return l.found(block, sealed)
}

func (l *generations) seek(generation uint32, first []byte) []byte {
	l.key = append(binary.BigEndian.AppendUint32(l.key[:0], generation), first...)
	return l.key
}

// start moves to the block with the smallest first key.
func (l *generations) start() (block, sealed []byte) {
	if l.oldest == nil {
		return nil, nil
	}
	if block, sealed = l.cursor.Seek(l.seek(l.generation(nil), nil)); block == nil {
		block, sealed = l.cursor.First()
	}
	return l.to(block, sealed)
}

// end moves to the last block of the newest generation.
func (l *generations) end() (block, sealed []byte) { return l.to(l.cursor.Last()) }

// seekDown moves to the last block whose first key is at or below the given key.
func (l *generations) seekDown(key []byte) (block, sealed []byte) {
	if l.oldest == nil {
		return nil, nil
	}
	generation := l.generation(key)
	if block, sealed = l.found(seekDown(l.cursor, l.seek(generation, key))); block == nil ||
		binary.BigEndian.Uint32(block) != generation {
		return nil, nil
	}
	return l.to(block, sealed)
}

func (l *generations) next() (block, sealed []byte) {
	wasOld := l.isOld(l.at)
	block, sealed = l.found(l.cursor.Next())
	switch {
	case wasOld && block != nil && !l.isOld(block): // the newer generation has the smaller keys
		return nil, nil
	case !wasOld && block == nil:
		block, sealed = l.cursor.First()
	}
	return l.to(block, sealed)
}

func (l *generations) previous() (block, sealed []byte) {
	wasOld := l.isOld(l.at)
	block, sealed = l.found(l.cursor.Prev())
	switch {
	case !wasOld && block != nil && l.isOld(block):
		return nil, nil
	case wasOld && block == nil:
		if block, sealed = l.cursor.Last(); l.isOld(block) {
			return nil, nil
		}
	}
	return l.to(block, sealed)
}

// checkNext verifies the block that follows the block under the cursor. If the name of the following block is damaged,
// its keys can seem to be larger than they are.
func (l *generations) checkNext() {
	ahead := generations{cursor: l.cursor.Bucket().Cursor(), oldest: l.oldest, at: l.at}
	ahead.cursor.Seek(l.at)
	if name, sealed := ahead.next(); name != nil {
		unseal(anyPostings, name, sealed)
	}
}
