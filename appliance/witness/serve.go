package witness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// Newest returns the newest checkpoint with a quorum. ok is false without a quorum so far.
func (g *Gatherer) Newest() (c Checkpoint, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.newest == nil {
		return Checkpoint{}, false
	}
	return *g.newest, true
}

// Published returns the checkpoint to publish: the newest with a quorum, with its cosignatures. Before the first
// quorum, and without a policy, it is the newest of all. It never returns a smaller checkpoint than before.
func (g *Gatherer) Published(ctx context.Context) ([]byte, error) {
	if signed, ok := g.published(); ok {
		return signed, nil
	}
	h, err := g.currentHead(ctx)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.policy != nil && h.tree.N >= g.bare.tree.N {
		g.bare = h
	}
	return h.signed, nil
}

// published returns the checkpoint for Published after the first quorum.
func (g *Gatherer) published() (signed []byte, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.newest == nil:
		return nil, false
	case g.bare.tree.N > g.newest.Tree.N:
		return g.bare.signed, true // never publish a smaller one
	}
	return g.newest.Signed, true
}

// Covering returns a witnessed checkpoint of at least that many records. If the newest is smaller, it asks the
// witnesses at once and waits until ctx ends.
//
// Errors: CodeTimeout with the state of the witnesses; CodeNotFound without a policy.
func (g *Gatherer) Covering(ctx context.Context, records int64) (Checkpoint, error) {
	for {
		g.mu.Lock()
		newest, changed, policy := g.newest, g.changed, g.policy
		g.mu.Unlock()
		if policy == nil {
			return Checkpoint{}, appliance.Errorf(appliance.CodeNotFound, "checkpoints are not witnessed: "+
				"journal.witnesses is not set")
		}
		if newest != nil && newest.Tree.N >= records {
			return *newest, nil
		}
		g.signal()
		select {
		case <-changed:
		case <-ctx.Done():
			return Checkpoint{}, appliance.Errorf(appliance.CodeTimeout, "a quorum of the witnesses has not cosigned "+
				"a checkpoint of %d records yet: %s", records, g.state())
		}
	}
}

// state describes the state of the witnesses.
func (g *Gatherer) state() string {
	s := g.Status()
	text := "they have not cosigned a checkpoint"
	if s.Newest != nil {
		text = fmt.Sprintf("their newest has %d records, cosigned at %s", s.Newest.Records,
			s.Newest.Time.Format(time.RFC3339))
	}
	for _, w := range s.Witnesses {
		if w.Fault != "" {
			text += fmt.Sprintf("; %s: %s", w.Name, w.Fault)
		}
	}
	return text
}

// Prove returns an inclusion proof in a witnessed checkpoint. It waits as Covering does.
func (g *Gatherer) Prove(ctx context.Context, index int64) (journal.InclusionProof, error) {
	c, err := g.Covering(ctx, index+1)
	if err != nil {
		return journal.InclusionProof{}, err
	}
	return journal.ProveAt(context.WithoutCancel(ctx), g.opts.Journal, index, c.Tree, c.Signed)
}

// Status is the state of the witnesses.
type Status struct {
	Policy    bool          `json:"policy"`           // there is a policy
	Names     bool          `json:"namesLog"`         // the policy accepts this log
	Quorum    string        `json:"quorum,omitempty"` // the required cosignatures
	Newest    *Witnessed    `json:"newest,omitempty"`
	Witnesses []WitnessNews `json:"witnesses,omitempty"` // witnesses with a URL

	Interval time.Duration `json:"-"` // Options.Interval
}

// Witnessed is the newest checkpoint with a quorum.
type Witnessed struct {
	Records int64 `json:"records"`
	// see Checkpoint.Time; without a quorum in the policy, the time of the newest cosignature
	Time time.Time     `json:"time"`
	By   []Cosignature `json:"by"`
}

// WitnessNews is the state of one witness.
type WitnessNews struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`
	Records     int64     `json:"records"`               // in the last tree that it cosigned
	Time        time.Time `json:"time,omitzero"`         // time in that cosignature
	Fault       string    `json:"fault,omitempty"`       // why its last answer was no cosignature
	Since       time.Time `json:"since,omitzero"`        // time of the first such answer
	Contradicts bool      `json:"contradicts,omitempty"` // it has seen another history
}

// Status returns the state of the witnesses.
func (g *Gatherer) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.policy == nil {
		return Status{}
	}
	s := Status{Policy: true, Interval: g.opts.Interval,
		Names: len(g.policy.Logs) == 0 || g.policy.HasLog(g.opts.Log), Quorum: g.policy.Quorum()}
	if g.newest != nil {
		s.Newest = &Witnessed{g.newest.Tree.N, g.newest.Time, g.newest.By}
		if s.Newest.Time.IsZero() && len(s.Newest.By) > 0 {
			s.Newest.Time = slices.MaxFunc(g.newest.By, func(a, b Cosignature) int {
				return a.Time.Compare(b.Time)
			}).Time
		}
	}
	for _, w := range g.witnesses {
		news := WitnessNews{Name: w.Name, URL: w.URL, Records: w.size, Time: w.said}
		if w.fault != nil {
			news.Fault, news.Since, news.Contradicts = strings.TrimSpace(w.fault.Error()), w.since.UTC(), w.alarm
		}
		s.Witnesses = append(s.Witnesses, news)
	}
	return s
}
