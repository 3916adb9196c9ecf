package events

import (
	"context"
	"slices"
)

// Rows are rows of the replica that a client follows. A stream of them has messages instead of events.
type Rows struct {
	Filter Filter // selects the changes after which Changed is called
	// First returns the message that begins the stream.
	First func(ctx context.Context) Message
	// Changed returns the message after a change of a packet, by the packet's hash. Its text is empty if the rows do not
	// have the packet.
	Changed func(ctx context.Context, packet string) Message
}

// Message is one or more server-sent events.
type Message struct {
	Text []byte
	// Extra is how many requests its text costs beyond one. A message is charged as the query that makes it.
	Extra float64
	Done  func() // must be called once the text is no longer used, unless the text is empty
}

// NextSubjects waits as Next does, but returns the subjects of the next events, each once, in order. It returns none if
// a heartbeat is due.
func (s *Stream) NextSubjects(ctx context.Context) (subjects []string, ok bool) {
	s.noted = func(e Event) {
		if !slices.Contains(subjects, e.Subject) {
			subjects = append(subjects, e.Subject)
		}
	}
	_, _, ok = s.Next(ctx)
	return subjects, ok
}
