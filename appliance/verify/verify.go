// Package verify checks an attestation offline: its hash is the digest of the two addresses, its signature is
// well-formed, and a trusted signer signed it. Claims in the attestation itself are not trusted.
package verify

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// Known is the data to check an attestation against, from the caller and from this machine's appliance.
type Known struct {
	Request    *appliance.Request   // expected addresses; nil takes those in the journal or the file
	Scheme     appliance.SchemeName // expected digest scheme; empty takes the appliance's or the file's
	Signers    []appliance.Address  // trusted signers; empty if none is known
	SignerFrom string               // source of Signers: FromCaller, or a text for people
	Configured *appliance.Scheme    // scheme of this machine's appliance; nil without an appliance
	Recorded   *journal.Entry       // its journal's entry with the attestation's id; nil if none
	Contract   *appliance.Address   // of this machine's quorum; nil if it has none. Signers are the members then
	Threshold  int                  // members that must sign for Contract
	Unknown    error                // why the appliance could not be asked; nil if it was

	Policy   *witness.Policy // its witnesses must have cosigned the checkpoint; nil requires none
	Verifier note.Verifier   // key of the log, used without a Policy; nil if not known
	Proven   *Proven         // the file's proof that the log has the attestation; nil if none
}

// FromCaller is the SignerFrom of signers that the caller named.
const FromCaller = "--signer"

// Names of checks.
const (
	CheckDigest = "digest" // needs the two addresses
	checkSigner = "signer"
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`   // digest, signature, signer, journal, log or witnessed
	Result string `json:"result"` // OK, Bad or Unchecked
	Detail string `json:"detail"` // the result; if Unchecked, how to enable the check
}

// Results of a Check.
const (
	OK        = "ok"
	Bad       = "bad"
	Unchecked = "unchecked"
)

// Verdicts on an attestation. If a check is Bad, the verdict is Bad.
const (
	Good           = "good"            // each check is OK
	SelfConsistent = "self-consistent" // no check is Bad, but some are Unchecked
)

// Verdict returns Good, SelfConsistent or Bad, and the names of the unchecked checks.
func Verdict(checks []Check) (verdict string, unchecked []string) {
	verdict = Good
	for _, c := range checks {
		switch c.Result {
		case Bad:
			verdict = Bad
		case Unchecked:
			unchecked = append(unchecked, c.Name)
			if verdict == Good {
				verdict = SelfConsistent
			}
		}
	}
	return verdict, unchecked
}

// File is an attestation, and possibly the values of its digest. It is an answer of the API, a record of the journal,
// or the output of 'attestd attest'. Missing values are nil or empty.
type File struct {
	appliance.Attestation
	UnspendableAddress *appliance.Address      `json:"unspendableAddress"`
	Beneficiary        *appliance.Address      `json:"beneficiary"`
	Scheme             appliance.SchemeName    `json:"scheme"`
	Domain             *appliance.EIP712Domain `json:"domain"`
	Quorum             *appliance.Quorum       `json:"quorum"` // of a record; an answer has it in the signature
}

// Parse reads a file. It must be unambiguous JSON: duplicate members are an error.
func Parse(text []byte) (f File, err error) {
	if err := wire.ReadSome(text, &f); err != nil {
		return f, err
	}
	if f.SignerAddress == (appliance.Address{}) || f.Hash == (appliance.Digest{}) {
		return f, errors.New("hash, signature and signerAddress are required")
	}
	if (f.UnspendableAddress == nil) != (f.Beneficiary == nil) {
		return f, errors.New("unspendableAddress and beneficiary must be given together")
	}
	if f.Quorum != nil {
		f.Attestation = appliance.Record{Attestation: f.Attestation, Quorum: f.Quorum}.Answer()
	}
	return f, nil
}

// request returns the addresses in the file, or nil.
func (f File) request() *appliance.Request {
	if f.UnspendableAddress == nil {
		return nil
	}
	return &appliance.Request{UnspendableAddress: *f.UnspendableAddress, Beneficiary: *f.Beneficiary}
}

// Check runs the checks in this order: digest, signature, signer, journal if the journal has the attestation, and
// witnessed or log. The last runs with a Policy, a Verifier, or a file that is a proof.
func (k *Known) Check(f File) []Check {
	checks := append([]Check{k.checkDigest(f)}, k.checkSignature(f.Attestation)...)
	if k.Recorded != nil {
		checks = append(checks, k.checkJournal(f.Attestation))
	}
	if k.Policy != nil || k.Verifier != nil || k.Proven != nil && k.Proven.IsProof {
		checks = append(checks, k.checkLogged())
	}
	return checks
}

func (k *Known) checkDigest(f File) Check {
	request, err := k.requestOf(f)
	if err != nil {
		return Check{CheckDigest, Bad, err.Error()}
	}
	if request == nil {
		return Check{CheckDigest, Unchecked, "hash not compared with the addresses: give --unspendable and " +
			"--beneficiary"}
	}
	name, domain, err := k.schemeOf(f)
	if err != nil {
		return Check{CheckDigest, Bad, err.Error()}
	}
	if name == appliance.SchemeEIP712 && domain == nil {
		return Check{CheckDigest, Unchecked, "hash not compared with the addresses in an EIP-712 domain: set " +
			"attestation.eip712 in the configuration"}
	}
	scheme, err := appliance.NewScheme(name, domain)
	if err != nil {
		return Check{CheckDigest, Bad, err.Error()}
	}
	if want := scheme.Digest(*request); want != f.Hash {
		return Check{CheckDigest, Bad, fmt.Sprintf("hash is %s, but %s of %s is %s (for another scheme, give --scheme)",
			f.Hash, name, pairText(*request), want)}
	}
	return Check{CheckDigest, OK, fmt.Sprintf("hash is %s of %s", name, pairText(*request))}
}

// requestOf returns the addresses, which must be the same in all sources that have them. It returns nil if none has
// them.
func (k *Known) requestOf(f File) (request *appliance.Request, err error) {
	said := []struct {
		by      string
		request *appliance.Request
	}{{"the command line", k.Request}, {"the journal", nil}, {"the file", f.request()}}
	if k.Recorded != nil {
		said[1].request = &k.Recorded.Record.Request
	}
	var first string
	for _, s := range said {
		switch {
		case s.request == nil:
		case request == nil:
			request, first = s.request, s.by
		case *request != *s.request:
			return nil, fmt.Errorf("%s has %s, but %s has %s", first, pairText(*request), s.by, pairText(*s.request))
		}
	}
	return request, nil
}

// schemeOf returns the expected scheme, which the file must not contradict. If no other source names a scheme, it takes
// the file's, or the default. That is safe: naming another scheme cannot turn a trusted signature into one for other
// addresses.
func (k *Known) schemeOf(f File) (name appliance.SchemeName, domain *appliance.EIP712Domain, err error) {
	by := ""
	name, domain = f.Scheme, f.Domain
	switch c := k.Configured; {
	case k.Scheme != "" && (c == nil || c.Name != k.Scheme):
		name, by = k.Scheme, "--scheme"
	case k.Scheme == "" && k.Recorded != nil:
		name, domain, by = appliance.SchemeName(k.Recorded.Record.Scheme), k.Recorded.Record.Domain, "the journal"
	case c != nil:
		name, domain, by = c.Name, c.Domain, "the configuration"
	case name == "":
		name = appliance.SchemeNames[0]
	}
	switch {
	case f.Scheme != "" && f.Scheme != name:
		return name, domain,
			fmt.Errorf("the file has scheme %s, but %s has %s (for another scheme, give --scheme)", f.Scheme, by, name)
	case f.Domain != nil && !reflect.DeepEqual(f.Domain, domain):
		return name, domain, fmt.Errorf("the file's EIP-712 domain differs from %s", by)
	}
	return name, domain, nil
}

func pairText(r appliance.Request) string {
	return fmt.Sprintf("(%s, %s)", r.UnspendableAddress, r.Beneficiary)
}

func (k *Known) checkSignature(a appliance.Attestation) []Check {
	if a.Signature.Joined != "" {
		return k.checkQuorum(a)
	}
	recovered, err := a.Signature.Recover(a.Hash)
	if err != nil {
		return []Check{{"signature", Bad, err.Error()}, {checkSigner, Unchecked, "the signature is invalid, so its " +
			"signer cannot be recovered"}}
	}
	return []Check{
		{"signature", OK, "r and s in range, s in the lower half (EIP-2), v is 27 or 28"},
		k.checkSigner(recovered, a),
	}
}

// checkSigner trusts the signers of the caller and of the operator's configuration. A journal record does not prove its
// signer: the holder of the log key can append a record that any key signed.
func (k *Known) checkSigner(recovered appliance.Address, a appliance.Attestation) Check {
	isRecorded := k.Recorded != nil && k.Recorded.Record.Answer() == a
	switch {
	case recovered != a.SignerAddress:
		return Check{checkSigner, Bad, fmt.Sprintf("recovered %s, but signerAddress is %s", recovered, a.SignerAddress)}
	case slices.Contains(k.Signers, recovered):
		return Check{checkSigner, OK, fmt.Sprintf("%s (%s)", recovered, k.SignerFrom)}
	case len(k.Signers) > 0 && (k.SignerFrom == FromCaller || !isRecorded):
		return Check{checkSigner, Bad, fmt.Sprintf("recovered %s, not %s (%s); to trust it, give --signer", recovered,
			anyOf(k.Signers), k.SignerFrom)}
	case isRecorded: // for example, signed by a previous attestor key
		return Check{checkSigner, Unchecked, fmt.Sprintf("signer %s not verified: the configuration does not name "+
			"it, and a record in the journal "+
			"does not prove it; if it was this appliance's attestor key, give --signer", recovered)}
	}
	if k.Proven != nil && (k.Policy != nil || k.Verifier != nil) {
		if _, err := k.logged(); err == nil {
			return Check{checkSigner, Unchecked, fmt.Sprintf("signer %s not verified: the log has the attestation, "+
				"but a holder of the "+
				"log key can append one that any key signed; give --signer with the attestor's address", recovered)}
		}
	}
	why := ""
	if k.Unknown != nil {
		why = fmt.Sprintf(" (%s)", k.Unknown)
	}
	return Check{checkSigner, Unchecked, fmt.Sprintf("signer %s not verified: give --signer%s", recovered, why)}
}

// anyOf lists addresses in a message.
func anyOf(all []appliance.Address) string {
	texts := make([]string, len(all))
	for i, a := range all {
		texts[i] = a.String()
	}
	return strings.Join(texts, " or ")
}

func (k *Known) checkJournal(a appliance.Attestation) Check {
	if k.Recorded.Record.Answer() != a {
		return Check{"journal", Bad, fmt.Sprintf("record %d has this id but is another attestation", k.Recorded.Index)}
	}
	return Check{"journal", OK, fmt.Sprintf("record %d", k.Recorded.Index)}
}
