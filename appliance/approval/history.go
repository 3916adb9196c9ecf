package approval

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/google/uuid"
)

// Details of these events. Those that are bytes are base64url.
const (
	DetailApproval    = "approval" // id
	DetailApprover    = "approver" // name
	DetailCredential  = "credential"
	detailPublicKey   = "publicKey" // SubjectPublicKeyInfo
	detailRPID        = "rpId"
	detailRule        = "rule"
	detailAuthData    = "authenticatorData"
	detailClientData  = "clientData"
	detailSignature   = "signature"
	detailKeyName     = "keyName"
	detailCoordinator = "coordinator"
)

const (
	// enrolmentTime is how long the enrolment or the removal of an approver waits.
	enrolmentTime = 7 * 24 * time.Hour
	// rulesOverlap is how long after a change an audit accepts attestations by the previous rules: requests in
	// progress, and other appliances that share the journal and get the new rules later.
	rulesOverlap = time.Hour
)

// Approver is a passkey of a person that may approve.
type Approver struct {
	Name       string    `json:"name"`
	Credential string    `json:"credential"` // id of the passkey, base64url
	PublicKey  []byte    `json:"publicKey"`  // SubjectPublicKeyInfo
	RPID       string    `json:"rpId"`       // host name of the console in which the passkey was made
	Enrolled   time.Time `json:"enrolled,omitzero"`
	Event      uuid.UUID `json:"event,omitzero"`    // its enrolment
	SignedBy   []string  `json:"signedBy,omitzero"` // approvers of the enrolment; empty for the first approver
}

// State is the state of an Approval.
type State string

// The states. Approved and denied are final.
const (
	Waiting  State = "waiting"
	Approved State = "approved"
	Denied   State = "denied"
	Expired  State = "expired"
)

// Approval is a request that people approve or deny: for an attestation, or to enrol or remove an approver.
type Approval struct {
	ID      uuid.UUID         `json:"id"`
	Kind    journal.EventKind `json:"kind"`
	Asked   time.Time         `json:"asked"`
	Expires time.Time         `json:"expires"` // exclusive
	By      string            `json:"by,omitempty"`

	KeyID          string            `json:"keyId,omitempty"`
	KeyName        string            `json:"keyName,omitempty"`
	IdempotencyKey string            `json:"idempotencyKey,omitempty"`
	Coordinator    string            `json:"coordinator,omitempty"`
	Request        appliance.Request `json:"request,omitzero"`

	Approver *Approver `json:"approver,omitempty"` // to be enrolled, or of whom only Name is set, to be removed

	Rule      policy.ApprovalRule `json:"rule"`
	Approved  []GivenBy           `json:"approved"` // in their order
	DeniedBy  string              `json:"deniedBy,omitempty"`
	Challenge journal.HexBytes    `json:"challenge"` // a passkey signs it
	Used      uuid.UUID           `json:"used,omitzero"`

	done    State // approved or denied, else empty
	expired bool  // the journal has the event that it expired
}

// GivenBy is one person's approval.
type GivenBy struct {
	Name       string    `json:"name"`
	Credential string    `json:"credential"`
	Time       time.Time `json:"time"`
}

// State returns the state at a time.
func (a *Approval) State(now time.Time) State {
	switch {
	case a.done == Denied, a.done == Approved && now.Before(a.Expires):
		return a.done
	case a.done == Approved && (a.Kind != journal.EventApprovalRequested || a.Used != uuid.Nil):
		return a.done
	case !now.Before(a.Expires):
		return Expired
	}
	return Waiting
}

// Satisfies reports whether enough people of a rule have approved.
func (a *Approval) Satisfies(r policy.ApprovalRule) bool {
	count := 0
	for _, given := range a.Approved {
		if slices.Contains(r.Approvers, given.Name) {
			count++
		}
	}
	return r.Required > 0 && count >= r.Required
}

// call identifies the request of a client, or of a coordinator. A coordinator chooses its name, so a client's API key
// and a coordinator are different fields: otherwise a coordinator could name the id of an API key, and use the
// approvals of that client.
type call struct{ keyID, coordinator, idempotencyKey string }

func (a *Approval) call() call { return callOf(a.KeyID, a.Coordinator, a.IdempotencyKey) }

// callOf leaves out the API key of a coordinator, which may be replaced between two attempts.
func callOf(keyID, coordinator, idempotencyKey string) call {
	if coordinator != "" {
		keyID = ""
	}
	return call{keyID, coordinator, idempotencyKey}
}

// rulesChange is a policy's event.
type rulesChange struct {
	rules []policy.ApprovalRule
	from  time.Time
}

// attestedTo counts the attestations to one beneficiary.
type attestedTo struct {
	count uint32
	last  int64 // index; -1 if it was not kept
}

// History is the state that a journal's leaves give. An appliance and an audit compute it in the same way, so that an
// appliance accepts nothing that an audit would reject. It is not safe for concurrent use.
type History struct {
	origins  map[string]bool // of this log, and of those that it continues
	Changed  int             // counts the changes of the rules
	changes  []rulesChange   // the rules in force, and before them those that were in force during rulesOverlap
	enrolled map[string]Approver
	all      map[uuid.UUID]*Approval
	byCall   map[call]*Approval // the newest of each call
	keyNames map[string]string  // by id

	seed     maphash.Seed
	earlier  []uint64              // hashes of beneficiaries, until a rule asks for them
	attested map[uint64]attestedTo // by hash of the beneficiary; nil until a rule asks
}

// NewHistory returns the state of an empty journal of the log with that origin.
func NewHistory(origin string) *History {
	return &History{
		origins: map[string]bool{origin: true}, enrolled: make(map[string]Approver),
		all: make(map[uuid.UUID]*Approval), byCall: make(map[call]*Approval), keyNames: make(map[string]string),
		seed: maphash.MakeSeed(), changes: make([]rulesChange, 1), // without rules
	}
}

// Add takes the next leaf. A fault is something that an honest appliance does not write.
func (s *History) Add(e journal.Entry) (fault error) {
	if e.Event == nil {
		return s.record(e.Index, e.Record)
	}
	switch e.Event.Kind {
	case journal.EventLogContinued:
		c, _ := e.Event.Continuation()
		name, _, _ := strings.Cut(c.Log, "+")
		s.origins[name] = true
	case journal.EventPolicy:
		return s.change(e.Event)
	case journal.EventKeyCreated:
		s.keyNames[e.Event.Details[appliance.DetailKeyID]] = e.Event.Details["name"]
	case journal.EventApprovalRequested, journal.EventApproverEnrolled, journal.EventApproverRemoved:
		return s.asked(e)
	case journal.EventApprovalGiven:
		return s.given(e.Event)
	case journal.EventApprovalExpired:
		id, _ := uuid.Parse(e.Event.Details[DetailApproval])
		if a := s.all[id]; a != nil {
			a.expired = true
		}
	case journal.EventApprovalDenied:
		id, _ := uuid.Parse(e.Event.Details[DetailApproval])
		if a := s.all[id]; a != nil && a.State(e.Event.Time) == Waiting {
			a.done, a.DeniedBy = Denied, e.Event.By
		}
	}
	return nil
}

// change puts the rules of a policy into force.
func (s *History) change(e *journal.Event) error {
	var rules []policy.ApprovalRule
	if text := e.Details[policy.DetailApprovals]; text != "" {
		if err := json.Unmarshal([]byte(text), &rules); err != nil {
			return fmt.Errorf("the policy's rules of approvals cannot be read: %w", err)
		}
	}
	for len(s.changes) > 1 && s.changes[1].from.Add(rulesOverlap).Before(e.Time) {
		s.changes = s.changes[1:]
	}
	if policy.EncodeApprovalRules(rules) != policy.EncodeApprovalRules(s.Rules()) {
		s.Changed++
		s.changes = append(s.changes, rulesChange{rules, e.Time})
	}
	return nil
}

// Rules returns the rules in force.
func (s *History) Rules() []policy.ApprovalRule {
	return s.changes[len(s.changes)-1].rules
}

// names returns the names of the enrolled approvers, sorted.
func (s *History) names() (all []string) {
	for _, a := range s.enrolled {
		if !slices.Contains(all, a.Name) {
			all = append(all, a.Name)
		}
	}
	slices.Sort(all)
	return all
}

// need returns the rule by which an approver is enrolled or removed: as many people must approve as the strictest rule
// in force requires, but no more than are enrolled. So one person alone cannot replace the others. The first
// approver needs no approval.
func (s *History) need() policy.ApprovalRule {
	names, required := s.names(), 1
	for _, r := range s.Rules() {
		required = max(required, r.Required)
	}
	return policy.ApprovalRule{When: policy.ApproveAlways, Approvers: names, Required: min(required, len(names)),
		WithinSeconds: int64(enrolmentTime / time.Second)}
}

// asked reads an event that asks people for their approval.
func (s *History) asked(e journal.Entry) error {
	d := e.Event.Details
	a := &Approval{ID: e.Event.ID, Kind: e.Event.Kind, Asked: e.Event.Time, By: e.Event.By, Approved: []GivenBy{}}
	switch {
	case !s.origins[d[journal.DetailLog]]:
		return fmt.Errorf("the approval was asked for in the log %q, not in this one", d[journal.DetailLog])
	case a.Kind == journal.EventApprovalRequested:
		if err := a.readRequest(d); err != nil {
			return err
		}
	default:
		a.Rule, a.Approver = s.need(), &Approver{Name: d[DetailApprover]}
		if err := a.readApprover(d); err != nil {
			return err
		}
		if _, taken := s.enrolled[a.Approver.Credential]; taken {
			return fmt.Errorf("the passkey %s is enrolled already", a.Approver.Credential)
		}
	}
	a.Expires = a.Asked.Add(time.Duration(a.Rule.WithinSeconds) * time.Second)
	challenge := challengeOf(d[journal.DetailLog], e.Leaf)
	a.Challenge = challenge[:]
	s.all[a.ID] = a
	if a.Kind == journal.EventApprovalRequested {
		s.byCall[a.call()] = a
	} else if a.Kind == journal.EventApproverEnrolled && len(s.enrolled) == 0 {
		s.finish(a, e.Event.Time)
	}
	return nil
}

func (a *Approval) readRequest(d map[string]string) (err error) {
	a.KeyID, a.KeyName, a.IdempotencyKey = d["keyId"], d[detailKeyName], d[journal.DetailIdempotencyKey]
	a.Coordinator = d[detailCoordinator]
	if a.Request.UnspendableAddress, err = appliance.ParseAddress(d[journal.DetailUnspendable]); err != nil {
		return fmt.Errorf("%s: %w", journal.DetailUnspendable, err)
	}
	if a.Request.Beneficiary, err = appliance.ParseAddress(d[journal.DetailBeneficiary]); err != nil {
		return fmt.Errorf("%s: %w", journal.DetailBeneficiary, err)
	}
	if err := json.Unmarshal([]byte(d[detailRule]), &a.Rule); err != nil {
		return fmt.Errorf("the rule of the approval cannot be read: %w", err)
	}
	return a.Rule.Check()
}

func (a *Approval) readApprover(d map[string]string) (err error) {
	if err := policy.CheckApproverName(a.Approver.Name); err != nil {
		return err
	}
	if a.Kind == journal.EventApproverRemoved {
		return nil
	}
	a.Approver.Credential, a.Approver.RPID = d[DetailCredential], d[detailRPID]
	if a.Approver.PublicKey, err = base64.RawURLEncoding.DecodeString(d[detailPublicKey]); err != nil {
		return fmt.Errorf("public key: %w", err)
	}
	if a.Approver.Credential == "" || a.Approver.RPID == "" {
		return errors.New("the passkey has no id or no relying party")
	}
	_, err = ParsePasskey(a.Approver.PublicKey)
	return err
}

// given reads one person's approval. An approval that comes too late does not count, and is no fault: two people may
// approve at the same time.
func (s *History) given(e *journal.Event) error {
	d := e.Details
	id, _ := uuid.Parse(d[DetailApproval])
	a := s.all[id]
	if a == nil {
		return fmt.Errorf("it approves %s, which the journal has no request for", d[DetailApproval])
	}
	proof, err := readAssertion(d)
	if err != nil {
		return err
	}
	by, err := s.check(a, proof)
	if err != nil || a.State(e.Time) != Waiting || a.has(by.Name) {
		return err
	}
	a.Approved = append(a.Approved, GivenBy{by.Name, by.Credential, e.Time})
	if a.Satisfies(a.Rule) {
		s.finish(a, e.Time)
	}
	return nil
}

// check verifies an assertion, and returns whose it is.
func (s *History) check(a *Approval, proof Assertion) (Approver, error) {
	by, enrolled := s.enrolled[proof.Credential]
	if !enrolled {
		return by, fmt.Errorf("the approval of %s is by the passkey %s, which was not enrolled at that time", a.ID,
			shortCredential(proof.Credential))
	}
	if !slices.Contains(a.Rule.Approvers, by.Name) {
		return by, fmt.Errorf("the approval of %s is by %s, whom its rule does not name", a.ID, by.Name)
	}
	if err := proof.verify(by.PublicKey, by.RPID, [sha256.Size]byte(a.Challenge)); err != nil {
		return by, fmt.Errorf("the approval of %s by %s is forged: %w", a.ID, by.Name, err)
	}
	return by, nil
}

func (a *Approval) has(name string) bool {
	return slices.ContainsFunc(a.Approved, func(g GivenBy) bool { return g.Name == name })
}

// finish marks an approval as given. An approver is then enrolled or removed.
func (s *History) finish(a *Approval, at time.Time) {
	a.done = Approved
	switch a.Kind {
	case journal.EventApproverEnrolled:
		who := *a.Approver
		who.Enrolled, who.Event = at, a.ID
		for _, given := range a.Approved {
			who.SignedBy = append(who.SignedBy, given.Name)
		}
		s.enrolled[who.Credential] = who
	case journal.EventApproverRemoved:
		for id, who := range s.enrolled {
			if who.Name == a.Approver.Name {
				delete(s.enrolled, id)
			}
		}
	}
}

// record checks that people have approved an attestation, if a rule demands it.
func (s *History) record(index int64, r appliance.Record) (fault error) {
	a, fault := s.claimed(r)
	if fault == nil {
		fault = s.lacks(r, a)
	}
	s.remember(index, r.Beneficiary)
	return fault
}

// claimed returns the approval that a record names.
func (s *History) claimed(r appliance.Record) (*Approval, error) {
	if r.Approval == nil {
		return nil, nil
	}
	a := s.all[*r.Approval]
	switch {
	case a == nil || a.Kind != journal.EventApprovalRequested:
		return nil, fmt.Errorf("the attestation names the approval %s, which the journal has no request for", r.Approval)
	case a.call() != callOf(r.KeyID, r.Coordinator, r.IdempotencyKey) || a.Request != r.Request:
		return nil, fmt.Errorf("the attestation names the approval %s, which is of another request", a.ID)
	case a.Used != uuid.Nil:
		return nil, fmt.Errorf("the attestation names the approval %s, which attestation %s has used", a.ID, a.Used)
	case a.State(r.Time) != Approved:
		return nil, fmt.Errorf("the attestation lacks approvals: %s was %s, with %d of the %d approvals of its rule",
			a.ID, a.State(r.Time), len(a.Approved), a.Rule.Required)
	}
	a.Used = r.ID
	return a, nil
}

// lacks returns an error unless the rules that were in force, or in force until recently, are satisfied.
func (s *History) lacks(r appliance.Record, a *Approval) error {
	var missing *policy.ApprovalRule
	for i := range slices.Backward(s.changes) {
		if i+1 < len(s.changes) && s.changes[i+1].from.Add(rulesOverlap).Before(r.Time) {
			break // replaced long before
		}
		rule := s.demands(s.changes[i].rules, r)
		if rule == nil || a != nil && a.Satisfies(*rule) {
			return nil
		}
		missing = rule
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("the attestation lacks the approvals that the policy demanded (%s)", missing)
}

func (s *History) demands(rules []policy.ApprovalRule, r appliance.Record) *policy.ApprovalRule {
	if len(rules) == 0 {
		return nil
	}
	return policy.Demanded(rules, policy.Facts{KeyID: r.KeyID, KeyName: s.keyNames[r.KeyID], Time: r.Time,
		NewBeneficiary: s.attestedTo(r.Beneficiary).count == 0})
}

// remember counts an attestation to a beneficiary. Without rules it costs 8 bytes.
func (s *History) remember(index int64, b appliance.Address) {
	hash := maphash.Comparable(s.seed, b)
	if s.attested == nil {
		s.earlier = append(s.earlier, hash)
		return
	}
	known := s.attested[hash]
	s.attested[hash] = attestedTo{known.count + 1, index}
}

// attestedTo returns the attestations to a beneficiary.
func (s *History) attestedTo(b appliance.Address) attestedTo {
	if s.attested == nil {
		s.attested = make(map[uint64]attestedTo)
		for _, hash := range s.earlier {
			s.attested[hash] = attestedTo{count: s.attested[hash].count + 1, last: -1}
		}
		s.earlier = nil
	}
	return s.attested[maphash.Comparable(s.seed, b)]
}

// Fingerprint returns the SHA-256 of the public key in hex, for people to compare.
func (a Approver) Fingerprint() string {
	sum := sha256.Sum256(a.PublicKey)
	return hex.EncodeToString(sum[:])
}

// Approvers returns the enrolled passkeys, by name.
func (s *History) Approvers() []Approver {
	list := make([]Approver, 0, len(s.enrolled))
	for _, who := range s.enrolled {
		list = append(list, who)
	}
	slices.SortFunc(list, func(x, y Approver) int { return strings.Compare(x.Name+x.Credential, y.Name+y.Credential) })
	return list
}
