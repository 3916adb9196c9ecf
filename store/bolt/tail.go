package bolt

import (
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"
)

// leaves follow each other in the journal. Those that a head has are not changed any more; what is added later is behind them.
type leaves struct {
	first   int64 // index
	entries []appliance.Entry
	hashes  []tlog.Hash // that they complete, as they are stored
}

// entry returns an entry, or nil.
func (l *leaves) entry(index int64) *appliance.Entry {
	if i := index - l.first; i >= 0 && i < int64(len(l.entries)) {
		return &l.entries[i]
	}
	return nil
}

// lookup is an entry of a lookup bucket.
type lookup struct {
	bucket string
	name   []byte
}

// segment is leaves that go into the file at once, and what leads to them.
type segment struct {
	leaves
	ids         map[uuid.UUID]int64
	idempotency map[string]int64            // by name
	unspendable map[appliance.Address]int64 // of the first record of each
	checkpoint  []byte                      // of the tree that ends with them
	last        time.Time                   // of the newest
}

func newSegment(first int64) *segment {
	return &segment{
		leaves: leaves{first: first},
		ids:    make(map[uuid.UUID]int64), idempotency: make(map[string]int64),
		unspendable: make(map[appliance.Address]int64),
	}
}

// add makes an entry the next leaf of the tree and of the segment.
func (s *segment) add(frontier *appliance.Frontier, e appliance.Entry) {
	s.hashes = frontier.Add(s.hashes, tlog.RecordHash(e.Leaf))
	s.last = e.Time()
	s.append(e)
}

func (s *segment) append(e appliance.Entry) {
	s.entries = append(s.entries, e)
	s.ids[e.ID()] = e.Index
	if r := &e.Record; r.IdempotencyKey != "" {
		s.idempotency[string(idempotencyName(r.KeyID, r.IdempotencyKey))] = e.Index
	}
	if _, there := s.unspendable[e.Record.UnspendableAddress]; !there && e.Event == nil {
		s.unspendable[e.Record.UnspendableAddress] = e.Index
	}
}

// extend adds the leaves of a segment that follows.
func (s *segment) extend(next *segment) {
	for _, e := range next.entries {
		s.append(e)
	}
	s.hashes = append(s.hashes, next.hashes...)
	s.checkpoint, s.last = next.checkpoint, next.last
}

// find returns the entry that a name leads to, or nil.
func (s *segment) find(l lookup) *appliance.Entry {
	var index int64
	found := false
	switch l.bucket {
	case bucketIDs:
		index, found = s.ids[uuid.UUID(l.name)]
	case bucketIdempotency:
		index, found = s.idempotency[string(l.name)]
	case bucketByUnspendable:
		index, found = s.unspendable[appliance.Address(l.name)]
	}
	if !found {
		return nil
	}
	return s.entry(index)
}

// recent is the leaves that were answered and that the file may lack. All methods are safe for concurrent use.
type recent struct {
	mu       sync.RWMutex // protects segments and what they hold
	segments []*segment   // in order: one that is being filed, one that grows
}

// find returns the entry that a name leads to, or nil.
func (r *recent) find(l lookup) *appliance.Entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.segments {
		if e := s.find(l); e != nil {
			return e
		}
	}
	return nil
}

// add adds leaves that are on the disk, to the last segment or as one of their own.
func (r *recent) add(next *segment, own bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.segments); n > 0 && !own {
		r.segments[n-1].extend(next)
		return
	}
	r.segments = append(r.segments, next)
}

// drop forgets the first segment.
func (r *recent) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments = append([]*segment(nil), r.segments[1:]...)
}

// tail is the leaves as a head has them.
func (r *recent) tail() []leaves {
	r.mu.RLock()
	defer r.mu.RUnlock()
	tail := make([]leaves, len(r.segments))
	for i, s := range r.segments {
		tail[i] = s.leaves
	}
	return tail
}
