package witness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// FileName is the file of the newest witnessed checkpoint in data_dir: a C2SP signed note with cosignatures.
const FileName = "witnessed-checkpoint"

// Refresh is the age at which a cosignature of an unchanged tree is renewed. journal.witness_interval is used instead
// if it is longer.
const Refresh = 10 * time.Minute

// StaleAfter is the age at which the newest witnessed checkpoint is reported as stale. Three refreshes are missing
// then.
func StaleAfter(interval time.Duration) time.Duration { return 3 * max(Refresh, interval) }

// Journal is the part of journal.Journal that a Gatherer needs.
type Journal interface {
	journal.Tiles
	Checkpoint(ctx context.Context) ([]byte, error)
}

// Options configure a Gatherer.
type Options struct {
	Journal   Journal
	Log       note.Verifier // the journal's
	Path      string        // of the file with the newest witnessed checkpoint
	Interval  time.Duration // time between two looks at the newest checkpoint
	UserAgent string
	Logger    *slog.Logger        // may be nil
	Now       func() time.Time    // nil means time.Now
	Record    func(journal.Event) // records an event; must not block; may be nil
}

// Gatherer requests cosignatures of each new checkpoint and stores the newest checkpoint that a quorum has cosigned.
// Attesting never waits for it. All methods are safe for concurrent use.
type Gatherer struct {
	opts   Options
	client *http.Client
	wake   chan struct{} // has an element if a round is due now

	round sync.Mutex // held by a round

	mu        sync.Mutex      // protects the fields below
	policy    *Policy         // may be nil
	witnesses []*witnessState // the witnesses of the policy that have a URL
	current   head            // the checkpoint being cosigned
	lines     map[*witnessState]cosignatureLine
	newest    *Checkpoint // the newest one with a quorum
	bare      head        // the newest one published before the first quorum
	changed   chan struct{}
}

// witnessState is a witness and its state. Gatherer.mu protects it.
type witnessState struct {
	Witness
	size      int64     // of the last tree that it is known to have cosigned
	got       time.Time // arrival of its newest cosignature
	said      time.Time // time in that cosignature
	fault     error     // why its last answer was no cosignature
	since     time.Time // time of the first such answer
	alarm     bool      // fault is a contradiction; no further requests
	notBefore time.Time // earliest time of the next request
}

// Open returns a Gatherer. It returns an error if the checkpoint file cannot be read. It sends no request before Use
// and Run.
func Open(o Options) (*Gatherer, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	g := &Gatherer{opts: o, client: newClient(), wake: make(chan struct{}, 1), changed: make(chan struct{})}
	_, err := Read(o.Path)
	return g, err
}

// Read returns the checkpoint in a file, or nil if the file does not exist.
func Read(path string) ([]byte, error) {
	const most = 64 << 10
	signed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(signed) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return signed, err
}

// Use replaces the policy; nil removes it. The state of the witnesses is reset, so that a witness that has contradicted
// the journal is asked again.
func (g *Gatherer) Use(p *Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy, g.witnesses, g.newest, g.lines, g.current = p, nil, nil, make(map[*witnessState]cosignatureLine), head{}
	if p == nil {
		return
	}
	for _, w := range p.Witnesses {
		if w.URL != "" {
			g.witnesses = append(g.witnesses, &witnessState{Witness: w})
		}
	}
	if len(p.Logs) > 0 && !p.HasLog(g.opts.Log) {
		g.opts.Logger.Warn("witness: the policy does not name this log, so verifiers that use it refuse this log's "+
			"checkpoints", "log", journal.LogName(g.opts.Log))
	}
	g.restore()
	g.signal()
}

// restore uses the stored checkpoint if the policy accepts it.
func (g *Gatherer) restore() {
	signed, err := Read(g.opts.Path)
	if err != nil || signed == nil {
		return // Open has returned the error
	}
	c, err := g.policy.open(signed, g.opts.Now(), g.opts.Log)
	if c.Log == nil {
		g.opts.Logger.Warn("witness: the stored checkpoint is unusable; a new one is gathered", "file", g.opts.Path,
			"error", err.Error())
		return
	}
	text, lines := split(signed)
	g.current.tree = c.Tree // the next round does the rest
	for _, w := range g.witnesses {
		if l, ok, err := w.Key.find(text, lines); ok && err == nil {
			g.lines[w] = l
			w.size, w.got, w.said = c.Tree.N, l.time, l.time
		}
	}
	if err == nil && len(c.By) > 0 {
		g.newest = &c
	}
}

// Run gathers cosignatures until ctx ends.
func (g *Gatherer) Run(ctx context.Context) {
	tick := time.NewTicker(g.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-tick.C:
		}
		if err := g.Gather(ctx); err != nil && ctx.Err() == nil {
			g.opts.Logger.Debug("witness: no checkpoint to cosign", "error", err.Error())
		}
	}
}

func (g *Gatherer) signal() {
	select {
	case g.wake <- struct{}{}:
	default: // a round is due already
	}
}

// Gather sends one request to each witness that is due. It returns an error if the journal has no checkpoint.
func (g *Gatherer) Gather(ctx context.Context) error {
	g.round.Lock()
	defer g.round.Unlock()
	for range maxTries {
		h, err := g.currentHead(ctx)
		if err != nil || h.tree.N == 0 {
			return err
		}
		outpaced := false
		due := g.due(h)
		results := make(chan result, len(due))
		for w, old := range due {
			go func() { results <- g.cosign(ctx, w, old, h) }()
		}
		for range due {
			r := <-results
			outpaced = outpaced || r.outpaced
			if ctx.Err() == nil {
				g.storeNewest(g.recordResult(r))
			}
		}
		if !outpaced {
			return nil
		}
	}
	return nil
}

// due returns the witnesses to ask for a cosignature of h, each with the size of its last tree.
func (g *Gatherer) due(h head) map[*witnessState]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.tree != g.current.tree {
		g.lines = make(map[*witnessState]cosignatureLine)
	}
	g.current = h
	now := g.opts.Now()
	due := make(map[*witnessState]int64)
	for _, w := range g.witnesses {
		_, has := g.lines[w]
		fresh := has && now.Sub(w.got) < max(Refresh, g.opts.Interval)
		if !w.alarm && !fresh && !now.Before(w.notBefore) {
			due[w] = w.size
		}
	}
	return due
}

// recordResult records a witness's answer. If the checkpoint has a quorum now, it returns the checkpoint.
func (g *Gatherer) recordResult(r result) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := r.of
	if !slices.Contains(g.witnesses, w) {
		return nil // of an earlier policy
	}
	now := g.opts.Now()
	w.notBefore = now.Add(r.retryAfter)
	if r.err != nil {
		if !r.outpaced { // otherwise the next request follows at once
			g.failed(w, r, now)
		}
		return nil
	}
	if w.fault != nil {
		g.opts.Logger.Info("witness: it cosigns again", "witness", w.Name, "url", w.URL,
			"after", now.Sub(w.since).Round(time.Second).String())
	}
	w.fault, w.size, w.got, w.said = nil, r.head.tree.N, now, r.line.time
	if r.head.tree != g.current.tree {
		return nil
	}
	g.lines[w] = r.line
	return g.publish()
}

// storeNewest stores the newest witnessed checkpoint.
func (g *Gatherer) storeNewest(signed []byte) {
	if signed == nil {
		return
	}
	if err := files.Write(g.opts.Path, signed, 0o600); err != nil {
		g.opts.Logger.Warn("witness: the witnessed checkpoint cannot be stored and is lost at a restart",
			"file", g.opts.Path, "error", err.Error())
	}
}

// failed logs a fault, once per kind.
func (g *Gatherer) failed(w *witnessState, r result, now time.Time) {
	before := w.fault
	if before == nil {
		w.since = now
	}
	w.fault, w.alarm = r.err, r.contradiction
	switch {
	case r.contradiction:
		g.opts.Logger.Error("witness: CONTRADICTION: "+r.err.Error()+"; requests to it stop until attestd is "+
			"reloaded (docs/witness.md)",
			"witness", w.Name, "url", w.URL, "checkpoint", string(r.head.signed))
		if g.opts.Record != nil {
			g.opts.Record(journal.Event{Kind: journal.EventContradiction, Details: map[string]string{
				journal.DetailWitness: w.Name, journal.DetailWitnessKey: journal.LogName(w.Key), "url": w.URL,
				journal.DetailReason: r.err.Error(), journal.DetailCheckpoint: string(r.head.signed),
			}})
		}
	case before == nil || before.Error() != r.err.Error():
		g.opts.Logger.Warn("witness: it does not cosign and is retried; attesting continues", "witness", w.Name,
			"url", w.URL, "error", r.err.Error())
	}
}

// publish makes the checkpoint being cosigned the newest witnessed one if it has a quorum, and returns it.
func (g *Gatherer) publish() []byte {
	signed := slices.Clone(g.current.signed)
	for _, w := range g.witnesses {
		signed = append(signed, g.lines[w].text...)
	}
	c, err := g.policy.open(signed, g.opts.Now(), g.opts.Log)
	if err != nil || g.newest != nil && c.Tree.N < g.newest.Tree.N {
		return nil // it needs more cosignatures
	}
	g.newest = &c
	close(g.changed)
	g.changed = make(chan struct{})
	return signed
}
