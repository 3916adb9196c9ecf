// Package events turns an appliance's records into events for clients: CloudEvents 1.0 in the JSON format. Streams and
// webhooks deliver them. The leaves of the journal are the events of attesting and operating, in the order of the log.
package events

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

// Type is the type of an event, such as attestation.issued. The part before the dot is its group.
type Type string

// The types that API keys may see. The others are for operators; see kinds.
const (
	AttestationIssued   Type = "attestation.issued"
	AttestationRefused  Type = "attestation.refused"
	AttestationRedeemed Type = "attestation.redeemed"
	TransferUpdated     Type = "transfer.updated"
	PacketUpdated       Type = "packet.updated"
)

// Checkpoint is the type of the newest checkpoint, for operators. Streams have it, and webhooks do not.
const Checkpoint Type = "log.checkpoint"

// unlisted begins the type of an event whose kind is not in kinds.
const unlisted = "journal."

// kinds are the types of the journal's events. A kind that is not in the list has the type journal.KIND.
var kinds = map[journal.EventKind]Type{
	journal.EventRefused:  AttestationRefused,
	journal.EventRedeemed: AttestationRedeemed,
	journal.EventSecond:   "attestation.second_beneficiary",

	journal.EventApprovalRequested: "approval.required",
	journal.EventApprovalGiven:     "approval.given",
	journal.EventApprovalDenied:    "approval.denied",
	journal.EventApprovalExpired:   "approval.expired",
	journal.EventApproverEnrolled:  "approver.enrolled",
	journal.EventApproverRemoved:   "approver.removed",

	journal.EventKeyCreated:    "key.created",
	journal.EventKeyRevoked:    "key.revoked",
	journal.EventKeyBound:      "key.bound",
	journal.EventSignerAdded:   "signer.added",
	journal.EventSignerChanged: "signer.changed",
	journal.EventSignerRemoved: "signer.removed",
	journal.EventHSMLost:       "hsm.lost",
	journal.EventHSMFound:      "hsm.found",
	journal.EventPolicy:        "policy.loaded",

	journal.EventWebhookCreated:  "webhook.created",
	journal.EventWebhookRotated:  "webhook.rotated",
	journal.EventWebhookDeleted:  "webhook.deleted",
	journal.EventWebhookDisabled: "webhook.disabled",
	journal.EventWebhookResumed:  "webhook.resumed",

	journal.EventStarted:        "appliance.started",
	journal.EventStopped:        "appliance.stopped",
	journal.EventConfigReloaded: "appliance.reloaded",
	journal.EventPaused:         "appliance.paused",
	journal.EventResumed:        "appliance.resumed",
	journal.EventHalted:         "appliance.halted",

	journal.EventLogContinued:  "log.continued",
	journal.EventBackup:        "log.backed_up",
	journal.EventRestored:      "log.restored",
	journal.EventReport:        "log.reported",
	journal.EventContradiction: "witness.contradiction",

	"unknown_redemption":    "chain.unknown_redemption",
	"unproven_redemption":   "chain.unproven_redemption",
	"chain_disagreement":    "chain.disagreement",
	"attestor_mismatch":     "chain.attestor_mismatch",
	"quorum_invalid_answer": "quorum.invalid_answer",
}

// Types returns all types, sorted.
func Types() []Type {
	all := []Type{AttestationIssued, TransferUpdated, PacketUpdated, Checkpoint}
	for _, t := range kinds {
		all = append(all, t)
	}
	slices.Sort(all)
	return all
}

// Group returns the part of the type before the dot.
func (t Type) Group() string {
	group, _, _ := strings.Cut(string(t), ".")
	return group
}

// Event is one event, with what decides who may see it. Its JSON is a CloudEvent, which has only the fields from ID to
// Data.
type Event struct {
	ID      string    // with Source, unique; the same at every appliance, so that a receiver can drop a repeat
	Source  string    // the log's origin
	Type    Type      //
	Time    time.Time // when it was recorded
	Subject string    // the attestation, the packet or the approval that it is about; may be empty
	Data    json.RawMessage

	Index     int64    // of the leaf; -1 if the event is not a leaf of the journal
	KeyID     string   // the API key that asked for the attestation; empty for events of operators and of packets
	Addresses []string // lower-case
	Chains    []string // universal chain ids
}

// MarshalJSON returns the CloudEvent.
func (e Event) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Version     string          `json:"specversion"`
		ID          string          `json:"id"`
		Source      string          `json:"source"`
		Type        Type            `json:"type"`
		Subject     string          `json:"subject,omitempty"`
		Time        time.Time       `json:"time"`
		ContentType string          `json:"datacontenttype"`
		Data        json.RawMessage `json:"data"`
	}{"1.0", e.ID, e.Source, e.Type, e.Subject, e.Time.UTC(), "application/json", e.Data})
}

// FromEntry returns the event of an entry of the log with that origin and name (journal.LogName). Its data is what a
// sink ships of the entry, with both addresses: a receiver can order the events of a log by data.index, find a gap, and
// verify that the leaf with data.leafHash is in the log.
func FromEntry(origin, log string, e journal.Entry) (Event, error) {
	form := sinks.Form{Log: log, Redact: sinks.RedactNone}
	data, err := form.Line(sinks.FormatJSON, e)
	if err != nil {
		return Event{}, err
	}
	event := Event{ID: e.ID().String(), Source: origin, Type: AttestationIssued, Time: e.Time(), Data: data,
		Index: e.Index}
	if e.Event == nil {
		r := e.Record
		event.Subject, event.KeyID = event.ID, r.KeyID
		event.Addresses = []string{lower(r.UnspendableAddress.String()), lower(r.Beneficiary.String())}
		return event, nil
	}
	var known bool
	if event.Type, known = kinds[e.Event.Kind]; !known {
		event.Type = Type(unlisted + string(e.Event.Kind))
	}
	details := e.Event.Details
	event.Subject = subject(event, details)
	if event.Type == AttestationRefused || event.Type == AttestationRedeemed {
		event.KeyID = details["keyId"]
	}
	for _, name := range []string{journal.DetailUnspendable, journal.DetailBeneficiary} {
		if address := details[name]; address != "" {
			event.Addresses = append(event.Addresses, lower(address))
		}
	}
	return event, nil
}

// subject returns the object of an event of the journal, or "".
func subject(e Event, details map[string]string) string {
	switch e.Type.Group() {
	case "approval", "approver":
		if one := details[approval.DetailApproval]; one != "" {
			return one
		}
		return e.ID // the event that asks is the approval
	case "key", "attestation":
		return details["id"]
	case "signer":
		return details[journal.DetailAddress]
	case "webhook":
		return details["name"]
	case "hsm":
		return details["token"]
	}
	return ""
}

func lower(s string) string { return strings.ToLower(s) }
