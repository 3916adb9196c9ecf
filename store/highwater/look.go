package highwater

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// The ways in which a journal contradicts the mark.
var (
	errShorter = errors.New("the journal has fewer records than the published checkpoint")
	errForked  = errors.New("the journal has forked from the published checkpoint")
	errMissing = errors.New("the journal lacks an attestation that this appliance issued")
)

// Loss is the error for a journal that contradicts the mark.
type Loss struct {
	Why    string
	Remedy string    // empty means: attestd log accept-loss, or restore the right journal
	Mark   []byte    // signed checkpoint of the mark; nil if the mark is unusable
	Head   []byte    // signed checkpoint of the journal; may be nil
	High   tlog.Tree // of Mark
	Low    tlog.Tree // of Head
}

// Error names both trees and the remedy, for operators.
func (l *Loss) Error() string {
	text := l.Why
	if l.Mark != nil {
		text += fmt.Sprintf(": the high-water mark has %d records and root hash %s, the journal has %d and %s",
			l.High.N, l.High.Hash, l.Low.N, l.Low.Hash)
	}
	if l.Remedy != "" {
		return text + "; " + l.Remedy
	}
	return text +
		"; attesting is stopped. Put the newer journal back; attestd then continues. If the newer journal is lost, " +
		"continue the rest as a new log: attestd log accept-loss --reason …"
}

// refusal returns the error for clients.
func (l *Loss) refusal() error {
	return &appliance.Error{
		Code: appliance.CodeJournalLost, Detail: "the journal has lost published records; the operator must act",
		RetryAfter: time.Minute, Cause: l,
	}
}

// comparison is the result of find.
type comparison struct {
	head Mark
	err  error // a *Loss, or the error that prevented the comparison
}

// checkHead checks the head: it compares the head with the mark and all later entries, raises the mark, and wakes the
// waiters. Calls are serialised.
func (j *Journal) checkHead(ctx context.Context) {
	j.checking.Lock()
	defer j.checking.Unlock()
	j.mu.Lock()
	waiting := j.waiting
	j.waiting = nil
	j.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	j.soon.Store(false)
	before := j.state.Load()
	found := j.find(ctx, before, waiting)
	after := j.nextState(before, found)
	j.state.Store(after)
	j.report(before, after)
	if _, lost := errors.AsType[*Loss](found.err); after.failed != nil || found.err != nil && !lost {
		j.signalSoon() // again
	}
	for _, w := range waiting {
		w.done <- after.answer(found.err)
	}
}

// answer returns the result of a check for the waiters.
func (s *state) answer(err error) error {
	switch {
	case s.lost != nil:
		return s.lost.refusal()
	case s.failed != nil:
		return unavailable(s.failed)
	}
	return err
}

// find compares the head with the mark, with the leaves appended here, and with the waiters' checkpoints. All of these
// were committed before find reads the head.
func (j *Journal) find(ctx context.Context, s *state, waiting []*waiter) comparison {
	size, leaf := j.last.get()
	signed, err := j.Journal.Checkpoint(ctx)
	if err != nil {
		return comparison{err: err}
	}
	if j.problem == nil && s.lost == nil && string(signed) == string(s.mark.Signed) && len(waiting) == 0 {
		return comparison{head: s.mark}
	}
	head, err := parse(signed, j.opts.Key.Verifier)
	if err != nil {
		return comparison{head: Mark{Signed: signed}, err: j.otherLog(ctx, signed, err)}
	}
	if j.problem != nil {
		if err := j.adopt(ctx, head); err != nil {
			return comparison{head, err}
		}
	}
	t := newTiles(ctx, j.Journal, head.Tree.N)
	older := []Mark{s.mark}
	if j.higher != nil {
		older = append(older, *j.higher)
	}
	for _, w := range waiting {
		older = append(older, w.mark)
	}
	for _, m := range older {
		if m.Signed == nil {
			continue // no mark exists yet
		}
		if err := t.extends(head.Tree, m.Tree); err != nil {
			if m.Tree.N > s.mark.Tree.N {
				j.higher = &m
			}
			return comparison{head, lossOr(err, m, head)}
		}
	}
	if size > 0 {
		if err := t.has(head.Tree, size-1, leaf); err != nil {
			return comparison{head, lossOr(err, s.mark, head)}
		}
	}
	return comparison{head: head}
}

// lossOr turns err into a Loss if it means a loss.
func lossOr(err error, mark, head Mark) error {
	for _, loss := range []error{errShorter, errForked, errMissing} {
		if errors.Is(err, loss) {
			return &Loss{Why: err.Error(), Mark: mark.Signed, High: mark.Tree, Head: head.Signed, Low: head.Tree}
		}
	}
	return err
}

// nextState computes the next state. It writes the mark if the head is larger.
func (j *Journal) nextState(s *state, f comparison) *state {
	next := *s
	if loss, ok := errors.AsType[*Loss](f.err); ok {
		next.lost, next.at = loss, time.Now()
		return &next
	}
	if f.err != nil {
		if next.lost == nil && appliance.CodeOf(f.err) == appliance.CodeInternal {
			next.failed = f.err // failures of the store itself are reported by its Ready
		}
		return &next
	}
	next.lost, next.failed, next.at = nil, nil, time.Now()
	if string(f.head.Signed) == string(s.mark.Signed) && j.problem == nil {
		return &next
	}
	if err := write(j.path, f.head.Signed); err != nil {
		next.failed = err
		return &next
	}
	next.mark, j.problem = f.head, nil
	return &next
}

// report logs a change of state.
func (j *Journal) report(before, after *state) {
	switch {
	case before.lost == nil && after.lost != nil:
		j.opts.Logger.Error("journal: LOST: "+after.lost.Error(), "published", string(after.lost.Mark),
			"found", string(after.lost.Head))
	case before.lost != nil && after.lost == nil:
		j.opts.Logger.Warn("journal: the published records are back; attesting continues", "records", after.mark.Tree.N)
	}
	if before.failed == nil && after.failed != nil {
		j.opts.Logger.Error("journal: the high-water mark cannot be written; signing stops until it can",
			"file", j.path, "error", after.failed.Error())
	}
	if before.failed != nil && after.failed == nil {
		j.opts.Logger.Warn("journal: the high-water mark can be written again; attesting continues", "file", j.path)
	}
}

// adopt returns nil if the head may become the mark without a usable older one: at the first start, or if the head's
// log continues the mark's log.
func (j *Journal) adopt(ctx context.Context, head Mark) error {
	if errors.Is(j.problem, fs.ErrNotExist) {
		if head.Tree.N > 0 && j.state.Load().failed == nil {
			j.opts.Logger.Warn("journal: created the high-water mark from the journal's head; earlier losses cannot "+
				"be detected",
				"file", j.path, "records", head.Tree.N)
		}
		return nil
	}
	if errors.Is(j.problem, ErrOtherLog) {
		events, err := Beginning(ctx, j.Journal)
		if err != nil {
			return err
		}
		name := journal.SignerOf(j.foreign)
		for _, e := range events {
			if c, ok := e.Continuation(); ok && c.Names(name) {
				j.opts.Logger.Warn("journal: it continues another log, whose loss was accepted",
					"log", journal.LogName(j.opts.Key.Verifier),
					"before", name, "reason", c.Reason, "by", e.By, "records", head.Tree.N)
				return nil
			}
		}
		return &Loss{Why: j.problem.Error(), Head: head.Signed, Low: head.Tree, Remedy: "attesting is stopped. Put " +
			"back the journal and the log.key " +
			"that match the mark, or continue this journal as another log: attestd log accept-loss --reason …"}
	}
	return &Loss{Why: j.problem.Error(), Head: head.Signed, Low: head.Tree, Remedy: "attesting is stopped. If a " +
		"checkpoint kept elsewhere " +
		"proves the journal complete (attestd log verify --since-checkpoint FILE), remove the file and restart " +
		"attestd; otherwise: attestd log accept-loss --reason …"}
}

// otherLog returns the error for a head of another log, which is a loss unless the store is shared: there, the log key
// may be the wrong one, and the store says what to do. If the other log continues this one, otherLog also calls
// Continued.
func (j *Journal) otherLog(ctx context.Context, signed []byte, cause error) error {
	events, err := Beginning(ctx, j.Journal)
	if err != nil {
		return err
	}
	loss := &Loss{Why: fmt.Sprintf("the journal belongs to another log (%s)", cause), Head: signed,
		Remedy: "attesting is stopped. " +
			"Put back the journal of " + journal.LogName(j.opts.Key.Verifier) + ", or the log.key of the other log"}
	next, secret, err := j.opts.Key.Follow(events)
	if err == nil {
		_, err = journal.OpenCheckpoint(signed, next.Verifier)
	}
	switch {
	case err != nil && j.opts.Shared:
		return unavailable(fmt.Errorf("the journal and the log key belong to different logs (%w)", cause))
	case err != nil:
		return loss
	}
	if !j.continuedCalled && j.opts.Continued != nil {
		j.continuedCalled = true
		j.opts.Continued(next, secret)
	}
	loss.Why, loss.Remedy = "the journal continues as "+next.Verifier.Name(), "to use that log, run: systemctl "+
		"restart attestd"
	return loss
}

// Beginning returns the EventLogContinued events at the start of a journal, newest first.
func Beginning(ctx context.Context, j journal.Journal) (events []journal.Event, err error) {
	enough := errors.New("enough")
	err = j.Entries(ctx, 0, func(e journal.Entry) error {
		if e.Event == nil {
			return enough
		}
		if _, ok := e.Event.Continuation(); !ok {
			return enough
		}
		events = append(events, *e.Event)
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return events, err
}

// has returns an error unless the journal has an appended leaf at its index.
func (t *tiles) has(tree tlog.Tree, index int64, leaf []byte) error {
	if index >= tree.N {
		return errMissing
	}
	hashes, err := t.ReadHashes([]int64{tlog.StoredHashIndex(0, index)})
	if err != nil {
		return fmt.Errorf("read the tree: %w", err)
	}
	if hashes[0] != tlog.RecordHash(leaf) {
		return errMissing
	}
	return nil
}
