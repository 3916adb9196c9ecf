package sinks

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// Redaction says which addresses of an attestation are left out. The hash of an attestation is that of both addresses: whoever has it and
// one of them finds the other in a list of those in question. So the default leaves out both.
type Redaction string

// The redactions.
const (
	RedactAddresses   Redaction = "addresses"   // neither is told
	RedactUnspendable Redaction = "unspendable" // the beneficiary is told
	RedactNone        Redaction = "none"        // both are
)

// ParseRedaction reads a redaction.
func ParseRedaction(s string) (Redaction, error) {
	if r := Redaction(s); r == RedactAddresses || r == RedactUnspendable || r == RedactNone {
		return r, nil
	}
	return "", fmt.Errorf("%q is not %s, %s or %s", s, RedactAddresses, RedactUnspendable, RedactNone)
}

// Format is how an entry is written.
type Format string

// The formats. FormatCSV is for exports alone.
const (
	FormatJSON Format = "json" // an object a line, in ASCII
	FormatCEF  Format = "cef"  // ArcSight Common Event Format, revision 25
	FormatCSV  Format = "csv"  // RFC 4180
)

// ParseFormat reads the format of a sink.
func ParseFormat(s string) (Format, error) {
	if f := Format(s); f == FormatJSON || f == FormatCEF {
		return f, nil
	}
	return "", fmt.Errorf("%q is not %s or %s", s, FormatJSON, FormatCEF)
}

// Form is how entries are told to others.
type Form struct {
	Log     string // appliance.LogName of the journal: with the index it names an entry for good
	Version string // of attestd
	Redact  Redaction
}

// told is what is told of an entry. Neither salt nor idempotency key nor signature is: the salt keeps a leaf from being guessed by its
// hash, and the signature is what the contract on chain asks for.
type told struct {
	Type     string    `json:"type"`
	Severity string    `json:"severity"`
	Log      string    `json:"log"`
	Index    int64     `json:"index"`
	ID       uuid.UUID `json:"id"`
	Time     time.Time `json:"time"`
	LeafHash string    `json:"leafHash"` // hex; in the tree, see appliance.InclusionProof

	KeyID              string `json:"keyId,omitempty"`
	Hash               string `json:"hash,omitempty"`
	SignerAddress      string `json:"signerAddress,omitempty"`
	Scheme             string `json:"scheme,omitempty"`
	UnspendableAddress string `json:"unspendableAddress,omitempty"`
	Beneficiary        string `json:"beneficiary,omitempty"`

	Event   appliance.EventKind `json:"event,omitempty"`
	By      string              `json:"by,omitempty"`
	Details map[string]string   `json:"details,omitempty"`

	severity severity
}

// The values of told.Type.
const (
	typeAttestation = "attestation"
	typeEvent       = "event"
)

func (f Form) tell(e appliance.Entry) told {
	leaf := tlog.RecordHash(e.Leaf)
	t := told{
		Type: typeAttestation, Log: f.Log, Index: e.Index, ID: e.ID(), Time: e.Time().UTC(), LeafHash: hex.EncodeToString(leaf[:]),
		severity: severityOf(e),
	}
	t.Severity = t.severity.String()
	unspendable, beneficiary := f.Redact == RedactNone, f.Redact != RedactAddresses
	if e.Event != nil {
		t.Type, t.Event, t.By, t.Details = typeEvent, e.Event.Kind, e.Event.By, maps.Clone(e.Event.Details)
		if !unspendable {
			delete(t.Details, appliance.DetailUnspendable)
		}
		if !beneficiary {
			delete(t.Details, appliance.DetailBeneficiary)
		}
		return t
	}
	r := e.Record
	t.KeyID, t.Hash, t.SignerAddress, t.Scheme = r.KeyID, r.Hash.String(), r.SignerAddress.String(), string(r.Scheme)
	if unspendable {
		t.UnspendableAddress = r.UnspendableAddress.String()
	}
	if beneficiary {
		t.Beneficiary = r.Beneficiary.String()
	}
	return t
}

// kind names what happened: an attestation, or the kind of an event.
func (t told) kind() string {
	if t.Type == typeEvent {
		return string(t.Event)
	}
	return typeAttestation
}

// Line returns an entry in a format, without a newline.
func (f Form) Line(format Format, e appliance.Entry) ([]byte, error) {
	return f.tell(e).line(format, f.Version)
}

func (t told) line(format Format, version string) ([]byte, error) {
	switch format {
	case FormatJSON:
		return t.json()
	case FormatCEF:
		return t.cef(version)
	case FormatCSV:
		return t.csv()
	}
	return nil, fmt.Errorf("no format %q", format)
}

// json is in ASCII alone: what is not is written as \u escapes, so that whoever passes it on cannot harm it.
func (t told) json() ([]byte, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w", t.Index, err)
	}
	if !slices.ContainsFunc(text, func(c byte) bool { return c >= utf8.RuneSelf }) {
		return text, nil
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r < utf8.RuneSelf:
			b.WriteByte(byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String()), nil
}

// detail is all details in one text: JSON, its names in order.
func (t told) detail() (string, error) {
	if len(t.Details) == 0 {
		return "", nil
	}
	text, err := json.Marshal(t.Details)
	return string(text), err
}
