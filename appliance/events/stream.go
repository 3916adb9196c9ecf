package events

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/sinks"
)

const (
	// HeartbeatEvery is how long a stream is silent at most.
	HeartbeatEvery = 15 * time.Second
	// pageBytes bounds the events that Next returns at once, except that it returns at least one event.
	pageBytes = 64 << 10
	// turnTime bounds a turn, so that a reader that is slow delays the others by no more.
	turnTime = 5 * time.Millisecond
	// While the appliance attests, turns are followed by a rest of restShare times their length, once they have added up
	// to restAfter. So streams use at most a quarter of a processor.
	restShare = 3
	restAfter = time.Millisecond
)

// Gap is the type of an event that says that events between the client's last one and the next one are lost. The client
// should read the current state.
const Gap Type = "stream.gap"

// Stream is one reader's events, in the order of each log. One goroutine uses it.
type Stream struct {
	hub    *Hub
	viewer Viewer
	filter Filter
	at     Position
	open   []*reading
	gap    bool  // the next event is a Gap
	signed int64 // size of the newest Checkpoint that the reader has
	ended  bool
	noted  func(Event) // called with each event that Next appends; may be nil
	finish func()      // ends the stream's turn; nil outside a turn
	page   *[]byte     // the memory of what Next returned, from Hub.pages; nil outside a turn
}

// reading is a stream's position in one feed.
type reading struct {
	*feed
	at sinks.Cursor
}

// Open opens a stream that continues after a position. It must be closed.
//
// Errors: CodeScopeRequired as Filter.Allowed; the error of the journal or the replica.
func (h *Hub) Open(ctx context.Context, v Viewer, filter Filter, from Position) (*Stream, error) {
	if err := filter.Allowed(v); err != nil {
		return nil, err
	}
	s := &Stream{hub: h, viewer: v, filter: filter, at: from}
	for i, f := range h.feeds {
		if !s.reads(i == 0) {
			continue
		}
		at, gap, err := f.source.resume(ctx, from)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.gap = s.gap || gap
		f.open()
		s.open = append(s.open, &reading{f, at})
		f.source.place(&s.at, at, Event{})
	}
	if from.Journal.Log == "" {
		s.signed = s.at.Journal.Next
	}
	if len(s.open) == 0 {
		return nil, appliance.Errorf(appliance.CodeScopeRequired, "this API key may see no events")
	}
	return s, nil
}

// reads reports whether the stream may get events of the journal, or of the replica.
func (s *Stream) reads(journal bool) bool {
	for _, t := range Types() {
		if (t != TransferUpdated && t != PacketUpdated) == journal && s.viewer.sees(t) && s.filter.takes(t) {
			return true
		}
	}
	return false
}

// begin waits for the stream's turn. One event may be for a thousand streams. If all of them made and wrote it at once,
// an attestation would wait for a processor behind them all. Streams get turns in the order in which they ask.
func (s *Stream) begin(ctx context.Context) {
	select {
	case s.hub.turns <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := time.Now()
	end := sync.OnceFunc(func() { <-s.hub.turns })
	timer := time.AfterFunc(turnTime, end)
	s.finish = func() {
		if !timer.Stop() {
			return // the turn is over: its reader is slow, which takes no processor time
		}
		if rest := s.hub.rest(time.Since(began)); rest > 0 {
			time.AfterFunc(rest, end)
		} else {
			end()
		}
	}
}

// rest returns how long the turns rest after a turn. The caller has the turn.
func (h *Hub) rest(after time.Duration) (rest time.Duration) {
	if h.worked += after; h.worked >= restAfter {
		if h.attesting() {
			rest = restShare * h.worked
		}
		h.worked = 0
	}
	return rest
}

// end ends the stream's turn, if it has one, and releases its page.
func (s *Stream) end() {
	if s.finish != nil {
		s.finish()
		s.finish = nil
	}
	if s.page != nil {
		s.hub.pages.Put(s.page)
		s.page = nil
	}
}

// Close ends the stream.
func (s *Stream) Close() {
	s.end()
	for _, r := range s.open {
		r.close()
	}
	s.open = nil
}

// Next returns the next events as server-sent events (HTML Standard, section 9.2), and their number. It waits until
// there is one, or until a heartbeat is due. A heartbeat has an id, too, so that a client that saw no event for long
// resumes after the events that were not for it. ok is false if the stream has ended: the client's API key was revoked,
// or a log was replaced, or ctx ended.
//
// The text is valid until the next call. The stream's turn continues until then: the caller writes the text.
func (s *Stream) Next(ctx context.Context) (text []byte, events int, ok bool) {
	s.end()
	beat := time.NewTimer(HeartbeatEvery)
	defer beat.Stop()
	if s.gap {
		s.gap = false
		return s.appendGap(nil), 1, true
	}
	for {
		s.begin(ctx)
		s.page, _ = s.hub.pages.Get().(*[]byte)
		if s.page == nil {
			s.page = new([]byte)
		}
		text, events, changed := s.collect(ctx, (*s.page)[:0])
		*s.page = text
		switch {
		case len(text) > 0:
			return text, events, true
		case s.ended || ctx.Err() != nil:
			return nil, 0, false
		}
		s.end()
		if !wait(ctx, beat.C, changed) {
			return s.appendID([]byte(": heartbeat\n")), 0, ctx.Err() == nil
		}
	}
}

// collect appends the events that there are. changed has a channel for each log that is closed when there may be more.
func (s *Stream) collect(ctx context.Context, buf []byte) (_ []byte, events int, changed []<-chan struct{}) {
	for _, r := range s.open {
		var n int
		var next <-chan struct{}
		buf, n, next = s.take(ctx, r, buf)
		events += n
		changed = append(changed, next)
	}
	if size := len(buf); s.at.Journal.Next > s.signed {
		if buf = s.appendCheckpoint(ctx, buf); len(buf) > size {
			events++
		}
	}
	return buf, events, changed
}

// Begin appends the first lines of a stream: the pause before a reconnect, and the id from which the client resumes.
func (s *Stream) Begin(buf []byte) []byte {
	return s.appendID(append(buf, "retry: 1000\n"...))
}

// wait returns true after a change, and false when a heartbeat is due or ctx has ended.
func wait(ctx context.Context, beat <-chan time.Time, changed []<-chan struct{}) bool {
	var other <-chan struct{}
	if len(changed) > 1 {
		other = changed[1]
	}
	select {
	case <-changed[0]:
		return true
	case <-other:
		return true
	case <-beat:
	case <-ctx.Done():
	}
	return false
}

// take appends the events of one log. changed is closed when there may be more.
func (s *Stream) take(ctx context.Context, r *reading, buf []byte) (_ []byte, events int, changed <-chan struct{}) {
	most := len(buf) + pageBytes
	next, behind, changed := r.since(r.at, func(k kept) bool {
		if s.wants(k.event) {
			r.source.place(&s.at, k.next, k.event)
			buf = s.appendEvent(buf, k.event, k.text)
			events++
		}
		return len(buf) < most && !s.ended
	})
	if !behind {
		s.moved(r, next)
		if len(buf) >= most {
			changed = now
		}
		return buf, events, changed
	}
	next, err := s.hub.readOld(ctx, r.feed, r.at, func(e Event, after sinks.Cursor) error {
		if len(buf) >= most {
			return sinks.ErrEnough
		}
		if !s.wants(e) {
			return nil
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		r.source.place(&s.at, after, e)
		buf = s.appendEvent(buf, e, text)
		events++
		return nil
	})
	if err != nil {
		s.ended = true
		return buf, events, changed
	}
	if next == r.at { // no events can be read yet
		return buf, events, changed
	}
	s.moved(r, next)
	return buf, events, now
}

// now is always closed.
var now = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (s *Stream) moved(r *reading, at sinks.Cursor) {
	r.at = at
	r.source.place(&s.at, at, Event{})
}

// wants reports whether the reader gets an event. The revocation of the reader's API key ends the stream.
func (s *Stream) wants(e Event) bool {
	if e.Type == "key.revoked" && e.Subject == s.viewer.KeyID && e.Subject != "" {
		s.ended = true
	}
	return !s.ended && s.viewer.May(e) && s.filter.Matches(e)
}

func (s *Stream) appendEvent(buf []byte, e Event, text []byte) []byte {
	if s.noted != nil {
		s.noted(e)
	}
	buf = append(append(append(buf, "data: "...), text...), '\n') // compact JSON has no line break
	return s.appendID(buf)
}

// appendID ends an event with its id.
func (s *Stream) appendID(buf []byte) []byte {
	return append(s.at.appendTo(append(buf, "id: "...)), "\n\n"...)
}

// appendCheckpoint appends the newest checkpoint. It may cover leaves whose events follow. A checkpoint that cannot be
// read is skipped.
func (s *Stream) appendCheckpoint(ctx context.Context, buf []byte) []byte {
	e := Event{Source: s.hub.origin, Type: Checkpoint, Time: time.Now(), Index: -1}
	if !s.wants(e) {
		return buf
	}
	signed, tree, err := s.hub.tail.Checkpoint(ctx)
	if err != nil {
		return buf
	}
	s.signed = tree.N
	e.ID = fmt.Sprintf("%s/%d", s.hub.tail.Log(), tree.N)
	e.Data, _ = json.Marshal(checkpoint{s.hub.tail.Log(), tree.N, hex.EncodeToString(tree.Hash[:]), string(signed)})
	text, _ := json.Marshal(e) // neither can fail
	return s.appendEvent(buf, e, text)
}

// checkpoint is the data of a Checkpoint.
type checkpoint struct {
	Log        string `json:"log"`
	Size       int64  `json:"size"`
	RootHash   string `json:"rootHash"`   // hex
	Checkpoint string `json:"checkpoint"` // signed (C2SP tlog-checkpoint)
}

func (s *Stream) appendGap(buf []byte) []byte {
	gap := Event{ID: "gap " + s.at.String(), Source: s.hub.origin, Type: Gap, Time: time.Now(),
		Data: json.RawMessage(`{}`)}
	text, _ := json.Marshal(gap) // cannot fail
	return s.appendEvent(buf, gap, text)
}
