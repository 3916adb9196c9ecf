package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
	"github.com/google/uuid"
)

// EventKind names a kind of event.
type EventKind string

// The kinds of events. docs/journal.md lists the details of each.
const (
	// EventLogContinued is the first leaf of a log that continues another one; see Continuation.
	EventLogContinued EventKind = "log_continued"

	EventStarted        EventKind = "started" // has DetailSigners
	EventStopped        EventKind = "stopped"
	EventSignerAdded    EventKind = "signer_added"   // has DetailAddress
	EventSignerChanged  EventKind = "signer_changed" // has DetailAddress
	EventSignerRemoved  EventKind = "signer_removed"
	EventKeyCreated     EventKind = "key_created"
	EventKeyRevoked     EventKind = "key_revoked"
	EventKeyBound       EventKind = "key_bound"
	EventConfigReloaded EventKind = "config_reloaded"
	EventHSMLost        EventKind = "hsm_lost"
	EventHSMFound       EventKind = "hsm_found"
	EventBackup         EventKind = "backup"
	EventRestored       EventKind = "restored"
	EventReport         EventKind = "report" // an audit report is made; has from and until
	EventPaused         EventKind = "paused"
	EventResumed        EventKind = "resumed"
	EventHalted         EventKind = "halted"
	EventPolicy         EventKind = "policy_loaded"
	EventSecond         EventKind = "second_beneficiary" // see policy.WarnOfSecond
	EventRedeemed       EventKind = "redeemed"           // a contract redeemed an attestation of the journal
	// an authorised request was refused; limited to RefusalsPerMinute
	EventRefused EventKind = "refused"

	EventWebhookCreated  EventKind = "webhook_created"  // has name and url
	EventWebhookRotated  EventKind = "webhook_rotated"  // has name
	EventWebhookDeleted  EventKind = "webhook_deleted"  // has name and url
	EventWebhookDisabled EventKind = "webhook_disabled" // has name; and reason if the daemon did it
	EventWebhookResumed  EventKind = "webhook_resumed"  // has name

	// EventContradiction records that a witness has cosigned another history of the log; see Contradiction.
	EventContradiction EventKind = "witness_contradiction"
)

// Events of approvals. The id of the event that asks is the id of the approval.
const (
	EventApprovalRequested EventKind = "approval_requested" // a request for an attestation waits
	EventApproverEnrolled  EventKind = "approver_enrolled"  // takes effect when the other approvers approve it
	EventApproverRemoved   EventKind = "approver_removed"   // as above
	EventApprovalGiven     EventKind = "approval_given"
	EventApprovalDenied    EventKind = "approval_denied"
	EventApprovalExpired   EventKind = "approval_expired" // not given in time, or given and not used in time
)

// Details of an EventContradiction.
const (
	DetailWitness    = "witness"    // its name in the appliance's policy
	DetailWitnessKey = "key"        // the LogName of its key
	DetailCheckpoint = "checkpoint" // the checkpoint that was submitted to the witness
	DetailReason     = "reason"
)

// Details that name attestor keys; see Event.Signers.
const (
	DetailSigners = "signers" // addresses, separated by spaces
	DetailAddress = "address"
)

// Details with the request of an attestation.
const (
	DetailUnspendable    = "unspendableAddress"
	DetailBeneficiary    = "beneficiary"
	DetailIdempotencyKey = "idempotencyKey"
)

// Event is a leaf that is not an attestation: an action or a fault that an auditor should find in the log. Its JSON
// begins with the member "event". The JSON of an attestation never does.
type Event struct {
	Kind    EventKind         `json:"event"`
	ID      uuid.UUID         `json:"id"` // UUIDv7
	Time    time.Time         `json:"time"`
	By      string            `json:"by,omitempty"`      // the actor, if known
	Details map[string]string `json:"details,omitempty"` // depends on Kind
	Salt    appliance.Salt    `json:"salt"`              // as in Record
}

// eventStart is the first bytes of an event's leaf.
const eventStart = `{"event":"`

// EncodeEvent returns an event's leaf: compact JSON, no newline. Stores keep these bytes and never encode an event
// again.
func EncodeEvent(e Event) ([]byte, error) {
	if e.Kind == "" || e.ID == uuid.Nil {
		return nil, errors.New("event: kind and id are required")
	}
	leaf, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return leaf, nil
}

// Prepare sets the ID and Salt of a new event if they are missing. It returns an error if the event cannot be appended.
func (e *Event) Prepare() error {
	refuse := func(format string, args ...any) error {
		return appliance.Errorf(appliance.CodeInternal, "the event cannot be recorded").Because(fmt.Errorf(format, args...))
	}
	if !eventKind.MatchString(string(e.Kind)) || e.Kind == EventLogContinued {
		return refuse("the event's kind is %q", e.Kind)
	}
	size := len(e.By)
	valid := utf8.ValidString(e.By)
	for name, value := range e.Details {
		size += len(name) + len(value)
		valid = valid && utf8.ValidString(name) && utf8.ValidString(value)
	}
	switch {
	case !valid:
		return refuse("%s has text that is not UTF-8", e.Kind)
	case size > MaxEvent:
		return refuse("%s has %d bytes of text, the limit is %d", e.Kind, size, MaxEvent)
	}
	if e.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return refuse("%w", err)
		}
		e.ID = id
	}
	if e.Salt == (appliance.Salt{}) {
		rand.Read(e.Salt[:]) // never fails (Go 1.24)
	}
	return nil
}

// eventKind matches a valid kind.
var eventKind = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// MaxEvent bounds the text of an event, in bytes.
const MaxEvent = 16 << 10

// At sets the time of a prepared event and returns its leaf.
func (e *Event) At(now time.Time) ([]byte, error) {
	e.Time = now
	leaf, err := EncodeEvent(*e)
	if err != nil {
		return nil, appliance.Errorf(appliance.CodeInternal, "the event cannot be recorded").Because(err)
	}
	return leaf, nil
}

// DecodeEvent reads an event's leaf. It refuses bytes that EncodeEvent would not have written.
func DecodeEvent(leaf []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(leaf, &e); err != nil {
		return Event{}, fmt.Errorf("event: %w", err)
	}
	again, err := EncodeEvent(e)
	if err != nil {
		return Event{}, err
	}
	if !bytes.Equal(again, leaf) {
		return e, errors.New("event: not in canonical form")
	}
	return e, nil
}

// IsEvent reports whether a leaf is an event, by its first bytes.
func IsEvent(leaf []byte) bool { return bytes.HasPrefix(leaf, []byte(eventStart)) }

// Signers returns the attestor keys that an event names as the appliance's own: the keys at its start, or a key that
// was added or changed.
func (e Event) Signers() (all []appliance.Address) {
	var texts []string
	switch e.Kind {
	case EventStarted:
		texts = strings.Fields(e.Details[DetailSigners])
	case EventSignerAdded, EventSignerChanged:
		texts = strings.Fields(e.Details[DetailAddress])
	}
	for _, text := range texts {
		if address, err := appliance.ParseAddress(text); err == nil {
			all = append(all, address)
		}
	}
	return all
}
