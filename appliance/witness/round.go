package witness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// maxTries is the maximum number of requests to a witness in a round. The first request has the remembered size, and
// the second the size in the witness's 409. The third is for the case that another appliance of the log has asked it in
// between.
const maxTries = 3

// head is a checkpoint to be cosigned.
type head struct {
	signed []byte // signed by the log only
	tree   tlog.Tree
}

// result is the outcome of a round with one witness.
type result struct {
	of            *witnessState
	head          head
	line          cosignatureLine // its cosignature of head; zero if it gave none
	err           error
	contradiction bool // err is a contradiction
	retryAfter    time.Duration
	outpaced      bool // another appliance of the log has sent it a newer head
}

// cosign requests a cosignature from one witness. It recovers from panics, so that no answer can stop attesting.
func (g *Gatherer) cosign(ctx context.Context, w *witnessState, old int64, h head) (r result) {
	r = result{of: w, head: h}
	defer func() {
		if cause := recover(); cause != nil {
			r.err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	if old > h.tree.N {
		old = 0 // the witness reports its size
	}
	for range maxTries {
		a, err := g.send(ctx, w, old, h)
		if err != nil {
			r.err = err
			return r
		}
		r.retryAfter = a.retryAfter
		switch a.status {
		case http.StatusOK:
			r.line, r.err = g.cosignature(w, h, a)
			return r
		case http.StatusConflict:
			size, err := a.size()
			if err != nil {
				r.err = err
				return r
			}
			if size > h.tree.N || size == old {
				return g.conflict(ctx, r, old, size)
			}
			old = size
		case http.StatusUnprocessableEntity:
			r.contradiction = true
			r.err = fmt.Errorf("it has cosigned %d records that differ from the journal's first records (422: %s)", old,
				a.shown())
			return r
		default:
			r.err = a.fault()
			return r
		}
	}
	r.err = fmt.Errorf("it has seen a newer checkpoint at each of %d requests", maxTries)
	return r
}

// send sends the head with a consistency proof from the old size.
func (g *Gatherer) send(ctx context.Context, w *witnessState, old int64, h head) (answer, error) {
	var proof tlog.TreeProof
	if old > 0 {
		var err error
		if proof, err = tlog.ProveTree(h.tree.N, old, journal.NewHashes(ctx, g.opts.Journal, h.tree.N)); err != nil {
			return answer{}, fmt.Errorf("prove that the log grew from %d to %d records: %w", old, h.tree.N, err)
		}
	}
	body, err := request(old, proof, h.signed)
	if err != nil {
		return answer{}, err
	}
	a, err := addCheckpoint(ctx, g.client, g.opts.UserAgent, w.URL, body)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the caller adds the URL
	}
	return a, err
}

// conflict judges a 409 that a retry cannot solve: the witness has a larger tree, or another one of the same size.
func (g *Gatherer) conflict(ctx context.Context, r result, old, size int64) result {
	if size == old && old < r.head.tree.N {
		r.err = fmt.Errorf("it reports %d records, which is the size that it was sent", size)
		return r
	}
	if size == old {
		r.contradiction = true
		r.err = fmt.Errorf("it has cosigned another tree of %d records", size)
		return r
	}
	// Appliances that share a journal use the same witnesses. Another one may have sent a newer head.
	now, err := g.currentHead(ctx)
	switch {
	case err != nil:
		r.err = err
	case now.tree.N >= size:
		r.outpaced = true
		r.err = fmt.Errorf("another appliance of this log has sent it %d records", size)
	default:
		r.contradiction = true
		r.err = fmt.Errorf("it has cosigned %d records, but the journal has %d: records are lost, or another log "+
			"signs in this log's name", size, now.tree.N)
	}
	return r
}

// cosignature reads a 200.
func (g *Gatherer) cosignature(w *witnessState, h head, a answer) (cosignatureLine, error) {
	text, _ := split(h.signed)
	l, ok, err := w.Key.find(text, a.body)
	switch off := l.time.Sub(g.opts.Now()); {
	case err != nil:
		return cosignatureLine{}, err
	case !ok:
		return cosignatureLine{},
			fmt.Errorf("its answer has no cosignature of %s: %s", journal.LogName(w.Key), a.shown())
	case off > MaxAhead || off < -MaxAhead:
		return cosignatureLine{},
			fmt.Errorf("it cosigned at %s by its clock, but this clock shows %s: one of the clocks is "+
				"wrong, or it repeats an old cosignature",
				l.time.Format(time.RFC3339), g.opts.Now().UTC().Format(time.RFC3339))
	}
	return l, nil
}

// currentHead reads the newest checkpoint.
func (g *Gatherer) currentHead(ctx context.Context) (head, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	signed, err := g.opts.Journal.Checkpoint(ctx)
	if err != nil {
		return head{}, fmt.Errorf("read the newest checkpoint: %w", err)
	}
	tree, err := journal.OpenCheckpoint(signed, g.opts.Log)
	return head{signed, tree}, err
}
