package appliance

import "github.com/google/uuid"

// Trial is a policy that is tried on what was attested in the past, one record after the other in the order of the journal: which would it
// have refused? What it would have refused counts for no cap and is no first beneficiary.
type Trial struct {
	Policy *Policy

	first  map[Address]firstSeen // of each unspendable address, where the policy asks for it
	counts map[capWindow]int64
}

// firstSeen is what is kept of an address's first attestation: a journal may have many.
type firstSeen struct {
	id          uuid.UUID
	beneficiary Address
}

// capWindow is a period of an API key's cap.
type capWindow struct {
	keyID string
	begin int64 // Unix time
	per   Period
}

// Seen takes note of a record that was attested before the policy is tried.
func (t *Trial) Seen(r Record) {
	if t.first == nil {
		t.first, t.counts = make(map[Address]firstSeen), make(map[capWindow]int64)
	}
	if _, found := t.first[r.UnspendableAddress]; !found && t.Policy.asks(r).Unspendable != nil {
		t.first[r.UnspendableAddress] = firstSeen{r.ID, r.Beneficiary}
	}
	for _, w := range t.windows(r) {
		t.counts[w]++
	}
}

func (t *Trial) windows(r Record) (of []capWindow) {
	for _, c := range t.Policy.caps(r.KeyID) {
		begin, _ := c.Per.around(r.Time.In(t.Policy.zone()))
		of = append(of, capWindow{r.KeyID, begin.Unix(), c.Per})
	}
	return of
}

// Attest says what the policy makes of a record: the code with which it is refused, or second, of which an operator is warned.
func (t *Trial) Attest(r Record) (refused Code, second *Record) {
	var past Past
	for _, w := range t.windows(r) {
		past.Counts = append(past.Counts, t.counts[w])
	}
	if first, found := t.first[r.UnspendableAddress]; found {
		past.First = &Record{Attestation: Attestation{ID: first.id}, Request: Request{r.UnspendableAddress, first.beneficiary}}
	}
	second, err := t.Policy.decide(r, past)
	if err == nil {
		t.Seen(r)
	}
	return CodeOf(err), second
}
