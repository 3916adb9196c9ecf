package chain

import (
	"context"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
)

// Members are the other appliances of a quorum. Each has its own journal.
type Members interface {
	// Prove asks the members except those in skip whether their journals have an attestation of the hash that was made
	// before until. A member counts as proven only by an inclusion proof. It counts as lacking if it answers that its
	// journal has no such attestation. Otherwise it is silent: it did not answer, its proof does not verify, its
	// verifier key is not configured, or it was skipped. Prove returns as soon as enough members are proven.
	Prove(ctx context.Context, hash appliance.Digest, until time.Time, enough int,
		skip []string) (proven, lacking, silent []string)
}

const (
	questionsPerMinute = 100 // redemptions without a verdict about which the members are asked
	repeatsPerMinute   = 20  // redemptions with a verdict that are asked about again
)

// askMembers gives a redemption that this journal lacks its verdict, by the journals of the other members. It returns
// when to judge again; 0 means at the next change.
//
// An attestation is answered only after m members have appended it. So a redemption that fewer than m journals can
// prove was stolen. This journal is not one of them. While silent members could make up the number, the redemption
// waits for MemberPatience and is unproven afterwards. It is asked about again until enough members have answered. A
// verdict of unknown stays if members fall silent.
func (c *watched) askMembers(ctx context.Context, r *Redemption, o *opened) time.Duration {
	now, every := time.Now(), c.w.o.CheckEvery
	if wait := o.asked.Add(every).Sub(now); wait > 0 {
		return wait
	}
	questions := &c.questions
	if r.Verdict != "" {
		questions = &c.repeats
	}
	if !questions.allow(now) {
		return time.Minute
	}
	if o.asked = now; o.firstAsked.IsZero() {
		o.firstAsked = now
	}
	need := c.w.o.Threshold
	// The members' clocks differ from this one, too.
	proven, lacking, silent := c.w.o.Members.Prove(ctx, r.Hash, r.Until().Add(ClockTolerance), need, c.silent)
	c.silent = append(c.silent, silent...) // in this pass, so that a member that hangs delays it once
	switch {
	case ctx.Err() != nil:
		return every
	case len(proven) >= need:
		r.Verdict, r.Open = Proven, false
		c.log.Info("chain: the journals of other members have a redemption that this one lacks",
			"hash", r.Hash.String(), "members", strings.Join(proven, " "))
		return 0
	case len(proven)+len(silent) < need:
		r.Verdict = Unknown
	case r.Verdict == Unknown:
	case now.Sub(o.firstAsked) >= c.w.o.MemberPatience:
		r.Verdict = Unproven
	}
	o.proven, o.lacking, o.silent = proven, lacking, silent
	return every
}

// alarmUnproven reports a redemption that is neither proven nor known to be stolen, once.
func (c *watched) alarmUnproven(r *Redemption, was Verdict, o opened) {
	if !c.disputes.allow(time.Now()) {
		return
	}
	list := func(names []string) string { return strings.Join(names, " ") }
	c.log.Error("chain: too few members of the quorum answer whether their journals have a redemption that this one "+
		"lacks: if no journal has it, others sign with the members' keys",
		"hash", r.Hash.String(), "transaction", r.TransactionHash.String(), "proven", list(o.proven),
		"lacking", list(o.lacking), "silent", list(o.silent), "remedy", "attestd quorum status (docs/quorum.md, "+
			"\"Redemptions\")")
	if was != Unproven { // otherwise an earlier run has recorded it
		c.w.record(EventUnproven, c.details(*r, "proven", list(o.proven), "silent", list(o.silent)))
	}
}

// countUnproven counts the open redemptions that are unproven.
func (c *watched) countUnproven() {
	n := int32(0)
	for _, o := range c.open {
		if o.verdict == Unproven {
			n++
		}
	}
	c.unproven.Store(n)
}
