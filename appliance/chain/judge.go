package chain

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// recall judges the stored redemptions again, because the journal may have been replaced. Alarms are repeated.
func (c *watched) recall(ctx context.Context) error {
	c.evaluating.Lock()
	defer c.evaluating.Unlock()
	c.open, c.raised = make(map[string]opened), make(map[string]raised)
	var lost []Redemption
	err := c.w.o.Store.Each(func(r Redemption) error {
		if r.Contract != c.Name || r.AttestationID == nil {
			return ctx.Err()
		}
		found, err := c.inJournal(ctx, &r)
		if err == nil && !found {
			r.Verdict, r.Open = "", true
			lost = append(lost, r)
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.w.o.Store.SetVerdicts(c.Name, lost)
}

// inJournal looks for an attestation of the redemption's hash that was made in time, and records it.
func (c *watched) inJournal(ctx context.Context, r *Redemption) (bool, error) {
	record, err := c.find(ctx, journal.Query{Hash: &r.Hash, Until: r.Until()})
	if err != nil || record == nil || !record.Time.Before(r.Until()) {
		r.AttestationID, r.KeyID = nil, ""
		return false, err
	}
	r.AttestationID, r.KeyID = &record.ID, record.KeyID
	return true, nil
}

// find returns the newest matching attestation, or nil.
func (c *watched) find(ctx context.Context, q journal.Query) (*appliance.Record, error) {
	limit, cancel := context.WithTimeout(ctx, c.w.o.CallTimeout)
	defer cancel()
	q.Limit, q.AttestationsOnly = 1, true
	entries, err := c.w.o.Journal.List(limit, q)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	record := entries[0].Record
	if record.Hash != *q.Hash {
		return nil, fmt.Errorf("a query of the journal for hash %s returned %s", *q.Hash, record.Hash)
	}
	return &record, nil
}

// opened is the state of an open redemption in this run.
type opened struct {
	first   time.Time // when it was first judged
	reports int       // number of RPCs that reported it at the last judgement
	verdict Verdict   // of the last judgement

	firstAsked, asked       time.Time // the first and the last question to the members; zero if they were not asked
	proven, lacking, silent []string  // their last answers
}

// raised are the alarms given for a redemption.
type raised struct{ unknown, disputed, disagreement, unproven, redeemed bool }

// row identifies a redemption with all of its details: an RPC that lies about amount or time reports another one.
func (r Redemption) row() string {
	return fmt.Sprint(r.ID(), " ", r.BlockHash, r.LogIndex, " ", r.Amount, " ", r.Time.Unix())
}

// evaluate judges the open redemptions. It returns when to judge again.
func (c *watched) evaluate(ctx context.Context) (next time.Duration, err error) {
	c.evaluating.Lock()
	defer c.evaluating.Unlock()
	open, err := c.w.o.Store.Open(c.Name)
	if err != nil {
		return 0, err
	}
	now, next := time.Now(), c.w.o.CheckEvery
	all := now.Sub(c.judgedAll) >= next // redemptions with a verdict are judged again rarely, because there may be many
	if all {
		c.judgedAll = now
	}
	seen, given := make(map[string]opened, len(open)), make(map[string]raised, len(open))
	var judged []Redemption
	c.silent = nil
	for _, r := range open {
		row, id := r.row(), r.ID()
		known, before := c.open[row]
		if _, copied := given[id]; !copied {
			given[id] = c.raised[id]
		}
		if !all && before && r.Verdict != "" && r.Verdict != Known && known.reports == len(r.Reports) {
			seen[row] = known
			continue
		}
		if !before {
			known.first = now
		}
		was := r
		wait, err := c.decide(ctx, &r, now.Sub(known.first), &known)
		if err != nil {
			return 0, err
		}
		known.reports, known.verdict = len(r.Reports), r.Verdict
		seen[row] = known
		if wait > 0 {
			next = min(next, wait)
		}
		alarms := given[id]
		c.recordRedeemed(ctx, &r, &alarms)
		err = c.alarm(ctx, &r, was.Verdict, known, &alarms)
		given[id], c.raised[id] = alarms, alarms
		if err != nil {
			return 0, err
		}
		if was.Verdict != r.Verdict || was.Open != r.Open || was.Halted != r.Halted || r.Verdict == Known {
			judged = append(judged, r)
		}
	}
	c.open, c.raised = seen, given
	c.countUnproven()
	c.tellRest(now)
	return next, c.w.o.Store.SetVerdicts(c.Name, judged)
}

// decide gives a redemption its verdict if possible. It returns when to judge again; 0 means at the next change.
//
// A redemption counts as unknown only if more than half of all RPCs report it, whether the others answer or not. A
// lying RPC could otherwise stop attesting with a redemption that the others cannot deny yet. A redemption with fewer
// reports is disputed after Patience, because the other RPCs may lag, fail, or follow another fork for a while.
func (c *watched) decide(ctx context.Context, r *Redemption, age time.Duration, o *opened) (time.Duration, error) {
	tell, deny, behind := c.votes(r)
	patient := age < c.w.o.Patience
	inJournal, err := c.inJournal(ctx, r)
	switch {
	case err != nil:
		return 0, err
	case inJournal:
		if r.Verdict, r.Open = Known, len(behind)+len(deny) > 0 && patient; !r.Open {
			return 0, nil
		}
		return c.w.o.Patience - age, nil
	case age < c.w.o.LookAgain: // the attestation may be on its way to the journal
		return c.w.o.LookAgain - age, nil
	case 2*len(tell) > len(c.feeds) && c.w.o.Members != nil:
		return c.askMembers(ctx, r, o), nil
	case 2*len(tell) > len(c.feeds):
		r.Verdict = Unknown
	case patient:
		return c.w.o.Patience - age, nil
	default:
		r.Verdict = Disputed
	}
	return 0, nil
}

// votes returns the RPCs that report a redemption, the RPCs that have read its block without reporting it, and the RPCs
// that have not read its block.
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

// alarm reports a verdict once. was is the previous verdict, given the alarms so far.
func (c *watched) alarm(ctx context.Context, r *Redemption, was Verdict, o opened, given *raised) error {
	age := time.Since(o.first)
	tell, deny, _ := c.votes(r)
	log := c.log.With("hash", r.Hash.String(), "amount", r.Amount.String(), "block", r.Block,
		"transaction", r.TransactionHash.String())
	told := strings.Join(tell, " ")
	if r.Verdict == Known && was != "" && was != Known {
		log.Info("chain: the journal has the redemption now", "attestation", r.AttestationID.String())
	}
	if len(deny) > 0 && r.Verdict != "" && age >= c.w.o.Patience && first(&given.disagreement) {
		if c.w.disagreements.Add(1); c.disputes.allow(time.Now()) {
			denied := strings.Join(deny, " ")
			log.Error("chain: the RPCs disagree on a redemption: one of them lies or omits data",
				"tell", told, "deny", denied, "in_journal", r.Verdict == Known)
			c.w.record(EventDisagreement, c.details(*r, "tell", told, "deny", denied))
		}
	}
	if r.Verdict == Disputed && first(&given.disputed) && c.disputes.allow(time.Now()) {
		log.Error("chain: some of the RPCs report a redemption that the journal does not have: check it in a block "+
			"explorer; if it exists, another party signs with the attestor key",
			"tell", told)
	}
	if r.Verdict == Unproven && first(&given.unproven) {
		c.alarmUnproven(r, was, o)
	}
	if r.Verdict != Unknown {
		return nil
	}
	if first(&given.unknown) {
		if err := c.alarmUnknown(ctx, log, r, was); err != nil {
			given.unknown = false
			return err
		}
	}
	return c.halt(ctx, r)
}

// alarmUnknown reports an unknown redemption, with the attestation that came too late if there is one.
func (c *watched) alarmUnknown(ctx context.Context, log *slog.Logger, r *Redemption, was Verdict) error {
	late, err := c.find(ctx, journal.Query{Hash: &r.Hash})
	if err != nil {
		return err
	}
	c.w.unknown.Add(1)
	if !c.alarms.allow(time.Now()) {
		return nil
	}
	text, details := "chain: a redemption that the journal does not have: another party signs with the attestor key, "+
		"or the journal has lost the attestation", c.details(*r)
	if c.w.o.Members != nil {
		text = "chain: a redemption that fewer journals have than members of the quorum must sign: another party signs " +
			"with the members' keys, or journals have lost the attestation"
	}
	if late != nil {
		text = "chain: a redemption happened before its attestation: another party signs with the attestor key"
		at := late.Time.UTC().Format(time.RFC3339)
		log = log.With("attestation", late.ID.String(), "attested", at, "redeemed", r.Time.UTC().Format(time.RFC3339))
		details["attestation"], details["attested"] = late.ID.String(), at
	}
	log.Error(text, "remedy", "set another attestor on chain (docs/chain.md, \"An unknown redemption\")")
	if was != Unknown { // otherwise an earlier run has recorded it
		c.w.record(EventUnknownRedemption, details)
	}
	return nil
}

// tellRest reports the number of alarms of the last minute beyond the quota.
func (c *watched) tellRest(now time.Time) {
	if n := c.alarms.rest(now); n > 0 {
		c.log.Error("chain: more redemptions that the journal does not have. To list them, run: attestd chain "+
			"redemptions --unknown", "count", n)
		c.w.record(EventUnknownRedemption,
			map[string]string{"contract": c.Name, journal.DetailLeftOut: strconv.Itoa(n)})
	}
	if n := c.disputes.rest(now); n > 0 {
		c.log.Error("chain: more redemptions on which the RPCs disagree. To list those that the journal does not "+
			"have, run: attestd chain redemptions --unknown", "alarms", n)
		c.w.record(EventDisagreement, map[string]string{"contract": c.Name, journal.DetailLeftOut: strconv.Itoa(n)})
	}
}

// first returns true for the first call.
func first(given *bool) bool {
	was := *given
	*given = true
	return !was
}

// halt stops attesting if so configured, once per redemption. Of several appliances that find it, the one that begins
// the halt records it. halt returns an error if the halt could not be stored; the caller retries.
func (c *watched) halt(ctx context.Context, r *Redemption) error {
	if c.w.o.Halt == nil || r.Halted {
		return nil
	}
	reason := fmt.Sprintf("contract %s has redeemed %s in transaction %s, but the journal does not have it", c.Name,
		r.Hash, r.TransactionHash)
	began, err := c.w.o.Halt(ctx, r.ID(), reason)
	if err != nil {
		return fmt.Errorf("halt: %w", err)
	}
	if r.Halted = true; began {
		c.log.Error("chain: attesting is halted until 'attestd resume'", "hash", r.Hash.String())
		c.w.record(EventHalted, c.details(*r))
	}
	return nil
}

func (c *watched) details(r Redemption, more ...string) map[string]string {
	d := map[string]string{
		"contract": r.Contract, "hash": r.Hash.String(), "amount": r.Amount.String(),
		"block":           strconv.FormatUint(r.Block, 10),
		"transactionHash": r.TransactionHash.String(),
	}
	for i := 0; i+1 < len(more); i += 2 {
		d[more[i]] = more[i+1]
	}
	return d
}
