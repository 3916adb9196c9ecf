package bolt

import (
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"
)

// leaves are consecutive leaves. Leaves that a head refers to are immutable; new ones are appended after them.
type leaves struct {
	first   int64 // index
	entries []*journal.Entry
	hashes  []tlog.Hash // stored hashes that these leaves complete
}

// entry returns an entry, or nil.
func (l *leaves) entry(index int64) *journal.Entry {
	if i := index - l.first; i >= 0 && i < int64(len(l.entries)) {
		return l.entries[i]
	}
	return nil
}

// lookup is an entry of a lookup bucket.
type lookup struct {
	bucket string
	name   []byte
}

// segment is a group of leaves that one transaction flushes into the file, with its lookups.
type segment struct {
	leaves
	ids         map[uuid.UUID]*journal.Entry
	idempotency map[string]*journal.Entry            // by name
	unspendable map[appliance.Address]*journal.Entry // the first record of each
	checkpoint  []byte                               // of the tree after these leaves
	last        time.Time                            // time of the newest
}

func newSegment(first int64) *segment {
	return &segment{
		leaves: leaves{first: first},
		ids:    make(map[uuid.UUID]*journal.Entry), idempotency: make(map[string]*journal.Entry),
		unspendable: make(map[appliance.Address]*journal.Entry),
	}
}

// add appends an entry to the tree and to the segment.
func (s *segment) add(frontier *journal.Frontier, e *journal.Entry) {
	s.hashes = frontier.Add(s.hashes, tlog.RecordHash(e.Leaf))
	s.last = e.Time()
	s.append(e)
}

func (s *segment) append(e *journal.Entry) {
	s.entries = append(s.entries, e)
	s.ids[e.ID()] = e
	if r := &e.Record; r.IdempotencyKey != "" {
		s.idempotency[string(idempotencyName(r.KeyID, r.IdempotencyKey))] = e
	}
	if _, there := s.unspendable[e.Record.UnspendableAddress]; !there && e.Event == nil {
		s.unspendable[e.Record.UnspendableAddress] = e
	}
}

// extend appends the leaves of the next segment.
func (s *segment) extend(next *segment) {
	for _, e := range next.entries {
		s.append(e)
	}
	s.hashes = append(s.hashes, next.hashes...)
	s.checkpoint, s.last = next.checkpoint, next.last
}

// find returns the entry for a name in a lookup bucket, or nil.
func (s *segment) find(l lookup) *journal.Entry {
	switch l.bucket {
	case bucketIDs:
		return s.ids[uuid.UUID(l.name)]
	case bucketIdempotency:
		return s.idempotency[string(l.name)]
	case bucketByUnspendable:
		return s.unspendable[appliance.Address(l.name)]
	}
	return nil
}

// recent has the answered leaves that the file may lack. All methods are safe for concurrent use.
type recent struct {
	mu       sync.RWMutex // protects segments and their content
	segments []*segment   // in order: one being flushed, one that grows
}

// find returns the entry for a name in a lookup bucket, or nil.
func (r *recent) find(l lookup) *journal.Entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.segments {
		if e := s.find(l); e != nil {
			return e
		}
	}
	return nil
}

// add adds synced leaves to the last segment or as a new one.
func (r *recent) add(next *segment, own bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.segments); n > 0 && !own {
		r.segments[n-1].extend(next)
		return
	}
	r.segments = append(r.segments, next)
}

// drop removes the first segment.
func (r *recent) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments = append([]*segment(nil), r.segments[1:]...)
}

// tail returns the leaves for a head.
func (r *recent) tail() []leaves {
	r.mu.RLock()
	defer r.mu.RUnlock()
	tail := make([]leaves, len(r.segments))
	for i, s := range r.segments {
		tail[i] = s.leaves
	}
	return tail
}
