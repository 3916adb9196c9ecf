package replica

import (
	"bytes"
	"encoding/binary"

	"go.etcd.io/bbolt"
)

// bbolt leaves a third of its pages empty where keys come anywhere, and none where they come at the end. So the blocks of a bucket
// are under the number of a lap, 4 bytes, and then their first key: what is merged in the order of the keys is taken away at the
// beginning of the bucket and put at its end, under the number of the next lap. There are never more than two laps, the older of which
// has the larger keys: all from the first key of the bucket on.
//
//	1 g… 1 k… 1 p… 2 a… 2 c…     the lap has come to g: a block whose first key is below that is of the lap 2
const lapSize = 4

// laps goes over the blocks of a bucket in the order of their first keys. A block is named by its lap and that key. The bucket must
// not change meanwhile.
type laps struct {
	cursor *bbolt.Cursor
	oldest []byte // the bucket's first block; nil for none
	at     []byte // the block that the cursor is at
	key    []byte // room for one to seek
}

func newLaps(bucket *bbolt.Bucket) laps {
	l := laps{cursor: bucket.Cursor()}
	l.oldest, _ = l.cursor.First()
	return l
}

// lap returns the number of the lap that a block with that first key is of, or will be.
func (l *laps) lap(first []byte) uint32 {
	if l.oldest == nil {
		return 0
	}
	older := binary.BigEndian.Uint32(l.oldest)
	if bytes.Compare(first, l.oldest[lapSize:]) < 0 {
		return older + 1
	}
	return older
}

// newest returns the number of the newest lap.
func (l *laps) newest() uint32 {
	last, _ := l.end()
	if last == nil {
		return 0
	}
	return binary.BigEndian.Uint32(last)
}

func (l *laps) isOld(block []byte) bool { return bytes.HasPrefix(block, l.oldest[:lapSize]) }

// found returns a block that the cursor has found, unless its lap is not that of its first key: then one of them is damaged.
func (l *laps) found(block, sealed []byte) (_, _ []byte) {
	if block != nil && binary.BigEndian.Uint32(block) != l.lap(block[lapSize:]) {
		panic(damage("a block is of another lap than its keys"))
	}
	return block, sealed
}

func (l *laps) to(block, sealed []byte) (_, _ []byte) {
	l.at = block
	return l.found(block, sealed)
}

func (l *laps) seek(lap uint32, first []byte) []byte {
	l.key = append(binary.BigEndian.AppendUint32(l.key[:0], lap), first...)
	return l.key
}

// start moves to the first block.
func (l *laps) start() (block, sealed []byte) {
	if l.oldest == nil {
		return nil, nil
	}
	if block, sealed = l.cursor.Seek(l.seek(l.lap(nil), nil)); block == nil {
		block, sealed = l.cursor.First()
	}
	return l.to(block, sealed)
}

// end moves to the last block of the newest lap.
func (l *laps) end() (block, sealed []byte) { return l.to(l.cursor.Last()) }

// seekDown moves to the last block whose first key is at or below the given one.
func (l *laps) seekDown(key []byte) (block, sealed []byte) {
	if l.oldest == nil {
		return nil, nil
	}
	lap := l.lap(key)
	if block, sealed = l.found(seekDown(l.cursor, l.seek(lap, key))); block == nil || binary.BigEndian.Uint32(block) != lap {
		return nil, nil
	}
	return l.to(block, sealed)
}

func (l *laps) next() (block, sealed []byte) {
	wasOld := l.isOld(l.at)
	block, sealed = l.found(l.cursor.Next())
	switch {
	case wasOld && block != nil && !l.isOld(block): // the newer lap's, which are before
		return nil, nil
	case !wasOld && block == nil:
		block, sealed = l.cursor.First()
	}
	return l.to(block, sealed)
}

func (l *laps) previous() (block, sealed []byte) {
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

// checkNext looks at the block behind the one that the cursor is at, of which the name may be damaged so that keys seem to be before it.
func (l *laps) checkNext() {
	ahead := laps{cursor: l.cursor.Bucket().Cursor(), oldest: l.oldest, at: l.at}
	ahead.cursor.Seek(l.at)
	if name, sealed := ahead.next(); name != nil {
		unseal(anyPostings, name, sealed)
	}
}
