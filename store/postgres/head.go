package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// head is the row of log_head. It is not changed once made.
type head struct {
	log        string
	tree       tlog.Tree
	frontier   appliance.Frontier
	checkpoint []byte
	last       time.Time // of the newest record
	keys       int64     // version of the API keys
}

const selectHead = "SELECT log, size, edge, last_time, checkpoint, keys_version FROM log_head WHERE id = 1"

// row is a head that nobody has checked.
type row struct {
	log        string
	size       int64
	edge       []byte
	last       *time.Time
	checkpoint []byte
	keys       int64
}

func (r *row) into() []any {
	return []any{&r.log, &r.size, &r.edge, &r.last, &r.checkpoint, &r.keys}
}

// check makes a head of a row: its checkpoint must be signed by the log key, and its edge be that of the checkpoint's tree. known
// is a head that was checked before; what has not changed since is not checked again.
func (s *Store) check(r row, known *head) (*head, error) {
	if want := logName(s.opts.Verifier); r.log != want {
		if r.log == "" {
			return s.unclaimed(r)
		}
		return nil, fmt.Errorf("%w: it is the journal of %q, the log key here is that of %q", ErrOtherLog, r.log, want)
	}
	h := &head{log: r.log, checkpoint: r.checkpoint, keys: r.keys}
	if r.last != nil {
		h.last = r.last.UTC()
	}
	var err error
	if known != nil && string(known.checkpoint) == string(r.checkpoint) {
		h.tree = known.tree
	} else if h.tree, err = appliance.OpenCheckpoint(r.checkpoint, s.opts.Verifier); err != nil {
		return nil, fmt.Errorf("%w: log_head: %w", ErrDamaged, err)
	}
	if h.frontier, err = decodeEdge(r.size, r.edge); err != nil {
		return nil, fmt.Errorf("%w: log_head: %w", ErrDamaged, err)
	}
	if h.frontier.Tree() != h.tree {
		return nil, fmt.Errorf("%w: log_head: size and edge are not those of the checkpoint", ErrDamaged)
	}
	return h, nil
}

// unclaimed is the head of a journal to which no appliance has come yet. Its checkpoint is never served.
func (s *Store) unclaimed(r row) (*head, error) {
	if r.size != 0 || len(r.checkpoint) != 0 {
		return nil, fmt.Errorf("%w: log_head has records, but no log", ErrDamaged)
	}
	return &head{tree: appliance.Frontier{}.Tree(), keys: r.keys}, nil
}

func decodeEdge(size int64, edge []byte) (appliance.Frontier, error) {
	if size < 0 || len(edge)%tlog.HashSize != 0 {
		return appliance.Frontier{}, fmt.Errorf("size %d with an edge of %d bytes", size, len(edge))
	}
	return appliance.NewFrontier(size, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		if len(indexes) != len(edge)/tlog.HashSize {
			return nil, fmt.Errorf("size %d with an edge of %d hashes", size, len(edge)/tlog.HashSize)
		}
		hashes := make([]tlog.Hash, len(indexes))
		for i := range hashes {
			hashes[i] = tlog.Hash(edge[i*tlog.HashSize:])
		}
		return hashes, nil
	}))
}

func encodeEdge(f appliance.Frontier) []byte {
	edge := make([]byte, 0, 2*1024)
	for _, h := range f.Edge() {
		edge = append(edge, h[:]...)
	}
	return edge
}

// observe takes note of a head that was seen committed. It returns an error for one that takes back what was seen before.
func (s *Store) observe(h *head) error {
	for {
		known := s.head.Load()
		if known != nil && known.tree.N >= h.tree.N && known.log == h.log {
			if known.tree.N == h.tree.N && known.tree != h.tree {
				return fmt.Errorf("%w: two trees of %d records", ErrForgot, h.tree.N)
			}
			if known.tree.N > h.tree.N || known.keys >= h.keys {
				return nil // read before the other, and come later
			}
		}
		if s.head.CompareAndSwap(known, h) {
			return nil
		}
	}
}

// forgot says whether a head that is read now, and not earlier, lacks what was seen before.
func (s *Store) forgot(h *head, known *head) error {
	if known == nil || known.log != h.log || h.tree.N > known.tree.N || h.tree == known.tree {
		return nil
	}
	return fmt.Errorf("%w: it has %d records, and had %d", ErrForgot, h.tree.N, known.tree.N)
}

// readHead reads the committed head. Those who ask at the same time share a query that begins after all of them asked.
func (s *Store) readHead(ctx context.Context) (*head, error) {
	h, err := s.reads.do(ctx, func() (*head, error) {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		known := s.head.Load()
		var r row
		if err := s.read.QueryRow(ctx, selectHead).Scan(r.into()...); err != nil {
			return nil, err
		}
		h, err := s.check(r, known)
		if err == nil {
			err = s.forgot(h, known)
		}
		if err == nil {
			err = s.observe(h)
		}
		return h, err
	})
	if err != nil {
		return nil, answer(ctx, "read the journal's head", err)
	}
	return h, nil
}

// claimed is readHead for what needs a checkpoint. It waits until this appliance has made one, where it is the first.
func (s *Store) claimed(ctx context.Context) (*head, error) {
	h, err := s.readHead(ctx)
	if err == nil && h.log == "" {
		if err = s.watch.wait(ctx); err == nil {
			h, err = s.readHead(ctx)
		}
	}
	if err == nil && h.log == "" {
		return nil, unavailable(errors.New("no appliance has begun the journal yet"))
	}
	return h, err
}

// claim makes an empty journal the one of this log key.
func (s *Store) claim(ctx context.Context, tx pgx.Tx) error {
	tree := appliance.Frontier{}.Tree()
	checkpoint, err := appliance.SignCheckpoint(tree, s.opts.Signer)
	if err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	_, err = tx.Exec(ctx, "UPDATE log_head SET log = $1, checkpoint = $2 WHERE id = 1 AND log = '' AND size = 0", logName(s.opts.Signer), string(checkpoint))
	return err
}

// Head is how far the journal goes.
type Head struct {
	Log        string // name and hash of the log key
	Size       int64
	Root       tlog.Hash
	Checkpoint []byte
	Last       time.Time // of the newest record; zero where there is none
}

// Head reads the journal's head.
func (s *Store) Head(ctx context.Context) (Head, error) {
	h, err := s.claimed(ctx)
	if err != nil {
		return Head{}, err
	}
	return Head{Log: h.log, Size: h.tree.N, Root: h.tree.Hash, Checkpoint: h.checkpoint, Last: h.last}, nil
}

// flight lets those who want the same at the same time share the work, which begins after each of them has asked. The zero value is ready.
type flight[T any] struct {
	mu      sync.Mutex
	running bool
	next    *turn[T] // who came while it runs
}

type turn[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func (f *flight[T]) do(ctx context.Context, work func() (T, error)) (value T, err error) {
	f.mu.Lock()
	if f.next == nil {
		f.next = &turn[T]{done: make(chan struct{})}
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

func (f *flight[T]) run(work func() (T, error)) {
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
