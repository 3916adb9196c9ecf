package bolt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/disk"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	entriesStep = 256 // entries per read transaction, so that a slow reader does not pin old pages
	tileHeight  = 8

	clockJitter = time.Second // how far time synchronisation may set a clock back
)

// Journal implements journal.Journal. Appends go through the store's writer; reads never wait for it.
type Journal struct{ store *Store }

var _ audit.Journal = (*Journal)(nil)

// Append implements journal.Journal. If ctx ends while the record is queued, the record is not appended.
func (j *Journal) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	o := &op{Value: change{record: &r, admits: conditions}}
	if err := j.store.submit(ctx, o); err != nil {
		return journal.Entry{}, false, err
	}
	return *o.Value.entry, o.Value.replayed, nil
}

// AppendEvent implements journal.Journal. If ctx ends while the event is queued, the event is not appended.
func (j *Journal) AppendEvent(ctx context.Context, e journal.Event) (journal.Entry, error) {
	if err := e.Prepare(); err != nil {
		return journal.Entry{}, err
	}
	o := &op{Value: change{event: &e}}
	if err := j.store.submit(ctx, o); err != nil {
		return journal.Entry{}, err
	}
	return *o.Value.entry, nil
}

// Ready implements journal.Journal.
func (j *Journal) Ready(context.Context) error {
	w := j.store.writer
	if w == nil {
		return errReadOnly()
	}
	if err := w.refusal(); err != nil {
		return err
	}
	if err := j.store.checkProgress(); err != nil {
		return err
	}
	if err := j.store.checkClock(); err != nil {
		return err
	}
	// Free space is not enough: a quota or a limit on the file's size shows only in a failed write.
	if since := j.store.opts.Now().UnixNano() - w.full.Load(); since >= 0 && since < int64(fullRetry) {
		return passing(errors.New("the last write failed: the disk is full or read-only"))
	}
	now := j.store.opts.Now().UnixNano()
	if since := now - w.roomy.Load(); since >= 0 && since < int64(roomyFor) {
		return nil
	}
	if err := j.store.checkDisk(); err != nil {
		return err
	}
	if err := j.store.checkFile(); errors.Is(err, ErrReplaced) {
		return w.fail(err)
	}
	w.roomy.Store(now)
	return nil
}

// stopwatch measures an operation under way. All methods are safe for concurrent use.
type stopwatch struct{ began atomic.Pointer[time.Time] }

func (s *stopwatch) begin() {
	now := time.Now()
	s.began.Store(&now)
}

func (s *stopwatch) end() { s.began.Store(nil) }

// elapsed returns 0 if no operation is under way.
func (s *stopwatch) elapsed() time.Duration {
	began := s.began.Load()
	if began == nil {
		return 0
	}
	return time.Since(*began)
}

// checkProgress returns an error if a write takes so long that the disk must hang.
func (s *Store) checkProgress() error {
	if took := max(s.commits.elapsed(), s.flushes.elapsed()); took > slowCommit {
		return passing(fmt.Errorf("a write to %s is still pending after %s: the disk hangs. Check the kernel's log "+
			"(dmesg). attestd continues once the write completes",
			s.path, took.Round(time.Second)))
	}
	return nil
}

// checkDisk returns an error if the disk has no room for another record.
func (s *Store) checkDisk() error {
	room, err := disk.FreeSpace(s.path)
	switch {
	case err != nil:
		return unavailable(err)
	case room.ReadOnly:
		return passing(fmt.Errorf("the disk of %s is read-only: check the kernel's log (dmesg), repair the disk and "+
			"remount it. attestd then continues without a restart", s.path))
	case room.Free < s.opts.MinFree:
		return passing(fmt.Errorf("no space left: %d bytes are free on the disk of %s, %d are required", room.Free,
			s.path, s.opts.MinFree))
	}
	return nil
}

// Ahead returns how far the newest record is ahead of the clock, or 0.
func (s *Store) Ahead() time.Duration {
	h := s.head.Load()
	if h == nil {
		return 0
	}
	return max(0, h.last.Sub(s.opts.Now()))
}

// checkClock returns an error if the newest record is too far ahead of the clock. Times never decrease, so that each
// new record would get that wrong time until the clock has caught up.
func (s *Store) checkClock() error {
	ahead := s.Ahead()
	if ahead <= clockJitter {
		return nil
	}
	now := s.opts.Now()
	refused := s.opts.MaxAhead > 0 && ahead > s.opts.MaxAhead
	if since := now.UnixNano() - s.writer.warned.Load(); since < 0 || since >= int64(warnInterval) {
		s.writer.warned.Store(now.UnixNano())
		level, what := slog.LevelWarn, "new records get that time until the clock has caught up"
		if refused {
			level, what = slog.LevelError, "signing stops until the clock has caught up or journal.max_ahead is raised"
		}
		s.opts.Logger.Log(context.Background(), level, "journal: the newest record is ahead of the clock: "+what,
			"ahead", ahead.Round(time.Second).String(), "max_ahead", s.opts.MaxAhead.String())
	}
	if !refused {
		return nil
	}
	return unavailable(fmt.Errorf("the newest record is %s ahead of the clock, more than journal.max_ahead (%s): set "+
		"the clock, "+
		"or raise journal.max_ahead if the clock was wrong when that record was made", ahead.Round(time.Second),
		s.opts.MaxAhead))
}

// ByID implements journal.Journal.
func (j *Journal) ByID(ctx context.Context, id uuid.UUID) (journal.Entry, error) {
	return j.lookup(ctx, lookup{bucketIDs, id[:]}, func() error {
		return appliance.Errorf(appliance.CodeNotFound, "no attestation %s", id)
	})
}

// ByIdempotencyKey implements journal.Journal.
func (j *Journal) ByIdempotencyKey(ctx context.Context, keyID, idempotencyKey string) (journal.Entry, error) {
	return j.lookup(ctx, lookup{bucketIdempotency, idempotencyName(keyID, idempotencyKey)}, func() error {
		return appliance.Errorf(appliance.CodeNotFound, "no attestation with this Idempotency-Key")
	})
}

// lookup returns the entry for a name in a lookup bucket, from the tail or the file.
func (j *Journal) lookup(ctx context.Context, l lookup, notFound func() error) (e journal.Entry, err error) {
	if found := j.store.recent.find(l); found != nil && ctx.Err() == nil {
		return *found, nil
	}
	err = j.read(ctx, func(v *view) error {
		index := v.tx.Bucket([]byte(l.bucket)).Get(l.name)
		if index == nil {
			return notFound()
		}
		e, err = readEntry(v.records, index)
		return err
	})
	return e, err
}

// read runs fn on a snapshot of the journal. It returns errors for clients.
func (j *Journal) read(ctx context.Context, fn func(v *view) error) error {
	h, err := j.head(ctx)
	if err != nil {
		return err
	}
	err = j.store.view(func(tx *bbolt.Tx) error { return fn(newView(tx, h)) })
	if _, ready := errors.AsType[*appliance.Error](err); err != nil && !ready {
		return unavailable(err)
	}
	return err
}

func (j *Journal) head(ctx context.Context) (*head, error) {
	if ctx.Err() != nil {
		return nil, timeout(ctx, "read")
	}
	h := j.store.head.Load()
	if h == nil {
		return nil, unavailable(j.store.damage)
	}
	return h, nil
}

// readEntry reads a record by its encoded index.
func readEntry(records *bbolt.Bucket, index []byte) (journal.Entry, error) {
	i, err := decodeIndex(index)
	if err != nil {
		return journal.Entry{}, unavailable(fmt.Errorf("%w: %w", ErrDamaged, err))
	}
	leaf := slices.Clone(records.Get(index))
	e, err := journal.DecodeEntry(i, leaf)
	if err != nil {
		return journal.Entry{}, unavailable(fmt.Errorf("%w: record %d: %w", ErrDamaged, i, err))
	}
	return e, nil
}

// List implements journal.Journal.
func (j *Journal) List(ctx context.Context, q journal.Query) (entries []journal.Entry, err error) {
	limit := q.Size()
	err = j.read(ctx, func(v *view) error {
		first, end, err := v.indexRange(q)
		if err != nil {
			return err
		}
		previous := v.previous(q)
		list := func(first, end int64) error {
			for i := previous(end); i >= first && len(entries) < limit; i = previous(i) {
				if ctx.Err() != nil {
					return timeout(ctx, "read")
				}
				e, err := v.entry(i)
				if err != nil {
					return err
				}
				if q.Wants(e) {
					entries = append(entries, e)
				}
			}
			return nil
		}
		if err := list(first, end); err != nil || first == 0 {
			return err
		}
		continued, err := v.countContinued() // EventLogContinued entries come first
		if err != nil {
			return err
		}
		return list(0, min(continued, first, end))
	})
	return entries, err
}

// indexRange returns the range of indexes that can match a query. end is exclusive.
func (v *view) indexRange(q journal.Query) (first, end int64, err error) {
	end = v.tree.N
	if q.Before > 0 {
		end = min(end, q.Before)
	}
	if !q.Until.IsZero() {
		until, err := v.searchTime(q.Until)
		if err != nil {
			return 0, 0, err
		}
		end = min(end, until)
	}
	if !q.From.IsZero() {
		first, err = v.searchTime(q.From)
	}
	return first, end, err
}

// searchTime returns the index of the first record that is not earlier than t. It skips the EventLogContinued entries
// at the start, which are newer than the entries after them.
func (v *view) searchTime(t time.Time) (int64, error) {
	continued, err := v.countContinued()
	if err != nil {
		return 0, err
	}
	var failed error
	i := sort.Search(int(v.tree.N-continued), func(i int) bool {
		at, err := v.time(continued + int64(i))
		if err != nil && failed == nil {
			failed = fmt.Errorf("%w: record %d: %w", ErrDamaged, continued+int64(i), err)
		}
		return !at.Before(t)
	})
	return continued + int64(i), failed
}

// countContinued returns the number of EventLogContinued entries at the start.
func (v *view) countContinued() (n int64, err error) {
	for ; n < v.tree.N; n++ {
		e, err := v.entry(n)
		if err != nil {
			return 0, err
		}
		if e.Event == nil || e.Event.Kind != journal.EventLogContinued {
			break
		}
	}
	return n, nil
}

// leafTime reads the time in a leaf.
func leafTime(leaf []byte) (time.Time, error) {
	var r struct {
		Time time.Time `json:"time"`
	}
	err := json.Unmarshal(leaf, &r)
	return r.Time, err
}

// Entries implements journal.Journal. It ends at the size of the journal at the call.
func (j *Journal) Entries(ctx context.Context, first int64, yield func(journal.Entry) error) error {
	h, err := j.head(ctx)
	if err != nil {
		return err
	}
	var step []journal.Entry
	for next := max(first, 0); next < h.tree.N; next += int64(len(step)) {
		step = step[:0]
		end := min(h.tree.N, next+entriesStep)
		err := j.read(ctx, func(v *view) error {
			for i := next; i < end; i++ {
				e, err := v.entry(i)
				if err != nil {
					return err
				}
				step = append(step, e)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, e := range step {
			if err := yield(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// Checkpoint implements journal.Journal. It reads memory only.
func (j *Journal) Checkpoint(ctx context.Context) ([]byte, error) {
	h, err := j.head(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Clone(h.checkpoint), nil
}

// Prove implements journal.Journal.
func (j *Journal) Prove(ctx context.Context, index int64) (proof journal.InclusionProof, err error) {
	err = j.read(ctx, func(v *view) error {
		if index < 0 || index >= v.tree.N {
			return appliance.Errorf(appliance.CodeNotFound, "no record %d", index)
		}
		hashes := v.hashes()
		leafHash, err := hashes.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
		if err != nil {
			return err
		}
		path, err := tlog.ProveRecord(v.tree.N, index, hashes)
		if err != nil {
			return err
		}
		proof = journal.InclusionProof{
			Index: index, TreeSize: v.tree.N, Checkpoint: string(v.checkpoint),
			LeafHash: leafHash[0][:], Hashes: make([][]byte, len(path)),
		}
		for i := range path {
			proof.Hashes[i] = path[i][:]
		}
		return nil
	})
	return proof, err
}

// Tile implements journal.Journal.
func (j *Journal) Tile(ctx context.Context, t tlog.Tile) (tile []byte, err error) {
	err = j.read(ctx, func(v *view) error {
		if !inTree(t, v.tree.N) {
			return appliance.Errorf(appliance.CodeNotFound, "no such tile")
		}
		tile, err = tlog.ReadTileData(t, v.hashes())
		return err
	})
	return tile, err
}

// inTree reports whether a tree of the given size has all hashes of a tile.
func inTree(t tlog.Tile, size int64) bool {
	if t.H != tileHeight || t.L < 0 || t.L > 7 || t.N < 0 || t.W < 1 || t.W > 1<<tileHeight {
		return false
	}
	hashes := size >> (tileHeight * t.L) // number of hashes on the level
	// the first so that the second cannot overflow
	return t.N <= hashes>>tileHeight && t.N<<tileHeight+int64(t.W) <= hashes
}
