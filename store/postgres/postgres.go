// Package postgres stores the API keys and the journal of several appliances in one PostgreSQL database. It implements
// appliance.Keys and journal.Journal. The journal is an RFC 6962 Merkle tree with C2SP tlog-checkpoint signatures.
//
// The row log_head orders all writes. A batch of records is one transaction: it locks log_head, checks the API keys and
// idempotency keys of the batch, inserts the records, and updates log_head. No appliance is the leader, and a commit
// does not rely on state in memory. The package needs row locks and READ COMMITTED only. The tables are in migrations.
//
// The package does not trust the database. The log key must have signed a head, and each record is proven against the
// head's root.
package postgres

import (
	"context"
	"crypto/rand"
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
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/counts"
)

// Reasons why a database cannot be used. Use errors.Is.
var (
	ErrNoSchema    = errors.New("the database does not have attestd's schema")
	ErrNewerSchema = errors.New("the schema belongs to a newer attestd")
	ErrOlderSchema = errors.New("the schema belongs to an older attestd")
	ErrOtherLog    = errors.New("the journal belongs to another log key")
	ErrDamaged     = errors.New("damaged")
	ErrForgot      = errors.New("the database has lost committed data")
	ErrForged      = errors.New("the database was changed without the log key")
)

const (
	defaultMaxAhead = 5 * time.Minute
	defaultTimeout  = 8 * time.Second
	defaultReaders  = 8
)

// Options configure Open.
type Options struct {
	Signer   note.Signer      // signs checkpoints; required unless ReadOnly
	Verifier note.Verifier    // its public half; required
	ReadOnly bool             // the store writes no table and is no member of the cluster
	Copying  bool             // for Import into an empty journal or an unfinished copy; Append is refused
	Now      func() time.Time // nil means time.Now
	// how far the newest record may be ahead of the clock; beyond it, Append is refused; zero means 5 min
	MaxAhead time.Duration
	Timeout  time.Duration // how long a change is retried; zero means 8 s
	Readers  int           // connections for reads; zero means 8. Writes use four more
	Logger   *slog.Logger  // nil means none
	Member   Identity      // this appliance; without a name, it is no member of the cluster
	Versions string        // path of the file with the highest versions seen of API keys and stop state; "" for none
	Counts   string        // path of the file with the counts of attestations; "" for none

	// Accept is called with each head before records are appended to it, under its lock. Its error fails the whole
	// batch. Nil accepts every head.
	Accept func(head tlog.Tree) error

	// Pending returns how many records are about to be appended, such as those being signed: see store/queue. Nil means
	// unknown.
	Pending func() int
}

// Identity is an appliance in Members.
type Identity struct {
	Name, Version string
	Settings      func() Settings // those in effect now; may be nil
}

// Settings must be the same on each member: a request may reach any of them.
type Settings struct {
	Signer            string // address of the attestor key; "" while unknown
	Scheme            string // digest scheme, with its EIP-712 domain
	Policy, Screening string // SHA-256 of the policy and of the screening list in effect; "" without
}

// Store is a shared database. All methods are safe for concurrent use.
type Store struct {
	opts      Options
	url       atomic.Pointer[string]
	read      *pgxpool.Pool // for reads, so that reads never delay an append
	write     *pgxpool.Pool // for appends, changes of API keys, and the watch
	keys      *Keys
	journal   *Journal
	writer    *writer // nil when read-only
	confirmer *confirmer
	watch     *watch

	instance string      // of this process, in members
	beaten   atomic.Bool // this process has written its heartbeat

	secret  []byte // key of the MACs; nil without the log key
	seen    seenFile
	head    atomic.Pointer[head] // the newest one read; nil before the first
	safe    atomic.Pointer[head] // the newest one that the synchronous standbys have; nil before the first
	offset  atomic.Int64         // database's clock minus this machine's, in nanoseconds
	reads   sharedCall[*head]
	resets  atomic.Int64  // number of times that a stale connection for reads was found
	counts  counts.Counts // of committed records, by index in the table
	tiles   tileCache
	closing sync.Once
}

// Open opens the database at a postgres:// URL. It does not wait for the database: until that answers, methods fail
// with CodeJournalUnavailable. Open returns an error only for an invalid URL (see Check) or invalid options.
func Open(url string, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := Check(url); err != nil {
		return nil, err
	}
	s := &Store{opts: o, seen: seenFile{path: o.Versions}, instance: rand.Text()[:8]}
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
	if !o.ReadOnly && (o.Signer == nil || journal.LogName(o.Signer) != journal.LogName(o.Verifier)) {
		return errors.New("the log key does not match the log verifier key")
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

// Pool returns the connections for reads. Each query needs a deadline.
func (s *Store) Pool() *pgxpool.Pool { return s.read }

// Failed never receives, because a restart of the daemon does not cure a failed database.
func (s *Store) Failed() <-chan error { return nil }

// Responds returns an error if the writer is stuck for longer than all of its timeouts together, which a restart may
// cure. It does not depend on the database.
func (s *Store) Responds(context.Context) error {
	if s.writer == nil {
		return nil
	}
	return s.writer.responds()
}

// SnapshotTo returns an error that names the tools to copy a database.
func (s *Store) SnapshotTo(func(size int64, checkpoint []byte) (io.Writer, error)) error {
	return errors.New("the journal is in PostgreSQL: back it up with PostgreSQL's tools (pg_basebackup, pgBackRest), " +
		"or export the records with: attestd log export")
}

// Close finishes the queued operations, refuses new ones and closes the connections.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.writer != nil {
			s.writer.queue.Close()
		}
		s.watch.close()
		if err := s.counts.Close(); err != nil {
			s.opts.Logger.Warn("the counts of attestations are not stored, so they are counted again after the start",
				"error", err)
		}
		s.closePools()
	})
	return nil
}

// closePools closes the connections. It does not wait for a server that does not answer.
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

// Ahead returns how far the newest record is ahead of the clock, or 0.
func (s *Store) Ahead() time.Duration {
	h := s.head.Load()
	if h == nil {
		return 0
	}
	return max(0, h.last.Sub(s.opts.Now()))
}

// unavailable is the error for clients if the database cannot be read or written.
func unavailable(cause error) error {
	return &appliance.Error{Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available",
		RetryAfter: time.Second, Cause: cause}
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout,
		"the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}

func errReadOnly() error {
	return unavailable(errors.New("the store was opened read-only or for copying"))
}
