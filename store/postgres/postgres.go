// Package postgres keeps API keys and the journal of several appliances in one PostgreSQL database: it implements appliance.Keys and
// appliance.Journal. The journal is an RFC 6962 Merkle tree with C2SP tlog-checkpoint signatures.
//
// The row log_head is the only point of order: a batch of records is one transaction that locks it, looks at the API keys and
// idempotency keys of the batch, inserts, and moves the head. There is no leader and nothing is kept in memory on which a commit
// relies. It takes row locks and READ COMMITTED, nothing more. The tables are told in migrations.
//
// What is read is not trusted: a head must be signed by the log key, and proofs are made of hashes that lead to its root.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/counts"
)

// What the database cannot be used for; errors.Is tells them in the causes of errors.
var (
	ErrNoSchema    = errors.New("the database has no schema of attestd")
	ErrNewerSchema = errors.New("the schema is of a newer attestd")
	ErrOlderSchema = errors.New("the schema is of an older attestd")
	ErrOtherLog    = errors.New("the journal belongs to another log key")
	ErrDamaged     = errors.New("damaged")
	ErrForgot      = errors.New("the database has forgotten what it had committed")
	ErrForged      = errors.New("the database was changed without the log key")
)

const (
	defaultMaxAhead = 5 * time.Minute
	defaultTimeout  = 8 * time.Second
	defaultReaders  = 8
)

// Options are how a Store is opened.
type Options struct {
	Signer   note.Signer      // signs checkpoints; required unless ReadOnly
	Verifier note.Verifier    // its public half; required
	ReadOnly bool             // changes nothing, and is no member of the cluster
	Copying  bool             // for Import, into an empty journal or one to which that was begun; nothing is appended
	Now      func() time.Time // nil means time.Now
	MaxAhead time.Duration    // nothing is appended while the newest record is further ahead of the clock; zero means 5 min
	Timeout  time.Duration    // how long a change is tried again; zero means 8 s
	Readers  int              // connections for reads; zero means 8. Four more are for what is written
	Logger   *slog.Logger     // nil means none
	Member   Identity         // who this appliance is among the others; without a name it is no member
	Versions string           // path of the file with the highest versions seen of API keys and stop state; "" for none

	// Accept is asked about each head on which records are about to be appended, while its lock is held. An error is the answer to all
	// of them. Nil accepts all.
	Accept func(head tlog.Tree) error

	// Pending tells how many records are about to be appended, such as those being signed: see store/queue. Nil means that
	// nothing is known of them.
	Pending func() int
}

// Identity is how an appliance shows up in Members.
type Identity struct {
	Name, Version string
	Signer        func() string // address of the attestor key, "" while it is not known; nil means never
}

// Store is a database that appliances share. All methods are safe for concurrent use.
type Store struct {
	opts      Options
	url       atomic.Pointer[string]
	read      *pgxpool.Pool // for reads, so that no number of them keeps an append waiting
	write     *pgxpool.Pool // for appends, changes of API keys, and the watch
	keys      *Keys
	journal   *Journal
	writer    *writer // nil when read-only
	confirmer *confirmer
	watch     *watch

	secret  []byte // key of the MACs; nil without the log key
	seen    seenFile
	head    atomic.Pointer[head] // the newest one read; nil before the first
	safe    atomic.Pointer[head] // the newest one that the synchronous standbys have; nil before the first
	offset  atomic.Int64         // of the database's clock from this one's, in nanoseconds
	reads   flight[*head]
	counts  counts.Counts // by indexes in the table, of what is committed
	closing sync.Once
}

// Open opens the database at a URL, postgres://…. It does not wait for the database: what needs it fails with
// CodeJournalUnavailable until it answers. The error is that of Check, or for options that make no sense.
func Open(url string, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := Check(url); err != nil {
		return nil, err
	}
	s := &Store{opts: o, seen: seenFile{path: o.Versions}}
	if err := errors.Join(s.openSecret(), s.seen.load()); err != nil {
		return nil, err
	}
	s.url.Store(&url)
	var err error
	if s.read, err = s.newPool(o.Readers, true); err != nil {
		return nil, err
	}
	if s.write, err = s.newPool(writers, false); err != nil {
		s.read.Close()
		return nil, err
	}
	commits, err := s.newPool(1, false)
	if err != nil {
		s.closePools()
		return nil, err
	}
	s.confirmer = &confirmer{store: s, pool: commits}
	s.keys, s.journal = newKeys(s), &Journal{store: s}
	s.watch = newWatch(s)
	if !o.ReadOnly {
		s.writer = newWriter(s)
	}
	go s.watch.run()
	return s, nil
}

func (o *Options) complete() error {
	if o.Verifier == nil {
		return errors.New("no log verifier key is given")
	}
	if !o.ReadOnly && (o.Signer == nil || appliance.LogName(o.Signer) != appliance.LogName(o.Verifier)) {
		return errors.New("the log key that signs is not that of the verifier")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxAhead == 0 {
		o.MaxAhead = defaultMaxAhead
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Readers == 0 {
		o.Readers = defaultReaders
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// URL is the URL that new connections use.
func (s *Store) URL() string { return *s.url.Load() }

// CheckURL connects to another URL and returns an error unless it leads to this log's journal.
func (s *Store) CheckURL(ctx context.Context, url string) error {
	log, err := LogOf(ctx, url)
	switch {
	case err != nil: // pgx writes a line for each address
		return errors.New(strings.Join(strings.Fields(err.Error()), " "))
	case log != s.log():
		return otherLog(log, s.log())
	}
	return nil
}

// UseURL replaces the URL, which must have passed CheckURL. Open connections are closed as soon as they are idle.
func (s *Store) UseURL(url string) {
	s.url.Store(&url)
	for _, pool := range []*pgxpool.Pool{s.read, s.write, s.confirmer.pool} {
		pool.Reset()
	}
}

// Keys returns the API keys.
func (s *Store) Keys() *Keys { return s.keys }

// Journal returns the journal.
func (s *Store) Journal() *Journal { return s.journal }

// Pool returns the connections for reads, for who asks the database itself. What is asked needs a deadline.
func (s *Store) Pool() *pgxpool.Pool { return s.read }

// Failed never receives: a database that fails is no reason to start this process again.
func (s *Store) Failed() <-chan error { return nil }

// Responds returns nil unless the part that writes is stuck longer than any of its waits, which a restart may cure. It does not
// wait for the database: no restart cures that.
func (s *Store) Responds(context.Context) error {
	if s.writer == nil {
		return nil
	}
	return s.writer.responds()
}

// SnapshotTo returns an error that says what to do instead: the database is copied by its own tools.
func (s *Store) SnapshotTo(func(size int64, checkpoint []byte) (io.Writer, error)) error {
	return errors.New("the journal is in PostgreSQL, whose own tools copy it (pg_basebackup, pgBackRest); 'attestd log export' writes the records")
}

// Close finishes what was queued, refuses the rest and ends the connections.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.writer != nil {
			s.writer.queue.Close()
		}
		s.watch.close()
		s.closePools()
	})
	return nil
}

// closePools ends the connections, but waits no longer than is needed where the other side answers.
func (s *Store) closePools() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if s.confirmer != nil {
			s.confirmer.pool.Close()
		}
		s.write.Close()
		s.read.Close()
	}()
	select {
	case <-closed:
	case <-time.After(connectTimeout):
	}
}

// Ahead is by how much the newest record is ahead of the clock; 0 where it is not.
func (s *Store) Ahead() time.Duration {
	h := s.head.Load()
	if h == nil {
		return 0
	}
	return max(0, h.last.Sub(s.opts.Now()))
}

// unavailable is the answer to a client when the database cannot be read or written.
func unavailable(cause error) error {
	return &appliance.Error{Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available", RetryAfter: time.Second, Cause: cause}
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout, "the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}

func errReadOnly() error { return unavailable(errors.New("it was opened for reading or copying")) }
