package follower

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// watch is a packet that is looked up again: it is unfinished, has a quarantined row, or may be missing.
type watch struct {
	hash        string
	due         time.Time
	interval    time.Duration // time from the last lookup to due
	looked      time.Time     // when it was last looked up
	wanted      bool          // look up at once: it is missing here, or it is known to have changed upstream
	quarantined []index.RowID // its quarantined rows
	waiting     int           // those of them that wait for a check against the chain
	ended       bool          // the packet has ended; one more lookup follows
	gone        int           // consecutive lookups that lacked a row of the index
	removed     bool          // the upstream no longer has it, and its rows are removed
	notFound    bool          // the last lookup found nothing, so a sweep that finds it listed does not ask at once
	plain       bool          // lookups omit the upstream's decoded fields, which are computed from the packet's data
	heapIndex   int           // position in the heap
	size        int           // bytes that it counts for in watches.size
}

// whole reports whether the packet's transfers are requested even if the packet is unchanged.
func (e *watch) whole() bool { return e.wanted || e.ended || len(e.quarantined) > 0 }

// watches are packets ordered by due time. They implement heap.Interface.
type watches struct {
	by      map[string]*watch
	heap    []*watch
	wanting int
	size    int  // of all watches, in bytes
	waiting int  // rows that wait for a check against their chain
	full    bool // a watch was dropped because it did not fit
}

func (w *watches) Len() int           { return len(w.heap) }
func (w *watches) Less(i, j int) bool { return w.heap[i].due.Before(w.heap[j].due) }
func (w *watches) Swap(i, j int) {
	w.heap[i], w.heap[j] = w.heap[j], w.heap[i]
	w.heap[i].heapIndex, w.heap[j].heapIndex = i, j
}
func (w *watches) Push(x any) {
	e := x.(*watch)
	e.heapIndex = len(w.heap)
	w.heap = append(w.heap, e)
}
func (w *watches) Pop() any {
	last := w.heap[len(w.heap)-1]
	w.heap = w.heap[:len(w.heap)-1]
	return last
}

// due returns when the next lookup is due.
func (w *watches) due() time.Time {
	if len(w.heap) == 0 {
		return never
	}
	return w.heap[0].due
}

// wanted reports whether rows are known to be missing.
func (w *watches) wanted() bool { return w.wanting > 0 }

// seen reports whether every watch has been looked up since then and no row is known to be missing.
func (w *watches) seen(since time.Time) bool {
	for _, e := range w.heap {
		if e.looked.Before(since) {
			return false
		}
	}
	return w.wanting == 0
}

// maxWatched bounds the memory of watches, in bytes. An upstream can invent packets without end, with hashes of any
// length and any number of transfers that do not verify. The limit is enough for 200,000 packets. Further packets are
// watched once others have ended; see restoreDue.
const maxWatched = 60 << 20

// bytes is the approximate memory of a watch with its map and heap entries: 290 bytes for an unfinished packet.
func (e *watch) bytes() int {
	const each, eachApart = 224, 48
	n := each + len(e.hash)
	for _, id := range e.quarantined {
		n += eachApart + len(id.Key)
	}
	return n
}

// set schedules a lookup. If the watch does not fit into memory, set removes it and returns false.
func (w *watches) set(e *watch, due time.Time) bool {
	e.due = due
	known, grown := w.by[e.hash] == e, e.bytes()-e.size
	if w.size+grown > maxWatched {
		w.full = true
		w.awaits(e, 0)
		if w.want(e, false); known {
			w.remove(e)
		}
		return false
	}
	w.size += grown
	e.size += grown
	if known {
		heap.Fix(w, e.heapIndex)
		return true
	}
	w.by[e.hash] = e
	heap.Push(w, e)
	return true
}

func (w *watches) remove(e *watch) {
	w.want(e, false)
	w.awaits(e, 0)
	delete(w.by, e.hash)
	heap.Remove(w, e.heapIndex)
	w.size -= e.size
	e.size = 0
}

// awaits records how many rows of a packet wait for a check against its chain.
func (w *watches) awaits(e *watch, rows int) {
	w.waiting += rows - e.waiting
	e.waiting = rows
}

// wait records that the quarantined rows of a packet wait for a check against its chain, and schedules the next one
// without backing off: the chain will know the packet soon.
func (w *watches) wait(hash string, after time.Duration, now time.Time) {
	e := w.by[hash]
	if e == nil {
		return
	}
	e.interval = after
	w.awaits(e, len(e.quarantined))
	w.set(e, now.Add(jitter(after)))
}

func (w *watches) want(e *watch, wanted bool) {
	if e.wanted != wanted {
		e.wanted = wanted
		if wanted {
			w.wanting++
		} else {
			w.wanting--
		}
	}
}

// note schedules or ends lookups of a packet that has just arrived. first is the lookup interval after a change. all
// means that every row of the packet arrived; otherwise rows that were quarantined before stay listed.
func (w *watches) note(hash string, packet index.Row, apart []index.RowID, all bool, first time.Duration,
	now time.Time) {
	e := w.by[hash]
	if e != nil {
		w.awaits(e, 0)
	}
	if e != nil && !all {
		apart = union(e.quarantined, apart)
	}
	if len(apart) == 0 && !unfinished(packet) {
		w.end(e, first, now)
		return
	}
	if e == nil {
		e = &watch{hash: hash}
	}
	if len(apart) > 0 && len(e.quarantined) > 0 {
		e.interval *= 2 // back off while the upstream does not correct the row
	} else {
		e.interval = first
	}
	w.want(e, false)
	e.looked, e.quarantined, e.ended, e.notFound, e.plain = now, apart, false, false, isPlain(packet)
	w.set(e, now.Add(jitter(e.interval)))
}

// isPlain reports whether all decoded fields of a packet can be computed here.
func isPlain(packet index.Row) bool {
	if packet.IsZero() {
		return false
	}
	version, _ := packet.Text(index.PacketChannelVersionColumn)
	return version == zkgm.ChannelVersion
}

// union returns the elements of both lists.
func union(a, b []index.RowID) []index.RowID {
	all := slices.Clone(a)
	in := make(map[index.RowID]bool, len(a))
	for _, id := range a {
		in[id] = true
	}
	for _, id := range b {
		if !in[id] {
			all = append(all, id)
		}
	}
	return all
}

// end schedules one last lookup of a packet that has ended, since its transfers may be reported later. It does not do
// so for a packet that was never watched.
func (w *watches) end(e *watch, after time.Duration, now time.Time) {
	switch {
	case e == nil:
	case e.ended:
		w.remove(e)
	default:
		w.want(e, false)
		e.looked, e.quarantined, e.ended = now, nil, true
		w.set(e, now.Add(after))
	}
}

// call schedules an immediate lookup of a packet that is missing here or has changed.
func (w *watches) call(hash string, now time.Time) {
	e := w.by[hash]
	if e == nil {
		e = &watch{hash: hash}
	}
	w.want(e, true)
	w.set(e, now)
}

// popDue returns up to n watches that are due.
func (w *watches) popDue(n int, now time.Time) (due []*watch) {
	for len(due) < n && len(w.heap) > 0 && !w.heap[0].due.After(now) {
		due = append(due, heap.Pop(w).(*watch))
	}
	for _, e := range due {
		heap.Push(w, e) // they stay due until they are answered
	}
	return due
}

// lookUp looks up due packets, only as many as fit into one request, so that it makes progress even if many requests
// fail. If the upstream refuses the request, its packets are rescheduled as usual, so that one bad packet does not hold
// up the others.
func (f *Follower) lookUp(ctx context.Context) error {
	due := f.watched.popDue(int(f.share.Load()), f.o.Now())
	f.due.lookUps = f.o.Now().Add(f.o.PollInterval) // if this fails, other due tasks go first
	err := f.lookUpAll(ctx, due)
	if _, refused := errors.AsType[*QueryError](err); refused {
		for _, e := range due {
			f.watched.set(e, f.o.Now().Add(jitter(f.clampLookup(e.interval))))
		}
	}
	return err
}

// lookUpAll requests packets, and the transfers of the changed ones.
func (f *Follower) lookUpAll(ctx context.Context, due []*watch) error {
	here, err := f.packetsOf(ctx, due)
	if err != nil {
		return err
	}
	parts := make([]part, len(due))
	for i, e := range due {
		parts[i] = part{t: index.PacketType, hash: e.hash, limit: 1, plain: e.plain}
		if e.plain && !e.whole() && e.interval < f.o.RefreshInterval { // only of packets in progress for a short time
			parts[i].here = here[i]
		}
	}
	answers, c, err := f.query(ctx, parts...)
	if err != nil {
		return err
	}
	f.noteCounts(c)
	changed := changedOf(due, here, answers)
	in := f.newIngest()
	var rows []index.Row
	for i, a := range answers {
		if changed[due[i].hash] {
			rows = append(rows, a.rows...)
		}
	}
	if err := in.addAll(ctx, rows); err != nil {
		return err
	}
	transfers, all, err := f.transfersOf(ctx, changed)
	if err != nil {
		return err
	}
	if err := in.add(ctx, nil, transfers); err != nil {
		return err
	}
	in.all = all
	in.withdraw(due, answers)
	uncertain, err := f.vanished(ctx, due, answers, in)
	if err != nil {
		return err
	}
	if err := in.write(ctx); err != nil {
		return err
	}
	f.postpone(due, answers, in)
	f.lookAgain(uncertain)
	f.due.lookUps = f.o.Now()
	return nil
}

// packetsOf returns the packets as the index has them; the zero row for one that it lacks.
func (f *Follower) packetsOf(ctx context.Context, due []*watch) ([]index.Row, error) {
	here := make([]index.Row, len(due))
	err := view(ctx, f.o.Index, func(snap snapshot) (err error) {
		for i := 0; i < len(due) && err == nil; i++ {
			here[i], err = packetOf(ctx, snap, due[i].hash)
			here[i] = here[i].Clone()
		}
		return err
	})
	return here, err
}

// changedOf returns the hashes of packets that differ from the index, or for which transfers are requested anyway.
func changedOf(due []*watch, here []index.Row, answers []answer) map[string]bool {
	changed := make(map[string]bool)
	for i, e := range due {
		if rows := answers[i].rows; e.whole() || len(rows) > 0 &&
			(here[i].IsZero() || !bytes.Equal(here[i].Bytes(), rows[0].Bytes())) {
			changed[e.hash] = true
		}
	}
	return changed
}

// Limits on the transfers read for packets, against an upstream whose pages never end.
const (
	maxTransferPages = 100
	maxTransferBytes = 4 * batchBytes
)

// transfersOf requests all transfers of packets. all are the hashes of packets whose transfers could all be read.
func (f *Follower) transfersOf(ctx context.Context,
	hashes map[string]bool) (rows []index.Row, all map[string]bool, err error) {
	var parts []part
	for hash := range hashes {
		parts = append(parts, part{t: index.TransferType, hash: hash, limit: index.MaxLimit})
	}
	all = maps.Clone(hashes)
	size := 0
	for pages := 0; len(parts) > 0; pages++ {
		if pages == maxTransferPages || size >= maxTransferBytes {
			f.report([]error{fmt.Errorf("the packet %s has more transfers than the limit of %d pages or %d MiB",
				show(parts[0].hash), maxTransferPages, maxTransferBytes>>20)})
			for _, p := range parts {
				delete(all, p.hash)
			}
			break
		}
		n := min(len(parts), maxParts)
		answers, c, err := f.query(ctx, parts[:n]...)
		if err != nil {
			return nil, nil, err
		}
		f.noteCounts(c)
		asked := parts[:n]
		parts = parts[n:]
		for i, a := range answers {
			rows = append(rows, a.rows...)
			for _, row := range a.rows {
				size += len(row.Bytes())
			}
			if len(a.bad) > 0 {
				delete(all, asked[i].hash)
			}
			if next := asked[i]; mayGoOn(a) && len(a.orders) > 0 && resume(a.orders) != next.cursor {
				next.cursor = resume(a.orders) // the packet has more orders than fit on a page
				parts = append(parts, next)
			}
		}
	}
	return rows, all, nil
}

// postpone reschedules packets that were looked up and did not arrive anew. The interval grows with the packet's age.
func (f *Follower) postpone(due []*watch, answers []answer, in *ingest) {
	now := f.o.Now()
	for i, e := range due {
		if p := in.packets[e.hash]; p != nil && p.came || len(in.doubted[e.hash]) > 0 {
			continue // note has rescheduled it already
		}
		gone := len(answers[i].rows) == 0
		if e.ended || gone && (e.removed || len(e.quarantined) > 0) {
			f.watched.remove(e)
			continue
		}
		e.notFound = gone
		if e.interval *= 2; !gone {
			e.interval = f.firstLookup(answers[i].rows[0], now)
		}
		f.watched.want(e, false)
		e.looked, e.interval = now, f.clampLookup(e.interval)
		if f.watched.full && e.interval == f.o.LookupInterval {
			f.watched.remove(e) // restoreOn will add it again
			continue
		}
		f.watched.set(e, now.Add(jitter(e.interval)))
	}
}
