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

	"github.com/attestd/attestd/appliance/journal"
)

// Redaction selects the addresses of an attestation to omit. The hash covers both addresses, so a reader who knows the
// hash and one address can find the other by trying candidates. The default omits both.
type Redaction string

// The redactions.
const (
	RedactAddresses   Redaction = "addresses"   // omit both
	RedactUnspendable Redaction = "unspendable" // omit the unspendable address
	RedactNone        Redaction = "none"        // omit neither
)

// ParseRedaction reads a redaction.
func ParseRedaction(s string) (Redaction, error) {
	if r := Redaction(s); r == RedactAddresses || r == RedactUnspendable || r == RedactNone {
		return r, nil
	}
	return "", fmt.Errorf("%q is not %s, %s or %s", s, RedactAddresses, RedactUnspendable, RedactNone)
}

// Format is the encoding of an entry.
type Format string

// The formats. FormatCSV is for exports only.
const (
	FormatJSON Format = "json" // one ASCII object per line
	FormatCEF  Format = "cef"  // ArcSight Common Event Format, revision 25
	FormatCSV  Format = "csv"  // RFC 4180
)

// ParseFormat reads the format of a sink. It does not accept FormatCSV.
func ParseFormat(s string) (Format, error) {
	if f := Format(s); f == FormatJSON || f == FormatCEF {
		return f, nil
	}
	return "", fmt.Errorf("%q is not %s or %s", s, FormatJSON, FormatCEF)
}

// Form describes how entries are shipped.
type Form struct {
	Log     string // journal.LogName of the journal; with the index, it identifies an entry permanently
	Version string // of attestd
	Redact  Redaction
}

// fields holds the shipped fields of an entry. It has no salt, because the salt prevents guessing a leaf from its hash.
// It has no signature, because the contract on chain accepts that signature. It has no idempotency key.
type fields struct {
	Type     string    `json:"type"`
	Severity string    `json:"severity"`
	Log      string    `json:"log"`
	Index    int64     `json:"index"`
	ID       uuid.UUID `json:"id"`
	Time     time.Time `json:"time"`
	LeafHash string    `json:"leafHash"` // hex; the leaf hash in the tree, see journal.InclusionProof

	KeyID              string `json:"keyId,omitempty"`
	Hash               string `json:"hash,omitempty"`
	SignerAddress      string `json:"signerAddress,omitempty"`
	Scheme             string `json:"scheme,omitempty"`
	Coordinator        string `json:"coordinator,omitempty"` // of a record that was cosigned for another appliance
	Contract           string `json:"contract,omitempty"`    // of a record that a quorum signed
	UnspendableAddress string `json:"unspendableAddress,omitempty"`
	Beneficiary        string `json:"beneficiary,omitempty"`

	Event   journal.EventKind `json:"event,omitempty"`
	By      string            `json:"by,omitempty"`
	Details map[string]string `json:"details,omitempty"`

	severity severity
}

// The values of told.Type.
const (
	typeAttestation = "attestation"
	typeEvent       = "event"
)

func (f Form) fieldsOf(e journal.Entry) fields {
	leaf := tlog.RecordHash(e.Leaf)
	t := fields{
		Type: typeAttestation, Log: f.Log, Index: e.Index, ID: e.ID(), Time: e.Time().UTC(),
		LeafHash: hex.EncodeToString(leaf[:]),
		severity: severityOf(e),
	}
	t.Severity = t.severity.String()
	unspendable, beneficiary := f.Redact == RedactNone, f.Redact != RedactAddresses
	if e.Event != nil {
		t.Type, t.Event, t.By, t.Details = typeEvent, e.Event.Kind, e.Event.By, maps.Clone(e.Event.Details)
		if !unspendable {
			delete(t.Details, journal.DetailUnspendable)
		}
		if !beneficiary {
			delete(t.Details, journal.DetailBeneficiary)
		}
		return t
	}
	r := e.Record
	t.KeyID, t.Hash, t.SignerAddress, t.Scheme = r.KeyID, r.Hash.String(), r.SignerAddress.String(), string(r.Scheme)
	t.Coordinator = r.Coordinator
	if r.Quorum != nil {
		t.Contract = r.Quorum.Contract.String()
	}
	if unspendable {
		t.UnspendableAddress = r.UnspendableAddress.String()
	}
	if beneficiary {
		t.Beneficiary = r.Beneficiary.String()
	}
	return t
}

// kind returns typeAttestation or the kind of the event.
func (t fields) kind() string {
	if t.Type == typeEvent {
		return string(t.Event)
	}
	return typeAttestation
}

// Line returns an entry in a format, without a newline.
func (f Form) Line(format Format, e journal.Entry) ([]byte, error) {
	return f.fieldsOf(e).line(format, f.Version)
}

func (t fields) line(format Format, version string) ([]byte, error) {
	switch format {
	case FormatJSON:
		return t.json()
	case FormatCEF:
		return t.cef(version)
	case FormatCSV:
		return t.csv()
	}
	return nil, fmt.Errorf("unknown format %q", format)
}

// json returns ASCII. Other characters become \u escapes, so that no relay can corrupt them.
func (t fields) json() ([]byte, error) {
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

// detail returns all details as one JSON object, sorted by name.
func (t fields) detail() (string, error) {
	if len(t.Details) == 0 {
		return "", nil
	}
	text, err := json.Marshal(t.Details)
	return string(text), err
}
