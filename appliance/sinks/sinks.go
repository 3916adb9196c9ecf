// Package sinks ships the journal to where an enterprise gathers its logs (a SIEM), as audit.sinks says: syslog over TLS (RFC 5424,
// RFC 5425), HTTPS or a file. Each sink follows the journal by itself, from a cursor that moves only once the sink has what was sent: it
// gets every entry at least once and in order, and one that is slow, full or gone holds up nothing but itself.
package sinks

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
)

// Journal is what is followed, see appliance.Journal. An entry is told once a checkpoint covers it.
type Journal interface {
	Checkpoint(ctx context.Context) ([]byte, error)
	Entries(ctx context.Context, first int64, yield func(appliance.Entry) error) error
}

// Sink is where the journal is shipped to.
type Sink struct {
	Name     string // its cursor's and its metrics'
	To       Destination
	Format   Format
	Redact   Redaction
	FromNow  bool          // a new sink begins with what comes, not with the first entry
	Batch    int           // most entries sent at once
	Bytes    int           // most bytes sent at once; an entry that is larger goes alone
	Interval time.Duration // between looks at the journal
	Timeout  time.Duration // within which the destination takes a batch
}

// Destination is one kind of sink. Its methods are called by one goroutine.
type Destination interface {
	// Take returns nil once the destination has the whole batch. After an error the same entries come again, or some of them: it must not
	// matter that it has them already. An error that is errUnsized asks for a smaller batch, a *Later to come back then.
	Take(ctx context.Context, batch []Message) error
	// Close lets go of connections and files.
	Close() error
	// String is where it is, without secrets.
	String() string
}

// Message is an entry as it is sent.
type Message struct {
	Log      string
	Index    int64
	Kind     string // attestation, or the kind of an event
	Time     time.Time
	Text     []byte // one line, without its end
	brief    []byte // instead of a Text that is too long: without the event's details
	severity severity
}

// Options are those of a Shipper.
type Options struct {
	Journal  Journal
	Verifier note.Verifier // of the journal's checkpoints
	Dir      string        // of the cursors
	Version  string        // of attestd
	Logger   *slog.Logger
	Now      func() time.Time // nil means time.Now
}

// Shipper ships a journal to sinks.
type Shipper struct {
	opts      Options
	mu        sync.Mutex
	followers []*follower
}

// New returns a Shipper that ships nothing yet.
func New(o Options) *Shipper {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Shipper{opts: o}
}

// Set ships to these sinks, and to those before no more. A sink of the same name goes on where it was.
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

// stop ends the followers at once: what was not taken is sent again.
func (s *Shipper) stop() {
	for _, f := range s.followers {
		f.cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	for _, f := range s.followers {
		if f.wait(ctx) {
			_ = f.To.Close() // what it had is taken, or will be sent again
		}
	}
	s.followers = nil
}

// stopTimeout is how long a sink may take to be stopped. Only a disk that hangs does not stop at once, and that sink is left to itself.
const stopTimeout = 5 * time.Second

// Close ships what there is to sinks that take it before ctx ends, and then no more.
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

// Status returns how each sink stands.
func (s *Shipper) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, len(s.followers))
	for i, f := range s.followers {
		all[i] = f.standing()
	}
	return all
}

// Status is how a sink stands.
type Status struct {
	Name       string    `json:"name"`
	To         string    `json:"to"`
	Next       int64     `json:"next"`       // index of the first record that it has not taken
	LagRecords *int64    `json:"lagRecords"` // records that it has not taken; nil before the journal could be read
	LagSeconds float64   `json:"lagSeconds"` // age of the oldest of them; 0 where there is none
	Shipped    uint64    `json:"shipped"`    // records that it took since the start, each as often as it was sent
	Failures   uint64    `json:"failures"`   // batches that it did not take
	Failing    string    `json:"failing,omitempty"`
	Since      time.Time `json:"since,omitzero"` // since when it fails
}

// CursorPath is the file of a sink's cursor.
func CursorPath(dir, name string) string { return filepath.Join(dir, name+".json") }
