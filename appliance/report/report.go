// Package report makes and verifies audit reports. A report lists an appliance's activity in a period and the result of
// an audit of its whole journal. The log key signs it. A report contains no addresses.
package report

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// Version is the format version of a report.
const Version = 1

// maxListed bounds each list of changes in a report. Report.More counts the changes beyond it.
const maxListed = 10_000

// Report is an appliance's activity in a period. It counts the journal's leaves with a time in the period.
type Report struct {
	Version     int       `json:"version"`
	Log         string    `json:"log"`         // the journal.LogName of the log
	VerifierKey string    `json:"verifierKey"` // of the log; verifiers must get it from a source that they trust
	Made        time.Time `json:"made"`
	By          string    `json:"by,omitempty"`
	From        time.Time `json:"from"`  // inclusive
	Until       time.Time `json:"until"` // exclusive

	Attestations int64                    `json:"attestations"`
	Refusals     int64                    `json:"refusals"`
	Codes        map[appliance.Code]int64 `json:"refusalsByCode"`
	Keys         []Key                    `json:"keys"` // with attestations or refusals in the period, or changed in it
	Changes      []Change                 `json:"keyChanges"`
	Stops        []Change                 `json:"stops"` // pauses, halts and their ends
	StoppedAt    string                   `json:"stoppedAtStart,omitempty"`
	Approvals    Approvals                `json:"approvals"`
	Events       map[string]int64         `json:"events"` // all events by kind
	More         int64                    `json:"more,omitempty"`

	First        int64        `json:"firstIndex"` // of the period's first leaf; -1 for none
	Last         int64        `json:"lastIndex"`  // -1 for none
	Verification Verification `json:"verification"`
}

// Key is the activity of one API key in the period.
type Key struct {
	ID           string                   `json:"id"`
	Name         string                   `json:"name,omitempty"`
	Attestations int64                    `json:"attestations"`
	Refusals     int64                    `json:"refusals"`
	Codes        map[appliance.Code]int64 `json:"refusalsByCode,omitempty"`
}

// Change is an event of the journal in the period.
type Change struct {
	Event  journal.EventKind `json:"event"`
	ID     uuid.UUID         `json:"id"` // of the event
	Index  int64             `json:"index"`
	Time   time.Time         `json:"time"`
	By     string            `json:"by,omitempty"`
	Key    string            `json:"key,omitempty"`  // id of the API key
	Name   string            `json:"name,omitempty"` // of the API key
	Reason string            `json:"reason,omitempty"`
}

// Approvals count the events of approvals by people.
type Approvals struct {
	Requested int64 `json:"requested"`
	Given     int64 `json:"given"` // by one approver each
	Denied    int64 `json:"denied"`
	Used      int64 `json:"attestations"` // attestations that name an approval
}

// Verification is the result of an audit of the whole journal, up to Checkpoint.
type Verification struct {
	OK         bool             `json:"ok"`
	Checkpoint string           `json:"checkpoint"` // signed by the log key
	Size       int64            `json:"size"`
	Root       journal.HexBytes `json:"rootHash"`
	Faults     int64            `json:"faults"`
	Damages    []audit.Damage   `json:"damages"` // at most audit.MaxDamages
	Signers    []audit.Signer   `json:"signers"`
	// Contradictions were reported by witnesses of this log. If there is one, OK is false.
	Contradictions []audit.Contradiction `json:"contradictions,omitempty"`
}

// Options select the period of a report and how the journal is audited.
type Options struct {
	From, Until time.Time // Until is exclusive; zero means now
	By          string    // the user who requests the report
	Now         time.Time
	Audit       audit.Options
}

// end returns the end of the period.
func (o Options) end() time.Time {
	if o.Until.IsZero() || o.Until.After(o.Now) {
		return o.Now
	}
	return o.Until
}

// Details returns the details of the event journal.EventReport.
func (o Options) Details() map[string]string {
	return map[string]string{"from": o.From.UTC().Format(time.RFC3339), "until": o.end().UTC().Format(time.RFC3339)}
}

// Make audits the journal and reports the period. The report is not signed yet; see Sign.
//
// Errors: CodeInvalidField for an empty period; CodeJournalUnavailable.
func Make(ctx context.Context, j audit.Journal, key journal.LogKey, o Options) (Report, error) {
	o.Until = o.end()
	if !o.From.Before(o.Until) {
		return Report{}, appliance.Errorf(appliance.CodeInvalidField,
			"the period is empty: from must be before until, and in the past").In("from")
	}
	r := Report{Version: Version, Log: journal.LogName(key.Verifier), VerifierKey: key.VerifierText, By: o.By,
		Made: o.Now.UTC().Truncate(time.Millisecond), From: o.From.UTC(), Until: o.Until.UTC(),
		Codes: make(map[appliance.Code]int64), Events: make(map[string]int64), Keys: []Key{}, Changes: []Change{},
		Stops: []Change{}, First: -1, Last: -1}
	found, err := j.Verify(ctx, o.Audit)
	if err != nil {
		return Report{}, err
	}
	if r.Verification, err = verified(ctx, j, key, found); err != nil {
		return Report{}, err
	}
	c := counter{report: &r, keys: make(map[string]*Key), names: make(map[string]string)}
	errEnd := errors.New("all audited leaves were read")
	err = j.Entries(ctx, 0, func(e journal.Entry) error {
		if e.Index >= r.Verification.Size {
			return errEnd
		}
		c.add(e)
		return nil
	})
	if err != nil && !errors.Is(err, errEnd) {
		return Report{}, err
	}
	c.finish()
	return r, nil
}

// verified returns the result of an audit with a checkpoint of the audited leaves. If the audit found faults, the
// checkpoint is the journal's newest.
func verified(ctx context.Context, j journal.Journal, key journal.LogKey, a audit.Report) (Verification, error) {
	v := Verification{OK: a.OK() && len(a.Contradictions) == 0, Size: a.Size, Root: a.Root, Damages: a.Damages,
		Faults: int64(len(a.Damages)) + a.More, Signers: a.Signers, Contradictions: a.Contradictions}
	if v.Damages == nil {
		v.Damages = []audit.Damage{}
	}
	if v.Signers == nil {
		v.Signers = []audit.Signer{}
	}
	newest, err := j.Checkpoint(ctx)
	if err != nil {
		return v, err
	}
	v.Checkpoint = string(newest)
	if !v.OK {
		return v, nil
	}
	tree, err := journal.OpenCheckpoint(newest, key.Verifier)
	if err != nil || tree.N == a.Size {
		return v, err
	}
	tree.N = a.Size // records were appended since the audit: the key signs the audited tree again
	copy(tree.Hash[:], a.Root)
	signed, err := journal.SignCheckpoint(tree, key.Signer)
	v.Checkpoint = string(signed)
	return v, err
}

// counter adds the leaves of a journal to a report.
type counter struct {
	report *Report
	keys   map[string]*Key
	order  []string
	names  map[string]string // of API keys, from their events
}

func (c *counter) key(id string) *Key {
	k := c.keys[id]
	if k == nil {
		k = &Key{ID: id}
		c.keys[id] = k
		c.order = append(c.order, id)
	}
	return k
}

// add counts a leaf. Leaves before the period supply the names of API keys and whether attesting
// was stopped when the period began.
func (c *counter) add(e journal.Entry) {
	r, at := c.report, e.Time()
	in := !at.Before(r.From) && at.Before(r.Until)
	if in {
		if r.First < 0 {
			r.First = e.Index
		}
		r.Last = e.Index
	}
	if e.Event != nil {
		c.event(e, in)
		return
	}
	if !in {
		return
	}
	r.Attestations++
	c.key(e.Record.KeyID).Attestations++
	if e.Record.Approval != nil {
		r.Approvals.Used++
	}
}

func (c *counter) event(e journal.Entry, in bool) {
	r, event := c.report, e.Event
	change := Change{Event: event.Kind, ID: event.ID, Index: e.Index, Time: event.Time, By: event.By,
		Reason: event.Details[journal.DetailReason]}
	if in {
		r.Events[string(event.Kind)]++
	}
	switch event.Kind {
	case journal.EventKeyCreated, journal.EventKeyRevoked, journal.EventKeyBound:
		change.Key, change.Name = event.Details[appliance.DetailKeyID], event.Details["name"]
		c.names[change.Key] = change.Name
		if in {
			c.key(change.Key)
			r.Changes = c.list(r.Changes, change)
		}
	case journal.EventPaused, journal.EventHalted, journal.EventResumed:
		if at := event.Time; at.Before(r.From) {
			r.StoppedAt = ""
			if event.Kind != journal.EventResumed {
				r.StoppedAt = string(event.Kind) + ": " + change.Reason
			}
		}
		if in {
			r.Stops = c.list(r.Stops, change)
		}
	case journal.EventRefused:
		if in {
			c.refused(event)
		}
	case journal.EventApprovalRequested:
		r.Approvals.Requested += one(in)
	case journal.EventApprovalGiven:
		r.Approvals.Given += one(in)
	case journal.EventApprovalDenied:
		r.Approvals.Denied += one(in)
	}
}

// refused counts a refusal and the unrecorded refusals before it; see journal.RefusalsPerMinute. The code and API key
// of unrecorded refusals are unknown.
func (c *counter) refused(e *journal.Event) {
	code := appliance.Code(e.Details["code"])
	c.report.Refusals++
	c.report.Codes[code]++
	if left, err := strconv.ParseInt(e.Details[journal.DetailLeftOut], 10, 64); err == nil && left > 0 {
		c.report.Refusals += left
		c.report.Codes[NotRecorded] += left
	}
	k := c.key(e.Details["keyId"])
	k.Refusals++
	if k.Codes == nil {
		k.Codes = make(map[appliance.Code]int64)
	}
	k.Codes[code]++
}

// NotRecorded is the code under which a report counts refusals without an event in the journal.
const NotRecorded appliance.Code = "not_recorded"

func (c *counter) list(all []Change, one Change) []Change {
	if len(all) == maxListed {
		c.report.More++
		return all
	}
	return append(all, one)
}

func (c *counter) finish() {
	for _, id := range c.order {
		k := c.keys[id]
		k.Name = c.names[id]
		c.report.Keys = append(c.report.Keys, *k)
	}
}

func one(in bool) int64 {
	if in {
		return 1
	}
	return 0
}

// Period returns the period as text, in UTC.
func (r Report) Period() string {
	const form = "2006-01-02 15:04:05"
	return fmt.Sprintf("%s to %s UTC", r.From.UTC().Format(form), r.Until.UTC().Format(form))
}
