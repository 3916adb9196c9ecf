package audit

import (
	"fmt"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"slices"
)

// Signer is an attestor key that signed records of a journal.
type Signer struct {
	Address appliance.Address `json:"address"`
	First   int64             `json:"first"`   // index of its first record
	Last    int64             `json:"last"`    // index of its last record
	Records int64             `json:"records"` // number of records it signed
	Known   SignerKnown       `json:"known"`   // why it is allowed; empty while the audit is running
}

// SignerKnown is the reason why a signer counts as one of the appliance's own.
type SignerKnown string

// The values of SignerKnown.
const (
	SignerGiven   SignerKnown = "given"   // listed in Options.Signers
	SignerOwn     SignerKnown = "own"     // listed in Options.Own
	SignerEvent   SignerKnown = "event"   // named by an event of the journal
	SignerFirst   SignerKnown = "first"   // signed the first record, and no event before it names a signer
	SignerUnknown SignerKnown = "unknown" // no reason: unknown signer
)

// maxSigners bounds the signers that an audit distinguishes. An appliance has a few in its lifetime.
const maxSigners = 256

// signers collects the keys that signed the audited records. The zero value is ready.
type signers struct {
	opts  Options
	all   []Signer // in the order of their first records
	named map[appliance.Address]bool
	first bool  // an event named a signer before the first record
	more  int64 // records by signers beyond maxSigners
}

// add takes the next leaf, which must have passed Audit.Check. For a record, it returns the number of records of the
// same signer so far.
func (s *signers) add(index int64, e journal.Entry) int64 {
	if e.Event != nil {
		for _, address := range e.Event.Signers() {
			if s.named == nil {
				s.named = make(map[appliance.Address]bool)
			}
			s.named[address] = true
			s.first = s.first || len(s.all) == 0
		}
		return 0
	}
	address := e.Record.SignerAddress
	i := slices.IndexFunc(s.all, func(a Signer) bool { return a.Address == address })
	if i < 0 && len(s.all) == maxSigners {
		s.more++
		return 0
	}
	if i < 0 {
		i = len(s.all)
		s.all = append(s.all, Signer{Address: address, First: index})
	}
	s.all[i].Last = index
	s.all[i].Records++
	return s.all[i].Records
}

// known returns why the i-th signer is allowed.
func (s *signers) known(i int) SignerKnown {
	address := s.all[i].Address
	switch {
	case slices.Contains(s.opts.Signers, address):
		return SignerGiven
	case len(s.opts.Signers) > 0: // no other source counts
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

// finish returns all signers, and one damage for each unknown signer.
func (s *signers) finish() (all []Signer, damages []Damage) {
	for i := range s.all {
		a := &s.all[i]
		a.Known = s.known(i)
		if a.Known != SignerUnknown || s.opts.AnySigner {
			continue
		}
		who := "which is neither the appliance's signer nor named by an event of the journal"
		if len(s.opts.Signers) > 0 {
			who = "which is not in --signer"
		}
		damages = append(damages, Damage{Index: a.First, Part: "signer",
			Detail: fmt.Sprintf("signed by %s, %s: %s", a.Address, who, a.span())})
	}
	if s.more > 0 && !s.opts.AnySigner {
		damages = append(damages, Damage{Index: -1, Part: "signer", Detail: fmt.Sprintf("more than %d signers exist; "+
			"the others signed %d records", maxSigners, s.more)})
	}
	return s.all, damages
}

// span describes which records a signer signed.
func (a Signer) span() string {
	if a.Records == 1 {
		return fmt.Sprintf("record %d", a.First)
	}
	if a.Records == a.Last-a.First+1 {
		return fmt.Sprintf("records %d to %d", a.First, a.Last)
	}
	return fmt.Sprintf("%d of the records %d to %d", a.Records, a.First, a.Last)
}

// String describes the signer, its records and why it is allowed.
func (a Signer) String() string {
	why := map[SignerKnown]string{
		SignerGiven: "given", SignerOwn: "the appliance's own", SignerEvent: "named by an event of the journal",
		SignerFirst: "the journal's first signer; not named anywhere", SignerUnknown: "UNKNOWN",
	}
	return fmt.Sprintf("%s  %s (%s)", a.Address, a.span(), why[a.Known])
}
