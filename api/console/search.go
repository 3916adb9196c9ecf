package console

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// search is a search of the journal, as entered and as parsed.
type search struct {
	Q           string // an attestation's id, an API key's id or name, an address or a hash
	As          string // the meaning of an address: asUnspendable or asBeneficiary; empty if Q is not an address
	From, Until string // times, UTC
	Wrong       string // error text for the user

	query       journal.Query
	id          uuid.UUID
	beneficiary *appliance.Address
}

// Meanings of an address in a search.
const (
	asUnspendable = "unspendable"
	asBeneficiary = "beneficiary"
)

// isEmpty reports whether the search has no criteria. The newest attestations are then listed.
func (s search) isEmpty() bool {
	return s.Q == "" && s.From == "" && s.Until == "" && s.query.Before == 0
}

// Other returns the URL that searches the same address with its other meaning.
func (s search) Other() string {
	s.As = map[string]string{asUnspendable: asBeneficiary, asBeneficiary: asUnspendable}[s.As]
	return s.at(0)
}

// readSearch reads a form. keys are the names of API keys by id. Only users who may see addresses may search by address
// or by hash. Anyone can compute the hash of two addresses, so the answer would reveal whether they were attested.
func readSearch(form url.Values, keys map[string]string, addresses bool) (s search) {
	s = search{
		Q: strings.TrimSpace(form.Get("q")), From: form.Get("from"), Until: form.Get("until"),
		query: journal.Query{AttestationsOnly: true, Limit: listedAttestations},
	}
	for _, t := range []struct {
		text string
		into *time.Time
	}{{s.From, &s.query.From}, {s.Until, &s.query.Until}} {
		if t.text == "" {
			continue
		}
		var ok bool
		if *t.into, ok = readTime(t.text); !ok {
			s.Wrong = t.text + " is not a time such as 2026-01-31T09:00."
		}
	}
	if text := form.Get("before"); text != "" {
		before, err := strconv.ParseInt(text, 10, 64)
		if err != nil || before < 0 {
			s.Wrong = text + " is not an index."
		}
		s.query.Before = before
	}
	if s.Q != "" {
		s.readQ(form.Get("as"), keys, addresses)
	}
	return s
}

// readTime parses a time as browsers send it, and as the command accepts it. Without a zone it is UTC.
func readTime(s string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

const (
	addressLen = 2 + 40
	hashLen    = 2 + 64
)

func (s *search) readQ(as string, keys map[string]string, addresses bool) {
	if id, err := uuid.Parse(s.Q); err == nil {
		s.id = id
		return
	}
	if s.readKey(keys) {
		return
	}
	switch isHash := len(s.Q) == hashLen; {
	case (isHash || len(s.Q) == addressLen) && !addresses:
		s.Wrong = "The viewer role does not allow a search by address or hash, because the result would reveal " +
			"attestations."
	case isHash:
		s.query.Hash = new(appliance.Digest)
		if err := s.query.Hash.UnmarshalText([]byte(s.Q)); err != nil {
			s.Wrong = "A hash must be 0x and 64 hex digits."
		}
	case len(s.Q) == addressLen:
		s.readAddress(as)
	default:
		s.Wrong = "Enter an attestation id, an API key id or name, an address or a hash."
	}
}

// readKey reports whether an API key has the id or name Q.
func (s *search) readKey(keys map[string]string) bool {
	for id, name := range keys {
		switch {
		case s.Q == id:
			s.query.KeyID, s.Wrong = id, ""
			return true
		case s.Q == name && s.query.KeyID != "":
			s.Wrong = "Several API keys have this name: search by id."
		case s.Q == name:
			s.query.KeyID = id
		}
	}
	return s.query.KeyID != ""
}

func (s *search) readAddress(as string) {
	address, err := appliance.ParseAddress(s.Q)
	if err != nil {
		s.Wrong = "The address " + err.Error() + "."
		return
	}
	if s.As = as; s.As == asBeneficiary {
		s.beneficiary = &address
		return
	}
	s.As, s.query.Unspendable = asUnspendable, &address
}
