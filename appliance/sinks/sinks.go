// Package sinks ships the journal to log collectors (SIEM) over syslog with TLS (RFC 5424, RFC 5425), HTTPS or a file,
// as configured by audit.sinks. Package webhooks ships to webhooks with it. Each sink follows the journal independently,
// from a cursor that advances only after the sink has accepted a batch. A sink gets every entry at least once and in
// order. A slow, full or unreachable sink delays no other sink and no attestation.
package sinks

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/journal"
)

// Journal is the part of journal.Journal that sinks follow. An entry is shipped once a checkpoint covers it.
type Journal interface {
	Checkpoint(ctx context.Context) ([]byte, error)
	Entries(ctx context.Context, first int64, yield func(journal.Entry) error) error
}

// Sink is a destination with its settings.
type Sink struct {
	Name     string // names its cursor and its metrics
	To       Destination
	Format   Format
	Redact   Redaction
	FromNow  bool          // a new sink begins with the next entry, not with the first
	Batch    int           // maximum entries per batch
	Bytes    int           // maximum bytes per batch; a larger entry is sent alone
	Interval time.Duration // between reads of the journal
	Timeout  time.Duration // time limit for sending a batch

	// Encode returns the message of an entry, or ok false for an entry that the sink does not get. Nil means all
	// entries, in Format and with Redact.
	Encode func(ctx context.Context, e journal.Entry) (m Message, ok bool, err error)
	// Before is called before each read of the journal, after its size is known. After its error nothing is read. It may
	// be nil.
	Before func(ctx context.Context) error
}

// Destination is one kind of sink. One goroutine calls its methods.
type Destination interface {
	// Send returns nil once the destination has accepted the whole batch. After an error, some or all of its entries
	// are sent again, so duplicates must be harmless. errUnsized asks for a smaller batch, and *Later for a pause.
	Send(ctx context.Context, batch []Message) error
	// Close closes connections and files.
	Close() error
	// String returns the destination's address without secrets.
	String() string
}

// Message is an encoded entry.
type Message struct {
	Log      string
	Index    int64
	Kind     string // attestation, or the kind of an event
	Time     time.Time
	Text     []byte // one line, without its line end
	ID       string // of the event; only from Sink.Encode
	Subject  string // of the event; only from Sink.Encode
	brief    []byte // replaces a Text that is too long: the same without the event's details
	severity severity
}

// Options configure a Shipper.
type Options struct {
	Journal  Journal
	Verifier note.Verifier // verifies the journal's checkpoints
	Cursors  Cursors
	Version  string // of attestd
	Logger   *slog.Logger
	Now      func() time.Time // nil means time.Now
}

// Shipper ships a journal to sinks.
type Shipper struct {
	opts      Options
	mu        sync.Mutex
	followers []*follower
}

// New returns a Shipper without sinks; see Set.
func New(o Options) *Shipper {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Shipper{opts: o}
}

// Set replaces the sinks. A sink with the name of a previous sink continues at its cursor.
func (s *Shipper) Set(sinks []Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
	for _, sink := range sinks {
		f := newFollower(s.opts, sink)
		s.followers = append(s.followers, f)
		f.start()
	}
}

// stop ends the followers at once. Batches that were not accepted are sent again later.
func (s *Shipper) stop() {
	for _, f := range s.followers {
		f.cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	for _, f := range s.followers {
		if f.wait(ctx) {
			_ = f.To.Close() // what it holds was accepted or is sent again
		}
	}
	s.followers = nil
}

// stopTimeout bounds the wait for a sink to stop. Only a hung disk takes that long; such a sink is abandoned.
const stopTimeout = 5 * time.Second

// Close ships the remaining entries until ctx ends, and then stops all sinks.
func (s *Shipper) Close(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var wg sync.WaitGroup
	for _, f := range s.followers {
		f.cancel()
		wg.Go(func() {
			if f.wait(ctx) {
				f.finish(ctx)
			}
		})
	}
	wg.Wait()
	s.stop()
}

// Status returns the status of each sink.
func (s *Shipper) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, len(s.followers))
	for i, f := range s.followers {
		all[i] = f.standing()
	}
	return all
}

// Status is the status of a sink.
type Status struct {
	Name       string    `json:"name"`
	To         string    `json:"to"`
	Next       int64     `json:"next"`       // index of the first record that was not shipped
	LagRecords *int64    `json:"lagRecords"` // records that were not shipped; nil until the journal was read
	LagSeconds float64   `json:"lagSeconds"` // age of the oldest record that was not shipped; 0 if all were
	Shipped    uint64    `json:"shipped"`    // records shipped since the start, repeats included
	Failures   uint64    `json:"failures"`   // failed steps: reads of the journal and batches
	Failing    string    `json:"failing,omitempty"`
	Since      time.Time `json:"since,omitzero"` // time of the first failure in a row
}
