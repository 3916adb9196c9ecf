package policy

import (
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
)

// Trial tests which past attestations a policy would have refused. Records are tried one by one in the order of the
// journal. A refused record counts toward no cap and is not a first beneficiary.
type Trial struct {
	Policy *Policy

	first  map[appliance.Address]firstSeen // first attestation of each unspendable address, if the policy asks for it
	counts map[capWindow]int64
}

// firstSeen is the part of a first attestation that Trial needs. It is small because a journal may have many.
type firstSeen struct {
	id          uuid.UUID
	beneficiary appliance.Address
}

// capWindow is one period of an API key's cap.
type capWindow struct {
	keyID string
	begin int64 // Unix time
	per   Period
}

// Seen counts a record that was attested before the trial begins.
func (t *Trial) Seen(r appliance.Record) {
	if t.first == nil {
		t.first, t.counts = make(map[appliance.Address]firstSeen), make(map[capWindow]int64)
	}
	if _, found := t.first[r.UnspendableAddress]; !found && t.Policy.Asks(r).Unspendable != nil {
		t.first[r.UnspendableAddress] = firstSeen{r.ID, r.Beneficiary}
	}
	for _, w := range t.windows(r) {
		t.counts[w]++
	}
}

func (t *Trial) windows(r appliance.Record) (of []capWindow) {
	for _, c := range t.Policy.caps(r.KeyID) {
		begin, _ := c.Per.around(r.Time.In(t.Policy.zone()))
		of = append(of, capWindow{r.KeyID, begin.Unix(), c.Per})
	}
	return of
}

// Attest applies the policy to a record. It returns the code of the refusal, or second if an operator would be warned.
func (t *Trial) Attest(r appliance.Record) (refused appliance.Code, second *appliance.Record) {
	var past journal.Past
	for _, w := range t.windows(r) {
		past.Counts = append(past.Counts, t.counts[w])
	}
	if first, found := t.first[r.UnspendableAddress]; found {
		past.First = &appliance.Record{Attestation: appliance.Attestation{ID: first.id},
			Request: appliance.Request{UnspendableAddress: r.UnspendableAddress, Beneficiary: first.beneficiary}}
	}
	second, err := t.Policy.Decide(r, past)
	if err == nil {
		t.Seen(r)
	}
	return appliance.CodeOf(err), second
}
