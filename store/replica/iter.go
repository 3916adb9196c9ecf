package replica

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.etcd.io/bbolt"
)

// orders iterates over sort_orders in the direction of a page. Postings, and unions and intersections of them,
// implement it.
type orders interface {
	// seek moves to the first sort_order at or behind the given one, in the direction of the iteration; nil means the
	// very first. It returns nil at the end. The result is valid until the next move.
	seek(order []byte) []byte
	// next moves on by one. It may only be called after seek.
	next() []byte
}

// termRange iterates over the postings of one term.
type termRange struct {
	cursor    *blockCursor
	ascending bool
	key       []byte // the term, followed by the sort_order of a seek
	meter     *meter
}

func newTermRange(b *bbolt.Bucket, term uint64, ascending bool, m *meter) *termRange {
	return &termRange{cursor: newBlockCursor(b), ascending: ascending, key: appendTerm(make([]byte, 0, 64), term),
		meter: m}
}

// meter counts the keys that a query reads, and ends all its iterators when the query's context ends. It works even if
// many keys are read for one row.
type meter struct {
	ctx     context.Context
	touched uint64
	err     error // the context's error; if it is set, the results are incomplete
}

// askEvery is the number of keys or rows between two checks of the context. Reading that many takes some microseconds
// in memory and some milliseconds on a disk.
const askEvery = 64

// ended counts a key, and reports whether the context has ended.
func (m *meter) ended() bool {
	if m.touched++; m.touched%askEvery == 0 && m.err == nil {
		m.err = m.ctx.Err()
	}
	return m.err != nil
}

// ordersOf iterates over the sort_orders of a term, in both buckets of the postings.
func ordersOf(tx *bbolt.Tx, x *postings, term uint64, ascending bool, m *meter) orders {
	bucket := tx.Bucket(x.bucket)
	if x.recent == nil {
		return newTermRange(bucket, term, ascending, m)
	}
	recent := tx.Bucket(x.recent)
	switch {
	case bucket.Sequence() == 0:
		return newTermRange(recent, term, ascending, m)
	case recent.Sequence() == 0:
		return newTermRange(bucket, term, ascending, m)
	}
	return &union{ascending: ascending, members: []orders{
		newTermRange(bucket, term, ascending, m), newTermRange(recent, term, ascending, m),
	}}
}

// termSize is the size of a term in a posting, in bytes. Terms that agree in these bytes collide.
const termSize = 5

// appendTerm appends the upper termSize bytes of a term.
func appendTerm(dst []byte, term uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], term)
	return append(dst, b[:termSize]...)
}

func (t *termRange) seek(order []byte) []byte {
	if t.meter.ended() {
		return nil
	}
	t.key = append(t.key[:termSize], order...)
	if t.ascending {
		return t.strip(t.cursor.seek(t.key))
	}
	if order == nil {
		// 0xff sorts behind every sort_order, since it does not occur in UTF-8.
		t.key = append(t.key, 0xff)
	}
	return t.strip(t.cursor.seekDown(t.key))
}

func (t *termRange) next() []byte {
	if t.meter.ended() {
		return nil
	}
	if t.ascending {
		return t.strip(t.cursor.next())
	}
	return t.strip(t.cursor.previous())
}

// strip returns the sort_order of a posting, or nil for a posting of another term.
func (t *termRange) strip(k []byte) []byte {
	if len(k) <= termSize || !bytes.Equal(k[:termSize], t.key[:termSize]) {
		return nil
	}
	return k[termSize:]
}

// seekDown moves a cursor to the last key at or below the given key.
func seekDown(c *bbolt.Cursor, key []byte) (k, v []byte) {
	k, v = c.Seek(key)
	switch {
	case k == nil:
		return c.Last()
	case bytes.Equal(k, key):
		return k, v
	}
	return c.Prev()
}

// union iterates over the sort_orders of its members, each once. The heap holds the members that have not ended,
// ordered by their current sort_order.
type union struct {
	members   []orders
	ascending bool
	heap      []unionEntry
	begun     bool
	last      []byte // a copy of the last result
}

type unionEntry struct {
	orders
	at []byte
}

// seek moves only the members that are behind order, if the iteration continues in its direction. A join seeks in this
// way.
func (u *union) seek(order []byte) []byte {
	if u.begun && order != nil && !before(order, u.last, u.ascending) {
		for len(u.heap) > 0 && before(u.heap[0].at, order, u.ascending) {
			u.replaceTop(u.heap[0].seek(order))
		}
		return u.top()
	}
	u.begun = true
	u.heap = u.heap[:0]
	for _, m := range u.members {
		if at := m.seek(order); at != nil {
			u.heap = append(u.heap, unionEntry{orders: m, at: at})
		}
	}
	for i := len(u.heap)/2 - 1; i >= 0; i-- {
		u.down(i)
	}
	return u.top()
}

func (u *union) next() []byte {
	for len(u.heap) > 0 && bytes.Equal(u.heap[0].at, u.last) {
		u.replaceTop(u.heap[0].next())
	}
	return u.top()
}

// replaceTop records that the top member has moved to at, and restores the heap.
func (u *union) replaceTop(at []byte) {
	if u.heap[0].at = at; at == nil {
		end := len(u.heap) - 1
		u.heap[0] = u.heap[end]
		u.heap = u.heap[:end]
	}
	u.down(0)
}

func (u *union) top() []byte {
	if len(u.heap) == 0 {
		return nil
	}
	u.last = append(u.last[:0], u.heap[0].at...)
	return u.last
}

func (u *union) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(u.heap) {
			return
		}
		if right := child + 1; right < len(u.heap) && before(u.heap[right].at, u.heap[child].at, u.ascending) {
			child = right
		}
		if !before(u.heap[child].at, u.heap[i].at, u.ascending) {
			return
		}
		u.heap[i], u.heap[child] = u.heap[child], u.heap[i]
		i = child
	}
}

// before reports whether a comes before b in the direction of the iteration.
func before(a, b []byte, ascending bool) bool {
	if ascending {
		return bytes.Compare(a, b) < 0
	}
	return bytes.Compare(a, b) > 0
}

// join iterates over the sort_orders that all members have. Each member in turn seeks to the position of the member
// that is furthest ahead, so sort_orders of a single member are skipped, not scanned (a leapfrog join).
type join struct {
	members   []orders
	ascending bool
	at        []byte // a copy of the last result
}

func (j *join) seek(order []byte) []byte { return j.firstCommon(j.members[0].seek(order)) }

func (j *join) next() []byte { return j.firstCommon(j.members[0].next()) }

// firstCommon moves all members to the first common sort_order at or behind candidate.
func (j *join) firstCommon(candidate []byte) []byte {
	if candidate == nil {
		return nil
	}
	j.at = append(j.at[:0], candidate...)
	for agreed, i := 1, 1%len(j.members); agreed < len(j.members); i = (i + 1) % len(j.members) {
		at := j.members[i].seek(j.at)
		switch {
		case at == nil:
			return nil
		case bytes.Equal(at, j.at):
			agreed++
		default:
			j.at = append(j.at[:0], at...)
			agreed = 1
		}
	}
	return j.at
}

// list iterates over sort_orders in memory, which are sorted in the direction of the iteration.
type list struct {
	sorted    [][]byte
	ascending bool
	at        int
}

func (l *list) seek(order []byte) []byte {
	for l.at = 0; order != nil && l.at < len(l.sorted) && before(l.sorted[l.at], order, l.ascending); {
		l.at++
	}
	return l.current()
}

func (l *list) next() []byte {
	l.at++
	return l.current()
}

func (l *list) current() []byte {
	if l.at >= len(l.sorted) {
		return nil
	}
	return l.sorted[l.at]
}
