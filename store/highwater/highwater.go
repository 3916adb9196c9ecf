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
)

const (
	defaultEvery = time.Second
	sharedEvery  = 500 * time.Millisecond // promised is once a second
	lookTimeout  = 5 * time.Second        // of one look, but for the mark's fsync
	coverTimeout = time.Second            // how long a checkpoint waits for the mark
	unseenMost   = 3 * time.Second        // how old the newest look may be for the journal to be ready
)

// Options are how a Journal is guarded.
type Options struct {
	Key    appliance.LogKey // the log's; required
	Logger *slog.Logger     // nil means none
	Every  time.Duration    // how often the head is looked at, at most while it grows; zero means 1 s, 500 ms where Shared

	// Shared says that others write the store too: the head is looked at all the time. Without it, it is once something was appended
	// here: nobody else can move it.
	Shared bool
	// OnDemand leaves the head alone until a checkpoint is asked for: for commands beside a stopped daemon.
	OnDemand bool
	// Continued is called once when the journal is found to go on as another log, whose key follows from Key. Nothing is attested
	// with Key any more. It must not block. Nil means that nobody needs to know.
	Continued func(next appliance.LogKey, secret string)
}

// Journal is a journal that the mark guards. Its Append, AppendEvent and Ready fail with CodeJournalLost once a head was seen that contradicts the
// mark; so do Checkpoint, Prove and Tile, which give out what could contradict a published checkpoint. Other reads go on. A checkpoint
// is given out only once the mark, on the disk, covers it. When the journal again has what the mark says, all goes on.
type Journal struct {
	appliance.Journal // the store's

	path  string
	opts  Options
	state atomic.Pointer[state]
	last  newest

	newest newestFile

	wake    chan struct{} // has one element when a look is wanted at once
	soon    atomic.Bool   // one is wanted after Every
	stop    context.CancelFunc
	ended   chan struct{} // closed when run has returned
	looking sync.Mutex    // held by a look; what only looks use is below
	told    bool          // Continued was called
	problem error         // why the mark's file is of no use: ErrDamaged, ErrOtherLog, fs.ErrNotExist; nil once it is
	foreign []byte        // with ErrOtherLog: what it holds
	higher  *Mark         // a checkpoint beyond the mark that was committed, and then lost

	mu      sync.Mutex // protects waiting
	waiting []*waiter
}

// state is what the last look found. It is not changed once made.
type state struct {
	mark   Mark
	lost   *Loss
	failed error     // why the mark could not be kept
	at     time.Time // when the head was last seen
}

// waiter wants a checkpoint to be covered.
type waiter struct {
	mark Mark
	done chan error
}

// Open returns the journal guarded by the mark at path, after a first look. An unreadable file is an error; a damaged one and another
// log's are losses, which Loss tells. Where there is none, the journal's head becomes the mark.
func Open(ctx context.Context, path string, journal appliance.Journal, o Options) (*Journal, error) {
	j, err := newJournal(path, journal, o)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	j.stop = stop
	if o.OnDemand {
		close(j.ended)
		return j, nil
	}
	if !o.Shared {
		j.look(ctx)
		go j.run(running)
		return j, nil
	}
	// Such a store may not answer for a while: nothing is appended before it has.
	j.state.Store(&state{mark: j.Mark()})
	looked := make(chan struct{})
	go func() {
		j.look(running)
		close(looked)
		j.run(running)
	}()
	select {
	case <-looked:
	case <-time.After(coverTimeout):
	}
	return j, nil
}

func newJournal(path string, journal appliance.Journal, o Options) (*Journal, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Every == 0 && o.Shared {
		o.Every = sharedEvery
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	j := &Journal{Journal: journal, path: path, newest: newestFile{path: NewestPath(path)}, opts: o, wake: make(chan struct{}, 1), ended: make(chan struct{})}
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

// Compare returns the mark at path, zero where there is none of this log, and how a journal contradicts it; nil where it does not. It
// writes nothing.
func Compare(ctx context.Context, path string, journal appliance.Journal, key appliance.LogKey) (Mark, *Loss, error) {
	j, err := newJournal(path, journal, Options{Key: key})
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

// Close brings the mark up to the head, and ends. The store's journal stays open.
func (j *Journal) Close() error {
	j.stop()
	<-j.ended
	if j.opts.OnDemand {
		return nil
	}
	j.look(context.Background())
	s := j.state.Load()
	if s.lost != nil || s.failed != nil {
		return s.failed
	}
	return j.newest.remove()
}

// Committed keeps the checkpoint of a commit whose callers are not answered yet, and does not wait for the disk: when the process is
// killed, the next start knows of all that was answered, be it in the write-ahead log alone. After a power cut, it knows what the mark says.
func (j *Journal) Committed(signed []byte) {
	if err := j.newest.write(signed); err != nil {
		j.signal() // a look brings the mark there, or says why it cannot
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
		j.look(ctx)
	}
}

// Loss returns how the journal contradicts the mark; nil while it does not.
func (j *Journal) Loss() *Loss { return j.state.Load().lost }

// Mark returns the checkpoint on the disk; its Signed is nil where there is none.
func (j *Journal) Mark() Mark { return j.state.Load().mark }

// Accept returns CodeJournalLost for a head on which nothing may be appended. It is for stores that others write, which ask while they
// hold the head's lock: what this appliance saw before is then no higher than the head. What only a proof can tell, the next look does.
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

// Append implements appliance.Journal. With OnDemand, the head is compared with the mark before each.
func (j *Journal) Append(ctx context.Context, r appliance.Record, conditions ...appliance.Condition) (appliance.Entry, bool, error) {
	if err := j.refusal(ctx); err != nil {
		return appliance.Entry{}, false, err
	}
	e, replayed, err := j.Journal.Append(ctx, r, conditions...)
	if err == nil && !replayed {
		j.appended(e)
	}
	return e, replayed, err
}

// AppendEvent implements appliance.Journal.
func (j *Journal) AppendEvent(ctx context.Context, event appliance.Event) (appliance.Entry, error) {
	if err := j.refusal(ctx); err != nil {
		return appliance.Entry{}, err
	}
	e, err := j.Journal.AppendEvent(ctx, event)
	if err == nil {
		j.appended(e)
	}
	return e, err
}

// refusal returns why nothing may be appended, or nil.
func (j *Journal) refusal(ctx context.Context) error {
	s := j.state.Load()
	if j.opts.OnDemand { // nothing has looked yet
		j.looking.Lock()
		err := j.find(ctx, s, nil).err
		j.looking.Unlock()
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

func (j *Journal) appended(e appliance.Entry) {
	j.last.raise(e.Index, e.Leaf)
	j.signalSoon()
}

// newest is the highest leaf that was appended here. All methods are safe for concurrent use.
type newest struct {
	mu   sync.Mutex
	size atomic.Int64 // 0 means none; else the leaf's index is one less
	leaf []byte       // guarded by mu
}

// raise takes a leaf that is higher.
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

// signalSoon has the head looked at once Every has passed.
func (j *Journal) signalSoon() {
	if !j.opts.Shared && !j.soon.Load() && j.soon.CompareAndSwap(false, true) {
		time.AfterFunc(j.opts.Every, j.signal)
	}
}

// Ready implements appliance.Journal.
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
		return unavailable(fmt.Errorf("its head was last seen %s ago", unseen.Round(time.Second)))
	}
	return nil
}

// Checkpoint implements appliance.Journal.
func (j *Journal) Checkpoint(ctx context.Context) ([]byte, error) {
	signed, err := j.Journal.Checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	return signed, j.cover(ctx, signed)
}

// Prove implements appliance.Journal.
func (j *Journal) Prove(ctx context.Context, index int64) (appliance.InclusionProof, error) {
	proof, err := j.Journal.Prove(ctx, index)
	if err != nil {
		return proof, err
	}
	if err := j.cover(ctx, []byte(proof.Checkpoint)); err != nil {
		return appliance.InclusionProof{}, err
	}
	return proof, nil
}

// Tile implements appliance.Journal.
func (j *Journal) Tile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	if lost := j.Loss(); lost != nil {
		return nil, lost.refusal()
	}
	return j.Journal.Tile(ctx, t)
}

// cover returns nil once the mark covers a checkpoint that was read from the journal. All who ask meanwhile share a look and its fsync.
func (j *Journal) cover(ctx context.Context, signed []byte) error {
	s := j.state.Load()
	if s.lost == nil && string(s.mark.Signed) == string(signed) {
		return nil
	}
	mark, err := parse(signed, j.opts.Key.Verifier)
	if err != nil {
		j.signal() // another log's: a look says more
		return unavailable(err)
	}
	w := &waiter{mark: mark, done: make(chan error, 1)}
	j.mu.Lock()
	j.waiting = append(j.waiting, w)
	j.mu.Unlock()
	if j.opts.OnDemand {
		j.look(ctx)
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
	case err := <-w.done: // a look that ended with all the rest
		return err
	default:
	}
	if ctx.Err() != nil {
		return appliance.Errorf(appliance.CodeTimeout, "the journal did not answer in time").Because(errors.New("wait for the high-water mark"))
	}
	return unavailable(fmt.Errorf("it is not on the disk after %s", coverTimeout))
}

func (j *Journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default: // there is a signal already
	}
}

var errNotYet = errors.New("the journal's head was not seen yet")

// unavailable is the answer while the mark cannot be kept: attestd goes on by itself when it can.
func unavailable(cause error) error {
	return &appliance.Error{
		Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available", RetryAfter: time.Second,
		Cause: fmt.Errorf("high-water mark: %w", cause),
	}
}
