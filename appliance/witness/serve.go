package witness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
)

// Newest returns the newest checkpoint that a quorum has cosigned; ok is false where there is none.
func (g *Gatherer) Newest() (c Checkpoint, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.newest == nil {
		return Checkpoint{}, false
	}
	return *g.newest, true
}

// Published returns the checkpoint that everybody is shown: the newest that a quorum has cosigned, with the cosignatures. Where there is
// none yet, or no policy, it is the newest of all. It never goes back to a smaller one.
func (g *Gatherer) Published(ctx context.Context) ([]byte, error) {
	if signed, ok := g.published(); ok {
		return signed, nil
	}
	h, err := g.head(ctx)
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

// published is what Published answers once there is a quorum.
func (g *Gatherer) published() (signed []byte, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.newest == nil:
		return nil, false
	case g.bare.tree.N > g.newest.Tree.N:
		return g.bare.signed, true // who has seen it need not see less
	}
	return g.newest.Signed, true
}

// Covering returns a witnessed checkpoint with at least that many records. Where there is none yet, the witnesses are asked at once,
// and it waits until ctx ends.
//
// Errors: CodeTimeout, which says how far the witnesses are; CodeNotFound where there is no policy.
func (g *Gatherer) Covering(ctx context.Context, records int64) (Checkpoint, error) {
	for {
		g.mu.Lock()
		newest, changed, policy := g.newest, g.changed, g.policy
		g.mu.Unlock()
		if policy == nil {
			return Checkpoint{}, appliance.Errorf(appliance.CodeNotFound, "no checkpoint is witnessed here: journal.witnesses is not set")
		}
		if newest != nil && newest.Tree.N >= records {
			return *newest, nil
		}
		g.signal()
		select {
		case <-changed:
		case <-ctx.Done():
			return Checkpoint{}, appliance.Errorf(appliance.CodeTimeout, "no quorum of the witnesses has cosigned a checkpoint of %d records yet: %s", records, g.state())
		}
	}
}

// state says how far the witnesses are.
func (g *Gatherer) state() string {
	s := g.Status()
	text := "they have cosigned none so far"
	if s.Newest != nil {
		text = fmt.Sprintf("the newest that they have has %d, of %s", s.Newest.Records, s.Newest.Time.Format(time.RFC3339))
	}
	for _, w := range s.Witnesses {
		if w.Fault != "" {
			text += fmt.Sprintf("; %s: %s", w.Name, w.Fault)
		}
	}
	return text
}

// Prove returns the proof that a record is in the tree of a witnessed checkpoint, for which it waits as Covering does.
func (g *Gatherer) Prove(ctx context.Context, index int64) (appliance.InclusionProof, error) {
	c, err := g.Covering(ctx, index+1)
	if err != nil {
		return appliance.InclusionProof{}, err
	}
	return appliance.ProveAt(context.WithoutCancel(ctx), g.opts.Journal, index, c.Tree, c.Signed)
}

// Status is how far the witnesses are.
type Status struct {
	Policy    bool          `json:"policy"`           // whether there is one
	Names     bool          `json:"namesLog"`         // whether the policy accepts this log's checkpoints
	Quorum    string        `json:"quorum,omitempty"` // who must have cosigned
	Newest    *Witnessed    `json:"newest,omitempty"`
	Witnesses []WitnessNews `json:"witnesses,omitempty"` // that can be asked
}

// Witnessed is the newest checkpoint that a quorum has cosigned.
type Witnessed struct {
	Records int64         `json:"records"`
	Time    time.Time     `json:"time"` // see Checkpoint.Time; of one for which there must be no quorum, its newest cosignature's
	By      []Cosignature `json:"by"`
}

// WitnessNews is what is known of one witness.
type WitnessNews struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`
	Records     int64     `json:"records"`               // of the tree that it cosigned last
	Time        time.Time `json:"time,omitzero"`         // when it did, as it says
	Fault       string    `json:"fault,omitempty"`       // why it did not when it was asked last
	Since       time.Time `json:"since,omitzero"`        // of Fault
	Contradicts bool      `json:"contradicts,omitempty"` // it has seen another history
}

// Status returns how far the witnesses are.
func (g *Gatherer) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.policy == nil {
		return Status{}
	}
	s := Status{Policy: true, Names: len(g.policy.Logs) == 0 || g.policy.HasLog(g.opts.Log), Quorum: g.policy.Quorum()}
	if g.newest != nil {
		s.Newest = &Witnessed{g.newest.Tree.N, g.newest.Time, g.newest.By}
		if s.Newest.Time.IsZero() && len(s.Newest.By) > 0 {
			s.Newest.Time = slices.MaxFunc(g.newest.By, func(a, b Cosignature) int { return a.Time.Compare(b.Time) }).Time
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
