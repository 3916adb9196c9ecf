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

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
)

// FileName is that of the newest witnessed checkpoint in data_dir: a C2SP signed note, with its cosignatures.
const FileName = "witnessed-checkpoint"

// Refresh is how old a cosignature becomes before the witness is asked for another one of the same tree, which says that
// nothing has changed since. It is journal.witness_interval where that is longer.
const Refresh = 10 * time.Minute

// StaleAfter is how old the newest witnessed checkpoint is when something is wrong: it could have been refreshed three times.
func StaleAfter(interval time.Duration) time.Duration { return 3 * max(Refresh, interval) }

// Journal is what of an appliance.Journal witnesses are shown.
type Journal interface {
	appliance.Tiles
	Checkpoint(ctx context.Context) ([]byte, error)
}

// Options are what a Gatherer works with.
type Options struct {
	Journal   Journal
	Log       note.Verifier // the journal's
	Path      string        // of the file that keeps the newest witnessed checkpoint
	Interval  time.Duration // how often the newest checkpoint is looked at
	UserAgent string
	Logger    *slog.Logger          // nil means none
	Now       func() time.Time      // nil means time.Now
	Record    func(appliance.Event) // takes what is to be recorded in the journal, and must not block; nil means nobody
}

// Gatherer asks the witnesses of a policy to cosign the newest checkpoint, each time that it grew, and keeps the newest that a quorum
// has cosigned. Nothing that attests waits for it. All methods are safe for concurrent use.
type Gatherer struct {
	opts   Options
	client *http.Client
	wake   chan struct{} // has one element when a round is wanted at once

	round sync.Mutex // held by a round

	mu        sync.Mutex // protects what follows
	policy    *Policy    // nil where there is none
	witnesses []*asked   // those of the policy that have a URL
	current   head       // what is being cosigned
	lines     map[*asked]line
	newest    *Checkpoint // that has a quorum
	bare      head        // the newest that was published before there was one with a quorum
	changed   chan struct{}
}

// asked is a witness, with what is known of it. The Gatherer's mu protects it.
type asked struct {
	Witness
	size      int64     // of the tree that it cosigned last, as far as known
	got       time.Time // when its newest cosignature came
	said      time.Time // the time in it
	fault     error     // why it did not cosign when it was asked last
	since     time.Time // of fault
	alarm     bool      // fault is a contradiction: it is not asked again
	notBefore time.Time // when it may be asked again
}

// Open returns a Gatherer that has what the file keeps. It asks nobody until Use and Run.
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

// Read returns the checkpoint that a file keeps; nil where there is none.
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

// Use goes on with a policy; nil is none. What was known of its witnesses is forgotten, so that one that has contradicted the journal is
// asked again.
func (g *Gatherer) Use(p *Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy, g.witnesses, g.newest, g.lines, g.current = p, nil, nil, make(map[*asked]line), head{}
	if p == nil {
		return
	}
	for _, w := range p.Witnesses {
		if w.URL != "" {
			g.witnesses = append(g.witnesses, &asked{Witness: w})
		}
	}
	if len(p.Logs) > 0 && !p.HasLog(g.opts.Log) {
		g.opts.Logger.Warn("witness: the policy does not name this log: who checks by it refuses this log's checkpoints", "log", appliance.LogName(g.opts.Log))
	}
	g.restore()
	g.signal()
}

// restore takes what the file keeps as far as the policy goes.
func (g *Gatherer) restore() {
	signed, err := Read(g.opts.Path)
	if err != nil || signed == nil {
		return // Open has told
	}
	c, err := g.policy.open(signed, g.opts.Now(), g.opts.Log)
	if c.Log == nil {
		g.opts.Logger.Warn("witness: the checkpoint that was kept is of no use, and another one is gathered", "file", g.opts.Path, "error", err.Error())
		return
	}
	text, lines := split(signed)
	g.current.tree = c.Tree // the next round has the rest
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
			g.opts.Logger.Debug("witness: nothing to show them", "error", err.Error())
		}
	}
}

func (g *Gatherer) signal() {
	select {
	case g.wake <- struct{}{}:
	default: // there is a signal already
	}
}

// Gather asks once each witness that is due. The error says that the journal has nothing to show.
func (g *Gatherer) Gather(ctx context.Context) error {
	g.round.Lock()
	defer g.round.Unlock()
	for range maxTries {
		h, err := g.head(ctx)
		if err != nil || h.tree.N == 0 {
			return err
		}
		outpaced := false
		due := g.due(h)
		results := make(chan result, len(due))
		for w, old := range due {
			go func() { results <- g.ask(ctx, w, old, h) }()
		}
		for range due {
			r := <-results
			outpaced = outpaced || r.outpaced
			if ctx.Err() == nil {
				g.keep(g.take(r))
			}
		}
		if !outpaced {
			return nil
		}
	}
	return nil
}

// due returns the witnesses to ask for a cosignature of h, each with the size of the tree that it has.
func (g *Gatherer) due(h head) map[*asked]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.tree != g.current.tree {
		g.lines = make(map[*asked]line)
	}
	g.current = h
	now := g.opts.Now()
	due := make(map[*asked]int64)
	for _, w := range g.witnesses {
		_, has := g.lines[w]
		fresh := has && now.Sub(w.got) < max(Refresh, g.opts.Interval)
		if !w.alarm && !fresh && !now.Before(w.notBefore) {
			due[w] = w.size
		}
	}
	return due
}

// take takes what came of asking a witness. It returns the checkpoint that has a quorum with it; nil where it has none.
func (g *Gatherer) take(r result) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := r.of
	if !slices.Contains(g.witnesses, w) {
		return nil // of a policy of before
	}
	now := g.opts.Now()
	w.notBefore = now.Add(r.retryAfter)
	if r.err != nil {
		if !r.outpaced { // else it is asked again at once
			g.failed(w, r, now)
		}
		return nil
	}
	if w.fault != nil {
		g.opts.Logger.Info("witness: it cosigns again", "witness", w.Name, "url", w.URL, "after", now.Sub(w.since).Round(time.Second).String())
	}
	w.fault, w.size, w.got, w.said = nil, r.head.tree.N, now, r.line.time
	if r.head.tree != g.current.tree {
		return nil
	}
	g.lines[w] = r.line
	return g.publish()
}

// keep writes the newest witnessed checkpoint to the file.
func (g *Gatherer) keep(signed []byte) {
	if signed == nil {
		return
	}
	if err := files.Write(g.opts.Path, signed, 0o600); err != nil {
		g.opts.Logger.Warn("witness: the witnessed checkpoint is not kept over a restart", "file", g.opts.Path, "error", err.Error())
	}
}

// failed tells the operator, once for each kind of fault.
func (g *Gatherer) failed(w *asked, r result, now time.Time) {
	before := w.fault
	if before == nil {
		w.since = now
	}
	w.fault, w.alarm = r.err, r.contradiction
	switch {
	case r.contradiction:
		g.opts.Logger.Error("witness: CONTRADICTION: "+r.err.Error()+"; it is not asked again before attestd is reloaded (docs/witness.md)",
			"witness", w.Name, "url", w.URL, "checkpoint", string(r.head.signed))
		if g.opts.Record != nil {
			g.opts.Record(appliance.Event{Kind: appliance.EventContradiction, Details: map[string]string{
				appliance.DetailWitness: w.Name, appliance.DetailWitnessKey: appliance.LogName(w.Key), "url": w.URL,
				appliance.DetailReason: r.err.Error(), appliance.DetailCheckpoint: string(r.head.signed),
			}})
		}
	case before == nil || before.Error() != r.err.Error():
		g.opts.Logger.Warn("witness: it does not cosign; attesting goes on, and it is asked again", "witness", w.Name, "url", w.URL, "error", r.err.Error())
	}
}

// publish takes what is being cosigned for the newest witnessed checkpoint, where it has a quorum, and returns it.
func (g *Gatherer) publish() []byte {
	signed := slices.Clone(g.current.signed)
	for _, w := range g.witnesses {
		signed = append(signed, g.lines[w].text...)
	}
	c, err := g.policy.open(signed, g.opts.Now(), g.opts.Log)
	if err != nil || g.newest != nil && c.Tree.N < g.newest.Tree.N {
		return nil // it takes more witnesses
	}
	g.newest = &c
	close(g.changed)
	g.changed = make(chan struct{})
	return signed
}
