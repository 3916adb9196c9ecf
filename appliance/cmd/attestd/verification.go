package main

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// verification is what an attestation is checked against: what the caller says, and what this machine's appliance does.
// An attestation's own word counts for nothing here.
type verification struct {
	request    *appliance.Request   // nil: as the journal or the file says
	scheme     appliance.SchemeName // empty: as the journal, the configuration or the file says
	signer     *appliance.Address   // nil: nobody that is trusted is known
	signerIs   string               // who says that signer is to be trusted
	configured *appliance.Scheme    // nil: this machine has no appliance
	recorded   *appliance.Entry     // what its journal has under the attestation's id; may be nil
	unknown    error                // why the appliance could not be asked; nil where it was
}

// bySigner is signerIs where the caller named the signer.
const bySigner = "--signer"

// check is one thing that was looked at.
type check struct {
	Name   string `json:"name"`   // digest, signature, signer or journal
	Result string `json:"result"` // ok, bad or unchecked
	Detail string `json:"detail"` // what was found; of what is unchecked, how to have it checked
}

const (
	checkOK        = "ok"
	checkBad       = "bad"
	checkUnchecked = "unchecked"
)

// attestationFile is an attestation, perhaps with what it was made from, as a record and the output of attest have it.
type attestationFile struct {
	appliance.Attestation
	UnspendableAddress *appliance.Address      `json:"unspendableAddress"`
	Beneficiary        *appliance.Address      `json:"beneficiary"`
	Scheme             appliance.SchemeName    `json:"scheme"`
	Domain             *appliance.EIP712Domain `json:"domain"`
}

// parseAttestation reads a file, of which every reader must see the same: no member may be there twice.
func parseAttestation(text []byte) (f attestationFile, err error) {
	if err := wire.ReadSome(text, &f); err != nil {
		return f, err
	}
	if f.SignerAddress == (appliance.Address{}) || f.Hash == (appliance.Digest{}) {
		return f, errors.New("hash, signature and signerAddress are needed")
	}
	if (f.UnspendableAddress == nil) != (f.Beneficiary == nil) {
		return f, errors.New("unspendableAddress and beneficiary go together")
	}
	return f, nil
}

// request is what the file says that it is for; nil where it does not.
func (f attestationFile) request() *appliance.Request {
	if f.UnspendableAddress == nil {
		return nil
	}
	return &appliance.Request{UnspendableAddress: *f.UnspendableAddress, Beneficiary: *f.Beneficiary}
}

func (v *verification) checks(f attestationFile) []check {
	checks := append([]check{v.checkDigest(f)}, v.checkSignature(f.Attestation)...)
	if v.recorded != nil {
		checks = append(checks, v.checkJournal(f.Attestation))
	}
	return checks
}

func (v *verification) checkDigest(f attestationFile) check {
	request, err := v.requestOf(f)
	if err != nil {
		return check{"digest", checkBad, err.Error()}
	}
	if request == nil {
		return check{"digest", checkUnchecked, "whether the hash is of the two addresses: give --unspendable and --beneficiary"}
	}
	name, domain, err := v.schemeOf(f)
	if err != nil {
		return check{"digest", checkBad, err.Error()}
	}
	if name == appliance.SchemeEIP712 && domain == nil {
		return check{"digest", checkUnchecked, "whether the hash is of the two addresses in the EIP-712 domain: set attestation.eip712 in the configuration"}
	}
	scheme, err := appliance.NewScheme(name, domain)
	if err != nil {
		return check{"digest", checkBad, err.Error()}
	}
	if want := scheme.Digest(*request); want != f.Hash {
		return check{"digest", checkBad, fmt.Sprintf("hash is %s, but %s of %s is %s (--scheme takes another)", f.Hash, name, pairText(*request), want)}
	}
	return check{"digest", checkOK, fmt.Sprintf("hash is %s of %s", name, pairText(*request))}
}

// requestOf returns the addresses that all agree on who know them; nil where nobody does.
func (v *verification) requestOf(f attestationFile) (request *appliance.Request, err error) {
	said := []struct {
		by      string
		request *appliance.Request
	}{{"the command line", v.request}, {"the journal", nil}, {"the file", f.request()}}
	if v.recorded != nil {
		said[1].request = &v.recorded.Record.Request
	}
	var first string
	for _, s := range said {
		switch {
		case s.request == nil:
		case request == nil:
			request, first = s.request, s.by
		case *request != *s.request:
			return nil, fmt.Errorf("%s says %s, but %s says %s", first, pairText(*request), s.by, pairText(*s.request))
		}
	}
	return request, nil
}

// schemeOf returns the scheme that must be, which the file may not contradict. Where nobody says which, it is the file's, else
// the default: of what a trusted signer signed, nobody can make the digest of other addresses by naming another scheme.
func (v *verification) schemeOf(f attestationFile) (name appliance.SchemeName, domain *appliance.EIP712Domain, err error) {
	by := ""
	name, domain = f.Scheme, f.Domain
	switch c := v.configured; {
	case v.scheme != "" && (c == nil || c.Name != v.scheme):
		name, by = v.scheme, "--scheme"
	case v.scheme == "" && v.recorded != nil:
		name, domain, by = appliance.SchemeName(v.recorded.Record.Scheme), v.recorded.Record.Domain, "the journal"
	case c != nil:
		name, domain, by = c.Name, c.Domain, "the configuration"
	case name == "":
		name = appliance.SchemeNames[0]
	}
	switch {
	case f.Scheme != "" && f.Scheme != name:
		return name, domain, fmt.Errorf("the file says scheme %s, but %s says %s (--scheme takes another)", f.Scheme, by, name)
	case f.Domain != nil && !reflect.DeepEqual(f.Domain, domain):
		return name, domain, fmt.Errorf("the file says another EIP-712 domain than %s", by)
	}
	return name, domain, nil
}

func pairText(r appliance.Request) string {
	return fmt.Sprintf("(%s, %s)", r.UnspendableAddress, r.Beneficiary)
}

func (v *verification) checkSignature(a appliance.Attestation) []check {
	recovered, err := a.Signature.Recover(a.Hash)
	if err != nil {
		return []check{{"signature", checkBad, err.Error()}, {"signer", checkUnchecked, "nobody can be recovered from such a signature"}}
	}
	return []check{
		{"signature", checkOK, "r and s in range, s in the lower half (EIP-2), v is 27 or 28"},
		v.checkSigner(recovered, a),
	}
}

func (v *verification) checkSigner(recovered appliance.Address, a appliance.Attestation) check {
	isRecorded := v.recorded != nil && v.recorded.Record.Attestation == a
	switch {
	case recovered != a.SignerAddress:
		return check{"signer", checkBad, fmt.Sprintf("recovered %s, but signerAddress is %s", recovered, a.SignerAddress)}
	case v.signer != nil && recovered == *v.signer:
		return check{"signer", checkOK, fmt.Sprintf("%s (%s)", recovered, v.signerIs)}
	case isRecorded && v.signerIs != bySigner: // such as an attestor key of before
		return check{"signer", checkOK, fmt.Sprintf("%s (this appliance's journal has the attestation)", recovered)}
	case v.signer != nil:
		return check{"signer", checkBad, fmt.Sprintf("recovered %s, not %s (%s); --signer names another", recovered, v.signer, v.signerIs)}
	}
	why := ""
	if v.unknown != nil {
		why = fmt.Sprintf(" (%s)", v.unknown)
	}
	return check{"signer", checkUnchecked, fmt.Sprintf("whether %s, who signed, is to be trusted: give --signer%s", recovered, why)}
}

func (v *verification) checkJournal(a appliance.Attestation) check {
	if v.recorded.Record.Attestation != a {
		return check{"journal", checkBad, fmt.Sprintf("record %d, which has this id, is another attestation", v.recorded.Index)}
	}
	return check{"journal", checkOK, fmt.Sprintf("record %d", v.recorded.Index)}
}
