// Package approval keeps approvals by people, who sign with passkeys (WebAuthn level 2). Their state follows from the
// journal's events, so that an appliance and an audit come to the same result.
package approval

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/google/uuid"
)

const (
	// MaxWaiting bounds the requests of one API key that wait, because each is an event in the journal.
	MaxWaiting = 100
	// approvalRetry is the Retry-After of a request that waits: people need minutes.
	retryAfter = 30 * time.Second
)

// Options configure Approvals. Journal and Origin are required.
type Options struct {
	Journal journal.Journal
	Events  *journal.Events  // appends the events; nil means the Journal does
	Origin  string           // of the journal's log
	Now     func() time.Time // nil means time.Now
}

// Approvals keeps the requests that wait for people. Its state is the journal's: it reads all leaves at its first use,
// and later the new ones, also those of other appliances that share the journal. All methods are safe for concurrent
// use. Their errors are the journal's, in addition to those listed.
type Approvals struct {
	opts  Options
	turn  chan struct{} // held while state is used
	state *History
	next  int64 // index of the first leaf that was not read
}

// New reads nothing yet.
func New(o Options) *Approvals {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Approvals{opts: o, turn: make(chan struct{}, 1), state: NewHistory(o.Origin)}
	a.state.attested = make(map[uint64]attestedTo)
	return a
}

// begin waits for the state and reads the journal's new leaves. The caller must call done, also after an error.
func (a *Approvals) begin(ctx context.Context) (done func(), err error) {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return func() {}, appliance.Errorf(appliance.CodeTimeout,
			"the journal's approvals are still being read").Because(ctx.Err())
	}
	return func() { <-a.turn }, a.read(ctx)
}

// read reads the journal's new leaves. The caller holds turn.
func (a *Approvals) read(ctx context.Context) error {
	return a.opts.Journal.Entries(ctx, a.next, func(e journal.Entry) error {
		_ = a.state.Add(e) // it counts for nothing if it is at fault, and an audit reports it
		a.next = e.Index + 1
		return ctx.Err()
	})
}

// Load reads the journal, so that the first request does not wait for that.
func (a *Approvals) Load(ctx context.Context) error {
	done, err := a.begin(ctx)
	defer done()
	return err
}

// Admit returns the approval of a call, nil if the rules demand no approval, and whether the beneficiary is known. If
// people have not approved, the error has CodeApprovalRequired, CodeApprovalDenied or CodeApprovalExpired.
func (a *Approvals) Admit(ctx context.Context, call appliance.Call,
	rules []policy.ApprovalRule) (*Approval, bool, error) {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return nil, false, err
	}
	now := a.opts.Now()
	known := a.state.attestedTo(call.Request.Beneficiary).count > 0
	rule := policy.Demanded(rules, policy.Facts{KeyID: call.Key.ID, KeyName: call.Key.Name, Time: now,
		NewBeneficiary: !known})
	var asked *Approval
	if call.IdempotencyKey != "" {
		asked = a.state.byCall[callOf(call.Key.ID, call.Coordinator, call.IdempotencyKey)]
	}
	switch {
	case asked != nil && asked.Request != call.Request:
		return nil, known, appliance.Errorf(appliance.CodeIdempotencyMismatch,
			"this Idempotency-Key was used for another request")
	case asked != nil && (rule == nil || asked.Rule.Same(*rule)):
		if state := asked.State(now); state != Approved {
			return nil, known, asked.Refusal(state, asked.Expires.Sub(now))
		}
		approval := *asked
		return &approval, known, nil
	case rule == nil:
		return nil, known, nil
	case call.IdempotencyKey == "":
		return nil, known, appliance.Errorf(appliance.CodeInvalidIdempotencyKey,
			"this request needs the approval of people: send it with an Idempotency-Key, and repeat it with the same")
	}
	asked, err = a.ask(ctx, call, *rule)
	if err != nil {
		return nil, known, err
	}
	return nil, known, asked.Refusal(Waiting, asked.Expires.Sub(now))
}

// Refusal returns the error for a request that people have not approved. left is the time until it expires.
func (a *Approval) Refusal(state State, left time.Duration) *appliance.Error {
	e := appliance.Errorf(appliance.CodeApprovalRequired,
		"this request waits for the approval of %d people; repeat it with the same "+
			"Idempotency-Key", a.Rule.Required)
	switch state {
	case Denied:
		e = appliance.Errorf(appliance.CodeApprovalDenied, "the approval of this request was denied")
	case Expired:
		e = appliance.Errorf(appliance.CodeApprovalExpired,
			"the approval of this request has expired; to ask again, use another "+
				"Idempotency-Key")
	default:
		e.RetryAfter = max(time.Second, min(retryAfter, left))
	}
	e.Approval = a.ID.String()
	return e
}

// ask records that a request waits. The caller holds turn.
func (a *Approvals) ask(ctx context.Context, call appliance.Call, rule policy.ApprovalRule) (*Approval, error) {
	waiting := 0
	for _, other := range a.state.all {
		if other.KeyID == call.Key.ID && other.State(a.opts.Now()) == Waiting {
			waiting++
		}
	}
	if waiting >= MaxWaiting {
		e := appliance.Errorf(appliance.CodeOverloaded, "%d requests of this API key wait for approval already", waiting)
		e.RetryAfter = retryAfter
		return nil, e
	}
	text, _ := json.Marshal(rule) // strings and numbers only: cannot fail
	details := map[string]string{
		journal.DetailLog: a.opts.Origin, "keyId": call.Key.ID, detailKeyName: call.Key.Name,
		journal.DetailIdempotencyKey: call.IdempotencyKey, detailRule: string(text),
		journal.DetailUnspendable: call.Request.UnspendableAddress.String(),
		journal.DetailBeneficiary: call.Request.Beneficiary.String(),
	}
	if call.Coordinator != "" {
		details[detailCoordinator] = call.Coordinator
	}
	return a.append(ctx, journal.Event{Kind: journal.EventApprovalRequested, Details: details})
}

// append records an event and reads it back. It returns the approval of that id, nil if the event is not such.
func (a *Approvals) append(ctx context.Context, e journal.Event) (*Approval, error) {
	if err := e.Prepare(); err != nil {
		return nil, err
	}
	var err error
	if a.opts.Events != nil {
		err = a.opts.Events.Append(ctx, e)
	} else {
		_, err = a.opts.Journal.AppendEvent(ctx, e)
	}
	if err == nil {
		err = a.read(ctx)
	}
	if err != nil {
		return nil, err
	}
	asks := e.Kind != journal.EventApprovalGiven && e.Kind != journal.EventApprovalDenied &&
		e.Kind != journal.EventApprovalExpired
	if found := a.state.all[e.ID]; found != nil || !asks {
		return found, nil
	}
	return nil, appliance.Errorf(appliance.CodeInternal, "the journal does not have the request for an approval").Because(
		fmt.Errorf("event %s", e.ID))
}

// Listed is an Approval with facts that help people to decide.
type Listed struct {
	Approval
	State State `json:"state"`
	// AttestedBefore counts the attestations to the beneficiary, and Last is the index of the newest.
	AttestedBefore int64        `json:"attestedBefore"`
	Last           int64        `json:"last"` // -1 if there is none
	Passkeys       []Credential `json:"passkeys,omitempty"`
}

// Credential is a passkey that may sign an approval.
type Credential struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	RPID string `json:"rpId"`
}

// List returns all approvals of the last 30 days and all that wait, the newest first.
func (a *Approvals) List(ctx context.Context) ([]Listed, error) {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return nil, err
	}
	now, list := a.opts.Now(), []Listed{}
	for _, one := range a.state.all {
		if now.Sub(one.Asked) < policy.MaxApprovalTime || one.State(now) == Waiting {
			list = append(list, a.listed(one, now))
		}
	}
	slices.SortFunc(list, func(x, y Listed) int { return y.Asked.Compare(x.Asked) })
	return list, nil
}

// Show returns one approval, or CodeNotFound.
func (a *Approvals) Show(ctx context.Context, id uuid.UUID) (Listed, error) {
	return a.with(ctx, id, func(*Approval) error { return nil })
}

// with calls do with an approval, and returns the approval as it is afterwards. CodeNotFound: no such approval.
func (a *Approvals) with(ctx context.Context, id uuid.UUID, do func(one *Approval) error) (Listed, error) {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return Listed{}, err
	}
	one := a.state.all[id]
	if one == nil {
		return Listed{}, appliance.Errorf(appliance.CodeNotFound, "no approval %s", id)
	}
	if err := do(one); err != nil {
		return Listed{}, err
	}
	return a.listed(one, a.opts.Now()), nil
}

// listed copies an approval. The caller holds turn.
func (a *Approvals) listed(one *Approval, now time.Time) Listed {
	l := Listed{Approval: *one, State: one.State(now), Last: -1}
	l.Approved = slices.Clone(one.Approved)
	known := a.state.attestedTo(one.Request.Beneficiary)
	if one.Kind == journal.EventApprovalRequested && known.count > 0 {
		l.AttestedBefore, l.Last = int64(known.count), known.last
	}
	for _, who := range a.state.enrolled {
		if slices.Contains(one.Rule.Approvers, who.Name) && !one.has(who.Name) {
			l.Passkeys = append(l.Passkeys, Credential{who.Name, who.Credential, who.RPID})
		}
	}
	slices.SortFunc(l.Passkeys, func(x, y Credential) int { return strings.Compare(x.Name+x.ID, y.Name+y.ID) })
	return l
}

// Approve records a person's approval. An assertion that an audit would reject is CodeInvalidField and is not recorded.
// CodeNotFound: no such approval. An approval that does not wait any more is CodeInvalidField, too.
func (a *Approvals) Approve(ctx context.Context, id uuid.UUID, proof Assertion, by string) (Listed, error) {
	return a.with(ctx, id, func(one *Approval) error {
		who, err := a.state.check(one, proof)
		if err != nil {
			return appliance.Errorf(appliance.CodeInvalidField, "%s", err)
		}
		if state := one.State(a.opts.Now()); state != Waiting || one.has(who.Name) {
			if state == Waiting {
				state = State("approved by " + who.Name)
			}
			return appliance.Errorf(appliance.CodeInvalidField, "this approval is %s already", state)
		}
		_, err = a.append(ctx, journal.Event{Kind: journal.EventApprovalGiven, By: by,
			Details: proof.details(one.ID, who.Name)})
		return err
	})
}

// Deny records that a request that waits was denied. CodeNotFound: no such approval. CodeInvalidField: it does not
// wait.
func (a *Approvals) Deny(ctx context.Context, id uuid.UUID, by string) (Listed, error) {
	return a.with(ctx, id, func(one *Approval) error {
		if state := one.State(a.opts.Now()); state != Waiting {
			return appliance.Errorf(appliance.CodeInvalidField, "this approval is %s already", state)
		}
		_, err := a.append(ctx, journal.Event{Kind: journal.EventApprovalDenied, By: by,
			Details: map[string]string{DetailApproval: id.String()}})
		return err
	})
}

// Expire records each approval that has expired, once.
func (a *Approvals) Expire(ctx context.Context) error {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return err
	}
	now := a.opts.Now()
	for id, one := range a.state.all {
		if one.expired || one.State(now) != Expired {
			continue
		}
		_, err := a.append(ctx, journal.Event{Kind: journal.EventApprovalExpired,
			Details: map[string]string{DetailApproval: id.String()}})
		if err != nil {
			return err
		}
	}
	return nil
}

// Approvers returns the enrolled passkeys, by name.
func (a *Approvals) Approvers(ctx context.Context) ([]Approver, error) {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return nil, err
	}
	return a.state.Approvers(), nil
}

// Enrol asks the enrolled approvers to approve another passkey. The first one is enrolled at once. CodeInvalidField:
// the passkey is invalid or enrolled already.
func (a *Approvals) Enrol(ctx context.Context, who Approver, by string) (Listed, error) {
	if err := policy.CheckApproverName(who.Name); err != nil {
		return Listed{}, err
	}
	d := map[string]string{DetailApprover: who.Name, DetailCredential: who.Credential, detailRPID: who.RPID,
		detailPublicKey: base64.RawURLEncoding.EncodeToString(who.PublicKey)}
	check := Approval{Kind: journal.EventApproverEnrolled, Approver: &Approver{Name: who.Name}}
	if err := check.readApprover(d); err != nil {
		return Listed{}, appliance.Errorf(appliance.CodeInvalidField, "%s", err)
	}
	return a.change(ctx, journal.Event{Kind: journal.EventApproverEnrolled, By: by, Details: d}, func() error {
		if _, taken := a.state.enrolled[who.Credential]; taken {
			return appliance.Errorf(appliance.CodeInvalidField, "this passkey is enrolled already")
		}
		return nil
	})
}

// Remove asks the enrolled approvers to approve that all passkeys of a person are removed. CodeNotFound: no such
// person.
func (a *Approvals) Remove(ctx context.Context, name, by string) (Listed, error) {
	d := map[string]string{DetailApprover: name}
	return a.change(ctx, journal.Event{Kind: journal.EventApproverRemoved, By: by, Details: d}, func() error {
		if !slices.Contains(a.state.names(), name) {
			return appliance.Errorf(appliance.CodeNotFound, "no approver %q", name)
		}
		return nil
	})
}

// change records the request for a change of the approvers.
func (a *Approvals) change(ctx context.Context, e journal.Event, check func() error) (Listed, error) {
	done, err := a.begin(ctx)
	defer done()
	if err == nil {
		err = check()
	}
	if err != nil {
		return Listed{}, err
	}
	e.Details[journal.DetailLog] = a.opts.Origin
	one, err := a.append(ctx, e)
	if err != nil {
		return Listed{}, err
	}
	return a.listed(one, a.opts.Now()), nil
}

// Waiting returns how many requests wait, as of the last reading of the journal's leaves.
func (a *Approvals) Waiting(ctx context.Context) (n int, err error) {
	done, err := a.begin(ctx)
	defer done()
	if err != nil {
		return 0, err
	}
	for _, one := range a.state.all {
		if one.State(a.opts.Now()) == Waiting {
			n++
		}
	}
	return n, nil
}
