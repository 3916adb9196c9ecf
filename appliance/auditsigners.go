package appliance

import (
	"fmt"
	"slices"
	"strings"
)

// AuditedSigner is an attestor key that signed records of a journal.
type AuditedSigner struct {
	Address Address     `json:"address"`
	First   int64       `json:"first"`   // index of its first record
	Last    int64       `json:"last"`    // and of its last
	Records int64       `json:"records"` // how many it signed
	Known   SignerKnown `json:"known"`   // who says that it may; empty for nobody
}

// SignerKnown is who says that a signer is one of the appliance's own.
type SignerKnown string

// Who may say so.
const (
	SignerGiven   SignerKnown = "given"   // VerifyOptions.Signers
	SignerOwn     SignerKnown = "own"     // VerifyOptions.Own
	SignerEvent   SignerKnown = "event"   // an event of the journal
	SignerFirst   SignerKnown = "first"   // nobody: it signed the first record, before which no event names one
	SignerUnknown SignerKnown = "unknown" // nobody
)

// maxSigners bounds how many signers an audit tells apart: an appliance has a few in its life.
const maxSigners = 256

// signers are the keys that signed what an audit has seen. The zero value is ready.
type signers struct {
	opts  VerifyOptions
	all   []AuditedSigner // in the order of their first records
	named map[Address]bool
	first bool  // an event named one before the first record
	more  int64 // records of signers beyond maxSigners
}

// add takes the next leaf, whose claims are good.
func (s *signers) add(index int64, e Entry) {
	if e.Event != nil {
		for _, address := range e.Event.Signers() {
			if s.named == nil {
				s.named = make(map[Address]bool)
			}
			s.named[address] = true
			s.first = s.first || len(s.all) == 0
		}
		return
	}
	address := e.Record.SignerAddress
	i := slices.IndexFunc(s.all, func(a AuditedSigner) bool { return a.Address == address })
	if i < 0 && len(s.all) == maxSigners {
		s.more++
		return
	}
	if i < 0 {
		i = len(s.all)
		s.all = append(s.all, AuditedSigner{Address: address, First: index})
	}
	s.all[i].Last = index
	s.all[i].Records++
}

// known says who vouches for the i-th signer.
func (s *signers) known(i int) SignerKnown {
	address := s.all[i].Address
	switch {
	case slices.Contains(s.opts.Signers, address):
		return SignerGiven
	case len(s.opts.Signers) > 0: // nobody else is believed
		return SignerUnknown
	case slices.Contains(s.opts.Own, address):
		return SignerOwn
	case s.named[address]:
		return SignerEvent
	case i == 0 && !s.first && len(s.opts.Own) == 0:
		return SignerFirst
	}
	return SignerUnknown
}

// finish returns the signers, and a damage for each that nobody vouches for.
func (s *signers) finish() (all []AuditedSigner, damages []Damage) {
	for i := range s.all {
		a := &s.all[i]
		a.Known = s.known(i)
		if a.Known != SignerUnknown || s.opts.AnySigner {
			continue
		}
		who := "whom neither the appliance nor an event of the journal names"
		if len(s.opts.Signers) > 0 {
			who = "who is none of --signer"
		}
		damages = append(damages, Damage{Index: a.First, Part: "signer", Detail: fmt.Sprintf("signed by %s, %s: %s", a.Address, who, a.span())})
	}
	if s.more > 0 && !s.opts.AnySigner {
		damages = append(damages, Damage{Index: -1, Part: "signer", Detail: fmt.Sprintf("there are more than %d signers, who signed %d more records", maxSigners, s.more)})
	}
	return s.all, damages
}

// span tells a person which records a signer signed.
func (a AuditedSigner) span() string {
	if a.Records == 1 {
		return fmt.Sprintf("record %d", a.First)
	}
	if a.Records == a.Last-a.First+1 {
		return fmt.Sprintf("records %d to %d", a.First, a.Last)
	}
	return fmt.Sprintf("%d of the records %d to %d", a.Records, a.First, a.Last)
}

// String tells a person who signed what, and who vouches for that.
func (a AuditedSigner) String() string {
	why := map[SignerKnown]string{
		SignerGiven: "given", SignerOwn: "the appliance's own", SignerEvent: "named by an event of the journal",
		SignerFirst: "the journal's first; nobody names it", SignerUnknown: "UNKNOWN",
	}
	return fmt.Sprintf("%s  %s (%s)", a.Address, a.span(), why[a.Known])
}

// Signers are the attestor keys that an event names as the appliance's own: those with which it started, or one that was added.
func (e Event) Signers() (all []Address) {
	var texts []string
	switch e.Kind {
	case EventStarted:
		texts = strings.Fields(e.Details[DetailSigners])
	case EventSignerAdded, EventSignerChanged:
		texts = strings.Fields(e.Details[DetailAddress])
	}
	for _, text := range texts {
		if address, err := ParseAddress(text); err == nil {
			all = append(all, address)
		}
	}
	return all
}
