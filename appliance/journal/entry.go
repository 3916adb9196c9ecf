package journal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/google/uuid"
)

// Entry is a leaf with its index: an attestation's record or an event.
type Entry struct {
	Index  int64            `json:"index"` // from 0
	Record appliance.Record `json:"record,omitzero"`
	Event  *Event           `json:"event,omitempty"` // nil for an attestation; if set, Record is zero
	Leaf   []byte           `json:"-"`               // the bytes in the tree, see EncodeLeaf and EncodeEvent
}

// WithoutAddresses returns the entry without the data that shows which address was attested to which beneficiary. It
// omits both addresses; the hash, the leaf and the salt, which contain or confirm them; the idempotency key; and the
// signature, which the contract on chain accepts.
func (e Entry) WithoutAddresses() Entry {
	e.Leaf = nil
	e.Record.Request, e.Record.Hash, e.Record.Signature = appliance.Request{}, appliance.Digest{}, appliance.Signature{}
	e.Record.Salt, e.Record.IdempotencyKey, e.Record.Quorum = appliance.Salt{}, "", nil
	if e.Event != nil {
		event := *e.Event
		event.Salt, event.Details = appliance.Salt{}, maps.Clone(event.Details)
		delete(event.Details, DetailUnspendable)
		delete(event.Details, DetailBeneficiary)
		delete(event.Details, DetailIdempotencyKey)
		e.Event = &event
	}
	return e
}

// EncodeLeaf returns a record's leaf: compact JSON, members in the order of Record, no newline. Stores keep these bytes
// and never encode a record again, so a line of `attestd log export` is a leaf.
//
// The result equals json.Marshal, without the member bytes of the signature, which only repeats r, s and v. It is
// written by hand because each attestation calls it.
func EncodeLeaf(r appliance.Record) ([]byte, error) {
	b := make([]byte, 0, 768)
	b = append(append(append(b, `{"id":"`...), r.ID.String()...), `","hash":"0x`...)
	b = append(hex.AppendEncode(b, r.Hash[:]), `","signature":{"r":"0x`...)
	b = append(hex.AppendEncode(b, r.Signature.R[:]), `","s":"0x`...)
	b = append(hex.AppendEncode(b, r.Signature.S[:]), `","v":`...)
	b = append(strconv.AppendUint(b, uint64(r.Signature.V), 10), `},"signerAddress":"`...)
	b = append(r.SignerAddress.AppendTo(b), `","unspendableAddress":"`...)
	b = append(r.UnspendableAddress.AppendTo(b), `","beneficiary":"`...)
	b = append(r.Beneficiary.AppendTo(b), `","scheme":`...)
	b = appendJSON(b, r.Scheme)
	if r.Domain != nil {
		domain, err := json.Marshal(r.Domain)
		if err != nil {
			return nil, fmt.Errorf("record: %w", err)
		}
		b = append(append(b, `,"domain":`...), domain...)
	}
	b = appendJSON(append(b, `,"keyId":`...), r.KeyID)
	if r.IdempotencyKey != "" {
		b = appendJSON(append(b, `,"idempotencyKey":`...), r.IdempotencyKey)
	}
	if r.Coordinator != "" {
		b = appendJSON(append(b, `,"coordinator":`...), r.Coordinator)
	}
	if r.Quorum != nil {
		quorum, err := json.Marshal(r.Quorum)
		if err != nil {
			return nil, fmt.Errorf("record: %w", err)
		}
		b = append(append(b, `,"quorum":`...), quorum...)
	}
	if r.Approval != nil {
		b = append(append(append(b, `,"approval":"`...), r.Approval.String()...), '"')
	}
	when, err := r.Time.UTC().MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	b = append(append(append(b, `,"time":`...), when...), `,"salt":"`...)
	return append(hex.AppendEncode(b, r.Salt[:]), `"}`...), nil
}

// appendJSON appends a string as json.Marshal writes it.
func appendJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || strings.IndexByte(`"\<>&`, c) >= 0 {
			text, _ := json.Marshal(s) // never fails for a string
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// DecodeLeaf reads a record's leaf. It refuses bytes that EncodeLeaf would not have written.
func DecodeLeaf(leaf []byte) (appliance.Record, error) {
	if r, ok := scanLeaf(leaf); ok {
		if again, err := EncodeLeaf(r); err == nil && bytes.Equal(again, leaf) {
			return r, nil
		}
	}
	var r appliance.Record
	if err := json.Unmarshal(leaf, &r); err != nil {
		return appliance.Record{}, fmt.Errorf("record: %w", err)
	}
	again, err := EncodeLeaf(r)
	if err != nil {
		return appliance.Record{}, err
	}
	if !bytes.Equal(again, leaf) {
		return r, errors.New("record: not in canonical form")
	}
	return r, nil
}

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

// HexBytes are bytes, such as a hash of the tree, that are hex digits in JSON.
type HexBytes []byte

// MarshalText returns the hex digits.
func (h HexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads hex digits.
func (h *HexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}
