package appliance

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

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
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
	EventPaused         EventKind = "paused"
	EventResumed        EventKind = "resumed"
	EventHalted         EventKind = "halted"
	EventPolicy         EventKind = "policy_loaded"
	EventSecond         EventKind = "second_beneficiary" // see WarnOfSecond
	// an authorised request was refused; limited to RefusalsPerMinute
	EventRefused EventKind = "refused"

	// EventContradiction records that a witness has cosigned another history of the log; see Contradiction.
	EventContradiction EventKind = "witness_contradiction"
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

// Details with the addresses of an attestation.
const (
	DetailUnspendable = "unspendableAddress"
	DetailBeneficiary = "beneficiary"
)

// Event is a leaf that is not an attestation: an action or a fault that an auditor should find in the log. Its JSON
// begins with the member "event". The JSON of an attestation never does.
type Event struct {
	Kind    EventKind         `json:"event"`
	ID      uuid.UUID         `json:"id"` // UUIDv7
	Time    time.Time         `json:"time"`
	By      string            `json:"by,omitempty"`      // the actor, if known
	Details map[string]string `json:"details,omitempty"` // depends on Kind
	Salt    Salt              `json:"salt"`              // as in Record
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
		return Errorf(CodeInternal, "the event cannot be recorded").Because(fmt.Errorf(format, args...))
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
	if e.Salt == (Salt{}) {
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
		return nil, Errorf(CodeInternal, "the event cannot be recorded").Because(err)
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

// DecodeEntry reads a leaf of either kind and stores it as the entry's Leaf. Errors are the errors of DecodeLeaf and
// DecodeEvent. On an error, the entry holds the decoded part.
func DecodeEntry(index int64, leaf []byte) (e Entry, err error) {
	e = Entry{Index: index, Leaf: leaf}
	if !IsEvent(leaf) {
		e.Record, err = DecodeLeaf(leaf)
		return e, err
	}
	event, err := DecodeEvent(leaf)
	e.Event = &event
	return e, err
}

// Verify checks the record or the event on its own.
func (e Entry) Verify() error {
	if e.Event != nil {
		return e.Event.Verify()
	}
	return e.Record.Verify()
}

// ID returns the id of the attestation or the event.
func (e Entry) ID() uuid.UUID {
	if e.Event != nil {
		return e.Event.ID
	}
	return e.Record.ID
}

// Time returns the time of the attestation or the event.
func (e Entry) Time() time.Time {
	if e.Event != nil {
		return e.Event.Time
	}
	return e.Record.Time
}

// Continuation says which log a new log continues, and why. Its event is the new log's first leaf. The old log's leaves
// follow it, byte for byte. A log is continued if its database lost its tail or was restored from an older copy. So no
// second history is ever signed under the old log's name.
type Continuation struct {
	Log       string // the old log's verifier key (C2SP signed-note: name+hash+key)
	Origin    string // of the new log
	Published string // the highest checkpoint known to have been published; empty if unknown
	Surviving string // the checkpoint of the leaves that follow, signed by the old log's key
	Reason    string
	NewKey    string // the new log's verifier key if it is not derived from the old log's key; see Event.GiveNewLogKey
}

// The details of an EventLogContinued.
const (
	detailLog       = "log"
	detailOrigin    = "origin"
	detailPublished = "published"
	detailSurviving = "surviving"
	detailReason    = "reason"
	detailNewKey    = "newKey"
)

// Event returns the event without By, ID, Time and Salt.
func (c Continuation) Event() Event {
	details := map[string]string{detailLog: c.Log, detailOrigin: c.Origin, detailSurviving: c.Surviving,
		detailReason: c.Reason}
	if c.Published != "" {
		details[detailPublished] = c.Published
	}
	return Event{Kind: EventLogContinued, Details: details}
}

// Continuation reads the event's details. ok is false for an event of another kind.
func (e Event) Continuation() (c Continuation, ok bool) {
	d := e.Details
	return Continuation{
		Log: d[detailLog], Origin: d[detailOrigin], Published: d[detailPublished], Surviving: d[detailSurviving],
		Reason: d[detailReason],
		NewKey: d[detailNewKey],
	}, e.Kind == EventLogContinued
}

// Verify checks an event on its own: an EventLogContinued must carry a checkpoint that the old log signed.
func (e Event) Verify() error {
	c, ok := e.Continuation()
	if !ok {
		return nil
	}
	if _, err := c.Tree(); err != nil {
		return fmt.Errorf("the continued log: %w", err)
	}
	return nil
}

// Tree verifies the surviving checkpoint with the old log's key and returns the tree of the leaves that follow.
func (c Continuation) Tree() (tlog.Tree, error) {
	verifier, err := note.NewVerifier(c.Log)
	if err != nil {
		return tlog.Tree{}, fmt.Errorf("log %q: %w", c.Log, err)
	}
	return OpenCheckpoint([]byte(c.Surviving), verifier)
}

// Names reports whether name is the LogName of a log that c continues. That is the log of the leaves that follow, or
// the log of the published checkpoint.
func (c Continuation) Names(name string) bool {
	verifier, err := note.NewVerifier(c.Log)
	return err == nil && LogName(verifier) == name || c.Published != "" && SignerOf([]byte(c.Published)) == name
}

// LogName identifies a log by its key's name and hash, as in the signature line of a note.
func LogName(key interface {
	Name() string
	KeyHash() uint32
}) string {
	return fmt.Sprintf("%s+%08x", key.Name(), key.KeyHash())
}

// SignerOf returns the LogName of the first signature of a note without verifying it. It returns "" for a note without
// a signature.
func SignerOf(signed []byte) string {
	_, err := note.Open(signed, note.VerifierList())
	if unverified, ok := errors.AsType[*note.UnverifiedNoteError](err); ok && len(unverified.Note.UnverifiedSigs) > 0 {
		s := unverified.Note.UnverifiedSigs[0]
		return fmt.Sprintf("%s+%08x", s.Name, s.Hash)
	}
	return ""
}

// sinceSuffix matches the suffix that NextOrigin appends.
var sinceSuffix = regexp.MustCompile(`/since-\d{8}T\d{6}Z$`)

// NextOrigin returns the origin of a log that continues the log of the given origin:
// example.com/attestd/since-20261122T031500Z.
func NextOrigin(origin string, now time.Time) string {
	next := sinceSuffix.ReplaceAllString(origin, "") + now.UTC().Format("/since-20060102T150405Z")
	if next != origin {
		return next
	}
	return NextOrigin(origin, now.Add(time.Second))
}

// validReason returns an error unless the reason is one line of at most 1000 bytes.
func validReason(reason string) error {
	if strings.TrimSpace(reason) == "" || len(reason) > 1000 || strings.ContainsFunc(reason, func(r rune) bool {
		return r < ' '
	}) {
		return errors.New("a reason is required: one line of at most 1000 bytes")
	}
	return nil
}
