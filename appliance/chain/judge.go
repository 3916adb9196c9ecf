package chain

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
)

// recall looks at what earlier runs have kept: the journal may have been replaced since, and alarms are given again.
func (c *watched) recall(ctx context.Context) error {
	c.judging.Lock()
	defer c.judging.Unlock()
	c.firstSaw, c.raised = make(map[string]time.Time), make(map[string]bool)
	var lost []Redemption
	err := c.w.o.Store.Each(func(r Redemption) error {
		if r.Contract != c.Name || r.AttestationID == nil {
			return ctx.Err()
		}
		found, err := c.inJournal(ctx, &r)
		if err == nil && !found {
			r.AttestationID, r.KeyID, r.Verdict, r.Open = nil, "", "", true
			lost = append(lost, r)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.w.o.Store.Judge(c.Name, lost)
}

// inJournal looks the redemption's hash up, and notes the attestation that it finds.
func (c *watched) inJournal(ctx context.Context, r *Redemption) (bool, error) {
	limit, cancel := context.WithTimeout(ctx, c.w.o.CallTimeout)
	defer cancel()
	entries, err := c.w.o.Journal.List(limit, appliance.JournalQuery{Hash: &r.Hash, Limit: 1, AttestationsOnly: true})
	if err != nil || len(entries) == 0 {
		return false, err
	}
	record := entries[0].Record
	if record.Hash != r.Hash {
		return false, fmt.Errorf("the journal was asked for hash %s and has answered with %s", r.Hash, record.Hash)
	}
	r.AttestationID, r.KeyID = &record.ID, record.KeyID
	return true, nil
}

// judge looks at all redemptions that are open, and returns how long until it should again.
func (c *watched) judge(ctx context.Context) (next time.Duration, err error) {
	c.judging.Lock()
	defer c.judging.Unlock()
	open, err := c.w.o.Store.Open(c.Name)
	if err != nil {
		return 0, err
	}
	now, next := time.Now(), c.w.o.CheckEvery
	all := now.Sub(c.judgedAll) >= next // those of which the alarm was given are seldom looked at again: there may be many
	if all {
		c.judgedAll = now
	}
	seen := make(map[string]time.Time, len(open))
	var judged []Redemption
	for _, r := range open {
		if !all && r.Verdict == Unknown && c.raised[r.ID()] {
			seen[r.ID()] = c.firstSaw[r.ID()]
			continue
		}
		found, err := c.inJournal(ctx, &r)
		if err != nil {
			return 0, err
		}
		first, before := c.firstSaw[r.ID()]
		if !before {
			first = now
		}
		seen[r.ID()] = first
		was := r
		wait := c.decide(&r, found, now.Sub(first))
		if wait > 0 {
			next = min(next, wait)
		}
		if was.Verdict != r.Verdict || was.Open != r.Open || found {
			judged = append(judged, r)
		}
		if err := c.alarm(ctx, r, was.Verdict, now.Sub(first)); err != nil {
			return 0, err
		}
	}
	c.firstSaw = seen
	return next, c.w.o.Store.Judge(c.Name, judged)
}

// decide gives a redemption its verdict, where it can be given, and returns in what time to look again; 0 is when something changes.
//
// Of the RPCs that were read up to the redemption's block, those that tell of it stand against those that do not: if they are more, it
// counts. Those that are behind or away are waited for, and so are those that do not agree, which may be on another fork for a while; but
// not for ever, unless most tell of it already.
func (c *watched) decide(r *Redemption, inJournal bool, age time.Duration) time.Duration {
	tell, deny, behind := c.votes(r)
	patient := age < c.w.o.Patience
	switch {
	case inJournal:
		if r.Verdict, r.Open = Known, len(behind)+len(deny) > 0 && patient; !r.Open {
			return 0
		}
		return c.w.o.Patience - age
	case age < c.w.o.LookAgain: // the journal may be about to have it
		return c.w.o.LookAgain - age
	case len(tell) <= len(deny)+len(behind) && patient:
		return c.w.o.Patience - age
	case len(tell) > len(deny):
		r.Verdict = Unknown
	default:
		r.Verdict = Disputed
	}
	return 0
}

// votes are the RPCs that tell of a redemption, those that have read its block and do not, and those that have not.
func (c *watched) votes(r *Redemption) (tell, deny, behind []string) {
	for _, f := range c.feeds {
		switch {
		case slices.Contains(r.Reports, f.node.id):
			tell = append(tell, f.node.shown)
		case f.get().has(r.Block):
			deny = append(deny, f.node.shown)
		default:
			behind = append(behind, f.node.shown)
		}
	}
	return tell, deny, behind
}

// alarm tells of a verdict once. was is the one before; age is for how long the redemption is known.
func (c *watched) alarm(ctx context.Context, r Redemption, was Verdict, age time.Duration) error {
	tell, deny, _ := c.votes(&r)
	log := c.log.With("hash", r.Hash.String(), "amount", r.Amount.String(), "block", r.Block, "transaction", r.TransactionHash.String())
	if r.Verdict == Known && (was == Unknown || was == Disputed) {
		log.Info("chain: the journal has the redemption now", "attestation", r.AttestationID.String())
	}
	if len(deny) > 0 && r.Verdict != "" && age >= c.w.o.Patience && c.first("disagreement "+r.ID()) {
		c.w.disagreements.Add(1)
		log.Error("chain: the RPCs do not agree on a redemption: one of them lies or answers with less than there is",
			"tell", strings.Join(tell, " "), "deny", strings.Join(deny, " "), "in_journal", r.Verdict == Known)
		c.w.record(EventDisagreement, c.details(r, "tell", strings.Join(tell, " "), "deny", strings.Join(deny, " ")))
	}
	if r.Verdict == Disputed && c.first("disputed "+r.ID()) {
		log.Error("chain: a redemption that the journal does not have, by some of the RPCs: see whether it is there, in a block explorer; if so, someone else signs with the attestor's key",
			"tell", strings.Join(tell, " "))
	}
	if r.Verdict != Unknown {
		return nil
	}
	if c.first(r.ID()) {
		c.w.unknown.Add(1)
		log.Error("chain: a redemption that the journal does not have: someone else signs with the attestor's key, or the journal has lost the attestation",
			"remedy", "set another attestor on chain; docs/chain.md says what to do")
		if was != Unknown { // else an earlier run has recorded it
			c.w.record(EventUnknownRedemption, c.details(r))
		}
	}
	return c.halt(ctx, r)
}

// first is true once for each alarm.
func (c *watched) first(alarm string) bool {
	given := c.raised[alarm]
	c.raised[alarm] = true
	return !given
}

// halt stops attesting where that is wanted. It fails where the halt could not be kept, and is tried again.
func (c *watched) halt(ctx context.Context, r Redemption) error {
	if c.w.o.Halt == nil || c.raised["halt "+r.ID()] {
		return nil
	}
	reason := fmt.Sprintf("contract %s has redeemed %s in transaction %s, and the journal does not have it", c.Name, r.Hash, r.TransactionHash)
	halted, err := c.w.o.Halt(ctx, r.ID(), reason)
	if err != nil {
		return fmt.Errorf("halt: %w", err)
	}
	if c.raised["halt "+r.ID()] = true; halted {
		c.log.Error("chain: attesting is halted until 'attestd resume'", "hash", r.Hash.String())
		c.w.record(EventHalted, c.details(r))
	}
	return nil
}

func (c *watched) details(r Redemption, more ...string) map[string]string {
	d := map[string]string{
		"contract": r.Contract, "hash": r.Hash.String(), "amount": r.Amount.String(), "block": strconv.FormatUint(r.Block, 10),
		"transactionHash": r.TransactionHash.String(),
	}
	for i := 0; i+1 < len(more); i += 2 {
		d[more[i]] = more[i+1]
	}
	return d
}
