package events

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/sinks"
)

// Options configure a Hub.
type Options struct {
	Journal  sinks.Journal
	Verifier note.Verifier // verifies the journal's checkpoints
	Changes  Changes       // of the replica; nil if there is none
	// Attesting reports whether attestations are being signed, or were a moment ago: streams use less of the processors
	// then. Nil means never.
	Attesting func() bool
	Logger    *slog.Logger // nil discards all messages
}

// Hub reads the journal and the changes of the replica once for all streams, while a stream is open. It keeps the
// newest events in memory. A stream that is behind these reads the log itself, one stream at a time. All methods are
// safe for concurrent use.
type Hub struct {
	feeds  []*feed
	tail   sinks.Tail
	pages  sync.Pool     // of *[]byte; see Stream.page
	turns  chan struct{} // held by the stream whose turn it is; see Stream.begin
	worked time.Duration // length of the turns since the last rest; protected by turns
	catch  chan struct{} // held while a stream reads a log itself
	origin string

	attesting func() bool
}

const (
	readEvery = time.Second // between reads of a log while a stream is open
	// limits of the events in memory, of each log
	keptEvents = 16 << 10
	keptBytes  = 16 << 20
	// readTimeout bounds a read of a log.
	readTimeout = 10 * time.Second
)

// NewHub returns a Hub. It reads nothing before the first stream.
func NewHub(o Options) *Hub {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Hub{turns: make(chan struct{}, 1), catch: make(chan struct{}, 1), origin: o.Verifier.Name(),
		tail: sinks.Tail{Journal: o.Journal, Verifier: o.Verifier}, attesting: o.Attesting}
	if h.attesting == nil {
		h.attesting = func() bool { return false }
	}
	h.feeds = append(h.feeds, newFeed(leaves{h.tail, h.origin}, o.Logger.With("events", "journal")))
	if o.Changes != nil {
		h.feeds = append(h.feeds, newFeed(changes{o.Changes, h.origin}, o.Logger.With("events", "replica")))
	}
	return h
}

// kept is an event in memory, encoded once for all streams.
type kept struct {
	event Event
	text  []byte       // JSON
	next  sinks.Cursor // after the event
}

// feed keeps the newest events of a source.
type feed struct {
	source source
	logger *slog.Logger

	mu      sync.RWMutex // protects the fields below
	readers int
	stop    context.CancelFunc // ends run; nil if no stream is open
	ring    []kept
	bytes   int
	first   sinks.Cursor  // before the first event of ring; zero before the first read
	last    sinks.Cursor  // after the last one
	changed chan struct{} // closed when last changes
}

func newFeed(s source, logger *slog.Logger) *feed {
	return &feed{source: s, logger: logger, changed: make(chan struct{})}
}

// open starts to read the source, if no other stream is open.
func (f *feed) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers++; f.readers > 1 {
		return
	}
	var ctx context.Context
	ctx, f.stop = context.WithCancel(context.Background())
	f.reset(sinks.Cursor{})
	go f.run(ctx)
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		f.stop()
		f.reset(sinks.Cursor{})
	}
}

// reset forgets the events, and begins at a cursor. The caller holds f.mu.
func (f *feed) reset(at sinks.Cursor) {
	f.ring, f.bytes, f.first, f.last = nil, 0, at, at
}

func (f *feed) run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	failing := false
	for ctx.Err() == nil {
		err := f.step(ctx)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			if failing = failed; failed {
				f.logger.Warn("streams of events get no new events, and continue when the log can be read",
					"error", err.Error())
			} else {
				f.logger.Info("streams of events continue")
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// step reads the new events of the source.
func (f *feed) step(ctx context.Context) error {
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	end, err := f.source.end(read)
	if err != nil {
		return err
	}
	f.mu.Lock()
	if ctx.Err() == nil && (f.last.Log != end.Log || f.last.Next > end.Next) { // the first read, or another replica
		f.reset(end)
		f.announce()
	}
	from := f.last
	f.mu.Unlock()
	if from.Next == end.Next {
		return nil
	}
	_, err = f.source.read(read, from, end, func(e Event, next sinks.Cursor) error {
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		return f.keep(ctx, kept{e, text, next})
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil {
		f.last = end
		f.announce()
	}
	return nil
}

// keep adds an event, and drops the oldest beyond the limits.
func (f *feed) keep(ctx context.Context, k kept) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil { // another run may have begun
		return ctx.Err()
	}
	f.ring = append(f.ring, k)
	f.bytes += len(k.text)
	f.last = k.next
	drop := 0
	for len(f.ring)-drop > keptEvents || f.bytes > keptBytes && drop < len(f.ring)-1 {
		f.bytes -= len(f.ring[drop].text)
		f.first = f.ring[drop].next
		f.ring[drop] = kept{}
		drop++
	}
	f.ring = f.ring[drop:]
	return nil
}

// announce wakes the streams. The caller holds f.mu.
func (f *feed) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// since calls take with the events in memory after a cursor, until take returns false, and returns the cursor after
// them. If the cursor is before the events in memory, behind is true. changed is closed after the next change.
func (f *feed) since(at sinks.Cursor,
	take func(kept) (more bool)) (next sinks.Cursor, behind bool, changed <-chan struct{}) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.last.Log == "":
		return at, false, f.changed
	case at.Log != f.last.Log || at.Skip != nil || at.Next < f.first.Next:
		return at, true, f.changed
	case at.Next >= f.last.Next:
		return at, false, f.changed
	}
	for _, k := range f.ring[f.find(at):] {
		if !take(k) {
			return k.next, false, f.changed
		}
	}
	return f.last, false, f.changed
}

// find returns the position in ring of the first event after a cursor. The caller holds f.mu.
func (f *feed) find(at sinks.Cursor) int {
	low, high := 0, len(f.ring)
	for low < high {
		if mid := (low + high) / 2; f.ring[mid].next.Next <= at.Next {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// readPage is how many entries a stream reads of a log before it lets another stream read.
const readPage = 512

// readOld calls take with the events after a cursor that are not in memory, and returns the cursor after them.
func (h *Hub) readOld(ctx context.Context, f *feed, at sinks.Cursor,
	take func(Event, sinks.Cursor) error) (sinks.Cursor, error) {
	select {
	case h.catch <- struct{}{}:
		defer func() { <-h.catch }()
	case <-ctx.Done():
		return at, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	end, err := f.source.end(ctx)
	if err != nil {
		return at, err
	}
	if at.Log != end.Log {
		return at, errOtherLog
	}
	if at.Skip != nil && at.Next >= at.Skip.From {
		return at.To(at.Next), nil
	}
	n := 0
	return f.source.read(ctx, at, end, func(e Event, next sinks.Cursor) error {
		if n++; n > readPage {
			return sinks.ErrEnough
		}
		return take(e, next)
	})
}

// errOtherLog means that the log was replaced while a stream read it. The stream must end, and its client resumes.
var errOtherLog = errors.New("the log was replaced")
