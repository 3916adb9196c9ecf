package indexer

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// ReplicaCheck configures Verifier.CheckReplica.
type ReplicaCheck struct {
	Index index.Index
	Chain string // universal chain id of the source of the packets
	// From and To are the first and the last block that packets were sent in. A zero To means no last block.
	Range
	Restart    bool                    // start anew, even if an earlier check of the same range was interrupted
	Keep       bool                    // keep the proof of each packet that the chain confirms in the index
	OnProgress func(packets, of int64) // may be nil
}

// ReplicaReport is the result of Verifier.CheckReplica.
type ReplicaReport struct {
	Chain   string        `json:"chain"`
	Block   ProvenBlock   `json:"block"`   // after which the last packets were proved
	Packets int           `json:"packets"` // in the range
	Known   int           `json:"known"`   // by the chain
	Waiting int           `json:"waiting"` // sent or ended in a block that is too new to be proved
	Unknown int           `json:"unknown"` // packets that the chain does not know, or knows otherwise
	Listed  []DoubtPacket `json:"listed"`  // the unknown packets; at most MaxListed
	// Resumed counts the packets that an earlier, interrupted check of the range has checked.
	Resumed int     `json:"resumed"`
	Seconds float64 `json:"seconds"`
}

// DoubtPacket is a packet that its chain does not confirm.
type DoubtPacket struct {
	Packet string `json:"packet"` // its hash
	Reason string `json:"reason"`
}

// MaxListed is how many unknown packets a ReplicaReport lists.
const MaxListed = 10_000

// replicaCursor is how far a check has come.
type replicaCursor struct {
	Cursor string        `json:"cursor"` // sort_order of the last packet
	Seen   int64         `json:"seen"`   // packets of the chain so far
	Report ReplicaReport `json:"report"`
}

// beforeAll is a cursor below every sort_order.
const beforeAll = " "

// savedEvery is how often a check stores how far it has come.
const savedEvery = 5 * time.Second

// CheckReplica checks the packets of an index that were sent on a chain, the oldest first. If it is interrupted, the
// next check of the same range continues. It keeps no snapshot of the index open, so that it may take hours.
//
// Errors: CodeNotFound if the chain is not configured; CodeUpstreamUnavailable if the chain cannot be read; the
// errors of the index; ctx's error.
func (v *Verifier) CheckReplica(ctx context.Context, o ReplicaCheck) (report ReplicaReport, err error) {
	p := v.chains[o.Chain]
	if p == nil {
		return report, appliance.Errorf(appliance.CodeNotFound, "chain %.80q is not in indexer.chains", o.Chain)
	}
	if o.To != 0 && o.From > o.To {
		return report, appliance.Errorf(appliance.CodeInvalidField, "block %d is after block %d", o.From,
			o.To).In("from")
	}
	name := fmt.Sprintf("verify %s %d-%d", o.Chain, o.From, o.To)
	if o.Keep {
		name += " keep"
	}
	at, total, err := o.begin(ctx, name)
	if err != nil {
		return report, err
	}
	began, saved := time.Now(), time.Now()
	at.Report.Resumed = at.Report.Packets
	for {
		rows, err := o.page(ctx, at.Cursor)
		if err != nil {
			return report, o.leave(ctx, name, at, err)
		}
		if len(rows) == 0 {
			break
		}
		if err := v.checkPage(ctx, p, &o, rows, &at.Report); err != nil {
			return report, o.leave(ctx, name, at, err)
		}
		at.Cursor, at.Seen = rows[len(rows)-1].SortOrder(), at.Seen+int64(len(rows))
		if o.OnProgress != nil {
			o.OnProgress(at.Seen, max(total, at.Seen))
		}
		if time.Since(saved) >= savedEvery {
			if err := o.save(ctx, name, at); err != nil {
				return report, err
			}
			saved = time.Now()
		}
	}
	at.Report.Seconds = time.Since(began).Seconds()
	return at.Report, o.save(ctx, name, nil)
}

// begin returns the position of the first packet to check, and how many packets were sent on the chain.
func (o *ReplicaCheck) begin(ctx context.Context, name string) (at *replicaCursor, total int64, err error) {
	at = &replicaCursor{Cursor: beforeAll, Report: ReplicaReport{Chain: o.Chain, Listed: []DoubtPacket{}}}
	err = o.Index.View(ctx, func(snap index.Snapshot) error {
		days, err := snap.PacketsByChain(ctx, index.DayQuery{SourceChain: o.Chain})
		if err != nil {
			return err
		}
		for _, day := range days {
			total += int64(day.Count)
		}
		text, found, err := snap.Position(ctx, name)
		if err != nil || !found || o.Restart {
			return err
		}
		return json.Unmarshal([]byte(text), at)
	})
	return at, total, err
}

// page returns the next packets after a cursor.
func (o *ReplicaCheck) page(ctx context.Context, cursor string) (rows []index.Row, err error) {
	err = o.Index.View(ctx, func(snap index.Snapshot) error {
		found, err := snap.Packets(ctx, index.PacketQuery{SourceChain: o.Chain,
			Page: index.Page{Limit: new(int32(index.MaxLimit)), Cursor: cursor, Direction: index.Newer}})
		for _, row := range found {
			rows = append(rows, row.Clone())
		}
		return err
	})
	return rows, err
}

// checkPage adds the packets of a page to the report. If the chain cannot be read, the report stays the same.
func (v *Verifier) checkPage(ctx context.Context, p *Prover, o *ReplicaCheck, page []index.Row,
	report *ReplicaReport) error {
	var rows []index.Row
	for _, row := range page {
		height, err := numberIn(row, sendHeightColumn)
		if err != nil || height >= o.From && (o.To == 0 || height <= o.To) {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	results, found, block, err := v.checkOn(ctx, p, rows)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return appliance.Errorf(appliance.CodeUpstreamUnavailable, "chain %s cannot be read: %v", o.Chain, err)
	}
	if o.Keep {
		if err := o.keep(ctx, p, rows, results, found); err != nil {
			return err
		}
	}
	report.Block = block
	report.Packets += len(rows)
	for i, unproven := range results {
		switch {
		case unproven == nil:
			report.Known++
		case unproven.waits:
			report.Waiting++
		default:
			if report.Unknown++; len(report.Listed) < MaxListed {
				report.Listed = append(report.Listed, DoubtPacket{rows[i].Key(), unproven.Text})
			}
		}
	}
	return nil
}

// keep keeps the proofs of the packets that the chain confirms.
func (o *ReplicaCheck) keep(ctx context.Context, p *Prover, rows []index.Row, results []*Unproven,
	found []Commitment) error {
	var proofs []*PacketProof
	for i, row := range rows {
		if results[i] != nil {
			continue
		}
		proof, err := p.proofOf(row, found[i])
		if err != nil {
			return err
		}
		proofs = append(proofs, proof)
	}
	return keepProofs(ctx, o.Index, proofs)
}

// leave stores how far an interrupted check has come, although ctx may have ended. It returns why the check ends.
func (o *ReplicaCheck) leave(ctx context.Context, name string, at *replicaCursor, why error) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := o.save(ctx, name, at); err != nil {
		return fmt.Errorf("%w; the position cannot be stored: %w", why, err)
	}
	return why
}

// save stores how far a check has come. A nil position removes it.
func (o *ReplicaCheck) save(ctx context.Context, name string, at *replicaCursor) error {
	text := ""
	if at != nil {
		raw, err := json.Marshal(at)
		if err != nil {
			return err
		}
		text = string(raw)
	}
	_, err := o.Index.Write(ctx, index.Batch{Positions: map[string]string{name: text}})
	return err
}
