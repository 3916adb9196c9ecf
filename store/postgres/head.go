package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// head is the row log_head. It is immutable.
type head struct {
	log        string
	tree       tlog.Tree // of the row's edge
	frontier   journal.Frontier
	checkpoint []byte
	last       time.Time // of the newest record
	continued  int64     // index in the tree minus index in the table
	generation int64     // of the stored hashes
	keys       int64     // version of the API keys
	stopped    string    // see Store.Stopped
	stops      int64     // version of stopped
	keysDigest []byte    // see keysDigest
	mac        []byte    // see stateMAC
	oldest     int64     // the oldest schema version that an appliance may have to use the database
	schema     int64     // version of the database's schema, 0 if unknown; not part of the row
	// start time of the server that it was read from, which a failover changes; not part of the row
	server time.Time
}

const headColumns = "log, size, edge, last_time, checkpoint, continued, generation, keys_version, stopped, stopped_version, keys_digest, state_mac, oldest_schema, " +
	"(SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied), pg_postmaster_start_time()"

const selectHead = "SELECT " + headColumns + " FROM log_head WHERE id = 1"

// row is log_head as stored.
type row struct {
	log        string
	size       int64
	edge       []byte
	last       *time.Time
	checkpoint []byte
	continued  int64
	generation int64
	keys       int64
	stopped    string
	stops      int64
	keysDigest []byte
	mac        []byte
	oldest     int64
	schema     int64
	server     time.Time
}

func (r *row) into() []any {
	return []any{&r.log, &r.size, &r.edge, &r.last, &r.checkpoint, &r.continued, &r.generation, &r.keys, &r.stopped,
		&r.stops, &r.keysDigest, &r.mac, &r.oldest, &r.schema, &r.server}
}

// head decodes a row without verifying it.
func (r row) head() (*head, error) {
	frontier, err := decodeEdge(r.size, r.edge)
	if err != nil {
		return nil, fmt.Errorf("%w: log_head: %w", ErrDamaged, err)
	}
	if len(r.keysDigest) == 0 {
		r.keysDigest = keysDigest(nil)
	}
	return &head{
		log: r.log, tree: frontier.Tree(), frontier: frontier, checkpoint: r.checkpoint, last: given(r.last),
		continued: r.continued, generation: r.generation, keys: r.keys, stopped: r.stopped, stops: r.stops,
		keysDigest: r.keysDigest, mac: r.mac, oldest: r.oldest, schema: r.schema, server: r.server,
	}, nil
}

// check verifies a head: the schema versions, its log, its checkpoint's signature and the MAC. known is a checked head
// that was read before h, or nil. A checkpoint that equals known's is not verified again.
func (s *Store) check(h, known *head) error {
	if err := checkVersion(h.schema, h.oldest); err != nil {
		return err
	}
	err := s.checkTree(h, known)
	if err == nil || errors.Is(err, errUnclaimed) {
		if forged := s.checkState(h, known); forged != nil {
			return forged
		}
	}
	return err
}

func (s *Store) checkTree(h, known *head) error {
	switch {
	case h.log == "" && h.tree.N == 0 && len(h.checkpoint) == 0:
		return errUnclaimed
	case s.opts.Copying && h.log == journal.LogName(s.opts.Verifier) && h.tree.N == 0:
		return errUnclaimed // a daemon of this log has begun the journal, which is empty
	case h.log != s.log():
		return otherLog(h.log, s.log())
	case s.opts.Copying:
		return nil // a copy is signed when it is complete
	case known != nil && string(known.checkpoint) == string(h.checkpoint) && known.tree == h.tree:
		return nil
	}
	tree, err := journal.OpenCheckpoint(h.checkpoint, s.opts.Verifier)
	if err != nil {
		return fmt.Errorf("%w: log_head: %w", ErrDamaged, err)
	}
	if tree != h.tree {
		return fmt.Errorf("%w: log_head: size and edge contradict the checkpoint", ErrDamaged)
	}
	return nil
}

// log returns the expected log_head.log. An unfinished copy has a prefix, so that no daemon uses it.
func (s *Store) log() string {
	name := journal.LogName(s.opts.Verifier)
	if s.opts.Copying {
		return copying + name
	}
	return name
}

// Prefixes of log_head.log: an unfinished copy, and a journal that was copied to another store and ended here.
const (
	copying = "copying "
	left    = "left "
)

func otherLog(found, want string) error {
	if name, gone := strings.CutPrefix(found, left); gone {
		return fmt.Errorf("%w: the journal of %q was copied to another store and continues there. Set store.url to "+
			"that store. If that copy is lost, "+
			"reactivate this one as the database's owner: UPDATE log_head SET log = substr(log, %d)", ErrOtherLog, name,
			len(left)+1)
	}
	if name, unfinished := strings.CutPrefix(found, copying); unfinished {
		return fmt.Errorf("%w: the database has an unfinished copy of %q. To finish it, run: attestd store copy",
			ErrOtherLog, name)
	}
	if strings.HasPrefix(want, copying) {
		return fmt.Errorf("%w: the database already has the journal %q: the target of a copy must be empty",
			ErrOtherLog, found)
	}
	return fmt.Errorf("%w: the journal belongs to log %q, log.key to log %q. If store.url names the right database, "+
		"log.key is wrong: move it out of "+
		"data_dir, and bring the one of a member: attestd setup --bundle FILE there, attestd setup --join FILE here",
		ErrOtherLog, found, want)
}

// errUnclaimed is returned for a journal that no appliance has begun.
var errUnclaimed = errors.New("no appliance has started the journal yet")

func decodeEdge(size int64, edge []byte) (journal.Frontier, error) {
	if size < 0 || len(edge)%tlog.HashSize != 0 {
		return journal.Frontier{}, fmt.Errorf("log_head: size %d does not match an edge of %d bytes", size, len(edge))
	}
	return journal.NewFrontier(size, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		if len(indexes) != len(edge)/tlog.HashSize {
			return nil,
				fmt.Errorf("log_head: size %d does not match an edge of %d hashes", size, len(edge)/tlog.HashSize)
		}
		hashes := make([]tlog.Hash, len(indexes))
		for i := range hashes {
			hashes[i] = tlog.Hash(edge[i*tlog.HashSize:])
		}
		return hashes, nil
	}))
}

func encodeEdge(f journal.Frontier) []byte {
	edge := make([]byte, 0, 2*1024)
	for _, h := range f.Edge() {
		edge = append(edge, h[:]...)
	}
	return edge
}

// observe records a checked, committed head unless a newer one is known.
func (s *Store) observe(h *head) {
	for {
		known := s.head.Load()
		if known != nil &&
			(h.tree.N < known.tree.N || h.tree.N == known.tree.N && (h.keys < known.keys || h.stops < known.stops)) {
			return
		}
		if s.head.CompareAndSwap(known, h) {
			return
		}
	}
}

// forgot returns ErrForgot if h, which was read later than known, lacks records of known.
func forgot(h, known *head) error {
	if known == nil || h.tree.N > known.tree.N || h.tree == known.tree {
		return nil
	}
	return fmt.Errorf("%w: the journal has %d records with root %s, but had %d with root %s", ErrForgot, h.tree.N,
		h.tree.Hash, known.tree.N, known.tree.Hash)
}

// readHead reads the committed head of any log without verifying it. Concurrent callers share a query that begins after
// each of them has called.
func (s *Store) readHead(ctx context.Context) (*head, error) {
	h, err := s.reads.do(ctx, func() (*head, error) {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		known := s.safe.Load()
		h, err := s.selectHead(ctx)
		if err == nil && known != nil && h.log == known.log && h.tree.N < known.tree.N {
			// A connection to a demoted primary, or the new primary lacks the tail. A new connection leads to the new
			// primary.
			s.read.Reset()
			s.resets.Add(1)
			h, err = s.selectHead(ctx)
		}
		if err == nil && s.check(h, known) == nil {
			s.observe(h)
		}
		return h, err
	})
	if err != nil {
		return nil, answer(ctx, "read the journal's head", err)
	}
	return h, nil
}

// selectHead reads the row log_head.
func (s *Store) selectHead(ctx context.Context) (*head, error) {
	var r row
	if err := s.read.QueryRow(ctx, selectHead).Scan(r.into()...); err != nil {
		return nil, err
	}
	return r.head()
}

// trusted reads and verifies the head before records are read. A head of another log passes unverified: it may be this
// log's successor.
func (s *Store) trusted(ctx context.Context) (*head, error) {
	h, err := s.readHead(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.check(h, nil); err != nil && !errors.Is(err, errUnclaimed) && !errors.Is(err, ErrOtherLog) {
		return nil, answer(ctx, "read the journal's head", err)
	}
	return h, nil
}

// begun reads the head of a journal that has a checkpoint. On an empty database, it waits until this appliance has
// begun the journal.
func (s *Store) begun(ctx context.Context) (*head, error) {
	h, err := s.readHead(ctx)
	if err == nil && h.log == "" {
		if err = s.watch.ready(ctx); err == nil {
			h, err = s.readHead(ctx)
		}
	}
	if err == nil && h.log == "" {
		return nil, unavailable(errUnclaimed)
	}
	return h, err
}

// claim begins an empty journal under this log key.
func (s *Store) claim(ctx context.Context) error {
	var checkpoint []byte
	var err error
	if !s.opts.Copying {
		if checkpoint, err = journal.SignCheckpoint(journal.Frontier{}.Tree(), s.opts.Signer); err != nil {
			return fmt.Errorf("sign checkpoint: %w", err)
		}
	}
	first := &head{keysDigest: keysDigest(nil)}
	_, err = s.write.Exec(ctx,
		"UPDATE log_head SET log = $1, checkpoint = $2, state_mac = CASE WHEN state_mac = '' THEN $5 ELSE state_mac END "+
			"WHERE id = 1 AND (log = '' OR $3 AND log = $4) AND size = 0",
		s.log(), string(checkpoint), s.opts.Copying, journal.LogName(s.opts.Verifier), stateMAC(s.secret, first))
	return err
}

// Head is the state of the journal.
type Head struct {
	Log        string // name and hash of the log key
	Size       int64
	Root       tlog.Hash
	Checkpoint []byte
	Last       time.Time // time of the newest record; zero for an empty journal
}

// Head reads the journal's head.
func (s *Store) Head(ctx context.Context) (Head, error) {
	h, err := s.begun(ctx)
	if err != nil {
		return Head{}, err
	}
	return Head{Log: h.log, Size: h.tree.N, Root: h.tree.Hash, Checkpoint: h.checkpoint, Last: h.last}, nil
}

// sharedCall shares one run of some work among concurrent callers. The run begins after each of them has called. The
// zero value is ready.
type sharedCall[T any] struct {
	mu      sync.Mutex
	running bool
	next    *sharedResult[T] // callers that arrived during the run
}

type sharedResult[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func (f *sharedCall[T]) do(ctx context.Context, work func() (T, error)) (value T, err error) {
	f.mu.Lock()
	if f.next == nil {
		f.next = &sharedResult[T]{done: make(chan struct{})}
	}
	mine := f.next
	if !f.running {
		f.running = true
		go f.run(work)
	}
	f.mu.Unlock()
	select {
	case <-mine.done:
		return mine.value, mine.err
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

func (f *sharedCall[T]) run(work func() (T, error)) {
	for {
		f.mu.Lock()
		t := f.next
		f.next = nil
		f.running = t != nil
		f.mu.Unlock()
		if t == nil {
			return
		}
		t.value, t.err = work()
		close(t.done)
	}
}
