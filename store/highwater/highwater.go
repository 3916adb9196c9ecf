package highwater

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	defaultEvery = time.Second
	sharedEvery  = 500 * time.Millisecond // the documentation promises one check per second
	lookTimeout  = 5 * time.Second        // for one check of the head, without the fsync of the mark
	coverTimeout = time.Second            // how long a checkpoint waits for the mark
	unseenMost   = 3 * time.Second        // Ready fails if the newest check is older
)

// Options configure Open.
type Options struct {
	Key    journal.LogKey // the log's; required
	Logger *slog.Logger   // nil means none
	Every  time.Duration  // minimum time between two checks of the head; zero means 1 s, or 500 ms if Shared

	// Shared means that other appliances write the store, too. The journal then checks the head at regular intervals.
	// Otherwise it checks the head only after its own appends.
	Shared bool
	// OnDemand means that the journal checks the head only for a call that needs it. Commands use it while the daemon
	// is stopped.
	OnDemand bool
	// Continued, if not nil, is called once when another log continues this one with a key derived from Key. After
	// that, Key signs no more records. Continued must not block.
	Continued func(next journal.LogKey, secret string)
}

// Journal guards a journal with the mark. If the head contradicts the mark, Append, AppendEvent, Ready, Checkpoint,
// Prove and Tile fail with CodeJournalLost until the journal agrees with the mark again. Other reads continue.
// Checkpoint returns a checkpoint only after a mark that covers it is on the disk.
type Journal struct {
	audit.Journal // the store's

	path  string
	opts  Options
	state atomic.Pointer[state]
	last  newest

	newest newestFile

	wake            chan struct{} // has an element if a check is due now
	soon            atomic.Bool   // a check is due after Every
	stop            context.CancelFunc
	ended           chan struct{} // closed after run has returned
	checking        sync.Mutex    // held by look; protects the fields below it
	continuedCalled bool          // Continued has been called
	// the reason that the mark is unusable: ErrDamaged, ErrOtherLog or fs.ErrNotExist; nil if it is usable
	problem error
	foreign []byte // content of the file with ErrOtherLog
	higher  *Mark  // a committed checkpoint beyond the mark that was lost

	mu      sync.Mutex // protects waiting
	waiting []*waiter
}

// state is the result of the last check. It is immutable.
type state struct {
	mark   Mark
	lost   *Loss
	failed error     // the error of writing the mark
	at     time.Time // time of the last read of the head
}

// waiter waits until the mark covers a checkpoint.
type waiter struct {
	mark Mark
	done chan error
}

// Open guards a journal with the mark at path and checks the head once. An unreadable file is an error. A damaged file,
// or one of another log, is reported by Loss. If no file exists, the head becomes the mark.
func Open(ctx context.Context, path string, journal audit.Journal, o Options) (*Journal, error) {
	j, err := newJournal(path, journal, o)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	j.stop = stop
	if o.OnDemand {
		close(j.ended)
		j.beginMark(ctx)
		return j, nil
	}
	if !o.Shared {
		j.checkHead(ctx)
		go j.run(running)
		return j, nil
	}
	// A shared store may be unreachable at the start. Append fails until the first check has succeeded.
	j.state.Store(&state{mark: j.Mark()})
	looked := make(chan struct{})
	go func() {
		j.checkHead(running)
		close(looked)
		j.run(running)
	}()
	select {
	case <-looked:
	case <-time.After(coverTimeout):
	}
	return j, nil
}

// beginMark creates the mark of a journal that has no records yet. The records that a command appends before the first
// start of the daemon are then covered, too.
func (j *Journal) beginMark(ctx context.Context) {
	if j.opts.Shared || !errors.Is(j.problem, fs.ErrNotExist) {
		return
	}
	signed, err := j.Journal.Checkpoint(ctx)
	if err != nil {
		return // the journal reports it at the first append
	}
	if head, err := parse(signed, j.opts.Key.Verifier); err == nil && head.Tree.N == 0 {
		j.checkHead(ctx)
	}
}

func newJournal(path string, journal audit.Journal, o Options) (*Journal, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Every == 0 && o.Shared {
		o.Every = sharedEvery
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	j := &Journal{Journal: journal, path: path, newest: newestFile{path: NewestPath(path)}, opts: o,
		wake: make(chan struct{}, 1), ended: make(chan struct{})}
	mark, err := Read(path, o.Key.Verifier)
	switch {
	case errors.Is(err, ErrOtherLog):
		j.problem, j.foreign, mark = err, mark.Signed, Mark{}
	case errors.Is(err, ErrDamaged), errors.Is(err, fs.ErrNotExist):
		j.problem = err
	case err != nil:
		return nil, fmt.Errorf("high-water mark: %w", err)
	}
	j.state.Store(&state{mark: mark, at: time.Now()})
	return j, nil
}

// Compare returns the mark at path, and the contradiction between journal and mark, or nil. The mark is zero if the
// file has no mark of this log. Compare writes no file.
func Compare(ctx context.Context, path string, records audit.Journal, key journal.LogKey) (Mark, *Loss, error) {
	j, err := newJournal(path, records, Options{Key: key})
	if err != nil {
		return Mark{}, nil, err
	}
	s := j.state.Load()
	err = j.find(ctx, s, nil).err
	if loss, ok := errors.AsType[*Loss](err); ok {
		return s.mark, loss, nil
	}
	return s.mark, nil, err
}

// Close raises the mark to the head. The guarded journal stays open.
func (j *Journal) Close() error {
	j.stop()
	<-j.ended
	if j.opts.OnDemand {
		return nil
	}
	j.checkHead(context.Background())
	s := j.state.Load()
	if s.lost != nil || s.failed != nil {
		return s.failed
	}
	return j.newest.remove()
}

// Committed writes the checkpoint of a commit to the file NewestPath, without a sync, before the callers are answered.
// After a kill, the next start knows every answered record. After a power cut, it may know the mark only.
func (j *Journal) Committed(signed []byte) {
	if err := j.newest.write(signed); err != nil {
		j.signal() // a check raises the mark or reports why it cannot
	}
}

func (j *Journal) run(ctx context.Context) {
	defer close(j.ended)
	var tick <-chan time.Time
	if j.opts.Shared {
		ticker := time.NewTicker(j.opts.Every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-tick:
		case <-j.wake:
		case <-ctx.Done():
			return
		}
		j.checkHead(ctx)
	}
}

// Loss returns the contradiction between journal and mark, or nil.
func (j *Journal) Loss() *Loss { return j.state.Load().lost }

// Mark returns the mark on the disk. Its Signed is nil if no mark exists.
func (j *Journal) Mark() Mark { return j.state.Load().mark }

// Accept returns CodeJournalLost if no entry may be appended to a head. A shared store calls it under the head's lock,
// so that the head is at least as large as every head seen before. Accept compares sizes and roots; the next check
// verifies consistency.
func (j *Journal) Accept(head tlog.Tree) error {
	s := j.state.Load()
	if s.lost != nil {
		return s.lost.refusal()
	}
	if s.at.IsZero() {
		return unavailable(errNotYet)
	}
	parted := s.mark.Signed != nil && head.N == s.mark.Tree.N && head != s.mark.Tree
	if head.N >= s.mark.Tree.N && !parted && j.last.size.Load() <= head.N {
		return nil
	}
	j.signal()
	return (&Loss{Why: errShorter.Error(), Mark: s.mark.Signed, High: s.mark.Tree, Low: head}).refusal()
}

// Append implements journal.Journal. With OnDemand, it compares the head with the mark first.
func (j *Journal) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	if err := j.refusal(ctx); err != nil {
		return journal.Entry{}, false, err
	}
	e, replayed, err := j.Journal.Append(ctx, r, conditions...)
	if err == nil && !replayed {
		j.appended(e)
	}
	return e, replayed, err
}

// AppendEvent implements journal.Journal.
func (j *Journal) AppendEvent(ctx context.Context, event journal.Event) (journal.Entry, error) {
	if err := j.refusal(ctx); err != nil {
		return journal.Entry{}, err
	}
	e, err := j.Journal.AppendEvent(ctx, event)
	if err == nil {
		j.appended(e)
	}
	return e, err
}

// refusal returns the reason to refuse appends, or nil.
func (j *Journal) refusal(ctx context.Context) error {
	s := j.state.Load()
	if j.opts.OnDemand { // the background checks do not run
		j.checking.Lock()
		err := j.find(ctx, s, nil).err
		j.checking.Unlock()
		if loss, lost := errors.AsType[*Loss](err); lost {
			return loss.refusal()
		}
		return err
	}
	switch {
	case s.lost != nil:
		return s.lost.refusal()
	case s.at.IsZero():
		return unavailable(errNotYet)
	}
	return nil
}

func (j *Journal) appended(e journal.Entry) {
	j.last.raise(e.Index, e.Leaf)
	j.signalSoon()
}

// newest is the last leaf appended here. All methods are safe for concurrent use.
type newest struct {
	mu   sync.Mutex
	size atomic.Int64 // index of the leaf plus 1; 0 for none
	leaf []byte       // guarded by mu
}

// raise replaces the leaf by one with a higher index.
func (n *newest) raise(index int64, leaf []byte) {
	if n.size.Load() > index {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.size.Load() <= index {
		n.size.Store(index + 1)
		n.leaf = leaf
	}
}

func (n *newest) get() (size int64, leaf []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.size.Load(), n.leaf
}

// signalSoon requests a check after Every.
func (j *Journal) signalSoon() {
	if !j.opts.Shared && !j.soon.Load() && j.soon.CompareAndSwap(false, true) {
		time.AfterFunc(j.opts.Every, j.signal)
	}
}

// Ready implements journal.Journal.
func (j *Journal) Ready(ctx context.Context) error {
	s := j.state.Load()
	if s.lost != nil {
		return s.lost.refusal()
	}
	if err := j.Journal.Ready(ctx); err != nil {
		return err
	}
	if s.failed != nil {
		return unavailable(s.failed)
	}
	if s.at.IsZero() {
		return unavailable(errNotYet)
	}
	if unseen := time.Since(s.at); unseen > unseenMost && j.opts.Shared {
		return unavailable(fmt.Errorf("the journal's head was last read %s ago", unseen.Round(time.Second)))
	}
	return nil
}

// Checkpoint implements journal.Journal.
func (j *Journal) Checkpoint(ctx context.Context) ([]byte, error) {
	signed, err := j.Journal.Checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	return signed, j.cover(ctx, signed)
}

// Prove implements journal.Journal.
func (j *Journal) Prove(ctx context.Context, index int64) (journal.InclusionProof, error) {
	proof, err := j.Journal.Prove(ctx, index)
	if err != nil {
		return proof, err
	}
	if err := j.cover(ctx, []byte(proof.Checkpoint)); err != nil {
		return journal.InclusionProof{}, err
	}
	return proof, nil
}

// Tile implements journal.Journal.
func (j *Journal) Tile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	if lost := j.Loss(); lost != nil {
		return nil, lost.refusal()
	}
	return j.Journal.Tile(ctx, t)
}

// cover returns nil once the mark on the disk covers a checkpoint of the journal. Concurrent callers share a check and
// its fsync.
func (j *Journal) cover(ctx context.Context, signed []byte) error {
	s := j.state.Load()
	if s.lost == nil && string(s.mark.Signed) == string(signed) {
		return nil
	}
	mark, err := parse(signed, j.opts.Key.Verifier)
	if err != nil {
		j.signal() // a checkpoint of another log: a check finds out more
		return unavailable(err)
	}
	w := &waiter{mark: mark, done: make(chan error, 1)}
	j.mu.Lock()
	j.waiting = append(j.waiting, w)
	j.mu.Unlock()
	if j.opts.OnDemand {
		j.checkHead(ctx)
	} else {
		j.signal()
	}
	late := time.NewTimer(coverTimeout)
	defer late.Stop()
	select {
	case err := <-w.done:
		return err
	case <-late.C:
	case <-j.ended:
	case <-ctx.Done():
	}
	select {
	case err := <-w.done: // answered by a check
		return err
	default:
	}
	if ctx.Err() != nil {
		return appliance.Errorf(appliance.CodeTimeout,
			"the journal did not answer in time").Because(errors.New("wait for the high-water mark"))
	}
	return unavailable(fmt.Errorf("the mark is not on the disk after %s", coverTimeout))
}

func (j *Journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default: // a check is due already
	}
}

var errNotYet = errors.New("the journal's head has not been read yet")

// unavailable is the error while the mark cannot be written. attestd recovers without a restart.
func unavailable(cause error) error {
	return &appliance.Error{
		Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available", RetryAfter: time.Second,
		Cause: fmt.Errorf("high-water mark: %w", cause),
	}
}
