package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/verify"
)

// signer is an untrusted key.
type signer struct {
	address appliance.Address
	sign    func(appliance.Digest) appliance.Signature
}

func newSigner(t *testing.T) signer {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return signer{appliance.Address(crypto.PubkeyToAddress(key.PublicKey)), func(d appliance.Digest) appliance.Signature {
		rsv, err := crypto.Sign(d[:], key)
		if err != nil {
			t.Fatal(err)
		}
		return appliance.Signature{R: [32]byte(rsv[:32]), S: [32]byte(rsv[32:64]), V: rsv[64] + 27}
	}}
}

// attests returns the output of 'attestd attest' for an appliance with the signer's key.
func (s signer) attests(t *testing.T, req appliance.Request, name appliance.SchemeName, domain *appliance.EIP712Domain) attested {
	t.Helper()
	scheme, err := appliance.NewScheme(name, domain)
	if err != nil {
		t.Fatal(err)
	}
	hash := scheme.Digest(req)
	return attested{appliance.Attestation{ID: uuid.New(), Hash: hash, Signature: s.sign(hash), SignerAddress: s.address}, req, name, domain}
}

// An attestation is good only if a trusted signer signed it, and its digest is of the expected addresses. All claims in
// the file itself can be forged.
func TestVerifyTellsTheTruth(t *testing.T) {
	t.Parallel()
	pair, swapped := requestOf(t, devUnspendable, devBeneficiary), requestOf(t, devBeneficiary, devUnspendable)
	own, stranger := newSigner(t), newSigner(t)
	home, elsewhere := &appliance.EIP712Domain{Name: "ours", ChainID: 1}, &appliance.EIP712Domain{Name: "theirs", ChainID: 1}
	const usual, other, typed = appliance.SchemeKeccak256BN254, appliance.SchemeKeccak256, appliance.SchemeEIP712
	addresses := []string{"--unspendable", devUnspendable, "--beneficiary", devBeneficiary}
	trusting := func(s signer, more ...string) []string {
		return append([]string{"--signer", s.address.String()}, more...)
	}
	madeUp := appliance.Digest{1, 2, 3}
	forged := appliance.Attestation{ID: uuid.New(), Hash: madeUp, Signature: stranger.sign(madeUp), SignerAddress: stranger.address}
	ownFile, strangersFile := own.attests(t, pair, usual, nil), stranger.attests(t, pair, usual, nil)
	misnamed := strangersFile
	misnamed.SignerAddress = own.address
	renamed := ownFile
	renamed.SignerAddress = stranger.address
	ofNobody := ownFile.Attestation
	ofNobody.Signature.V = 26
	config := "hsm: { address: \"" + own.address.String() + "\" }\n"
	typedConfig := config + "attestation: { scheme: eip712, eip712: { name: ours, chain_id: 1 } }\n"

	for name, test := range map[string]verdictTest{
		"all of it, by a signer the caller names": {file: ownFile, args: trusting(own), verdict: verify.Good, results: "ok, ok, ok"},
		"all of it, by the appliance's signer":    {file: ownFile, config: config, verdict: verify.Good, results: "ok, ok, ok"},
		"the API's answer, with the addresses":    {file: ownFile.Attestation, args: trusting(own, addresses...), verdict: verify.Good, results: "ok, ok, ok"},
		"the API's answer, on the appliance":      {file: ownFile.Attestation, config: config, args: addresses, verdict: verify.Good, results: "ok, ok, ok"},
		"another scheme, which the caller names":  {file: own.attests(t, pair, other, nil), config: config, args: []string{"--scheme", string(other)}, verdict: verify.Good, results: "ok, ok, ok"},
		"typed data of the appliance":             {file: own.attests(t, pair, typed, home), config: typedConfig, verdict: verify.Good, results: "ok, ok, ok"},
		"typed data, anywhere":                    {file: own.attests(t, pair, typed, home), args: trusting(own, "--scheme", string(typed)), verdict: verify.Good, results: "ok, ok, ok"},
		"another appliance's, which is trusted":   {file: strangersFile, config: config, args: trusting(stranger), verdict: verify.Good, results: "ok, ok, ok"},

		"a random key over a made-up hash": {file: forged, verdict: verify.SelfConsistent, results: "unchecked, ok, unchecked", says: []string{"give --unspendable and --beneficiary", "give --signer"}},
		"a stranger's, who names himself":  {file: strangersFile, verdict: verify.SelfConsistent, results: "ok, ok, unchecked", says: []string{"give --signer (this machine has no appliance)"}},
		"typed data of an unknown domain":  {file: own.attests(t, pair, typed, home).Attestation, args: trusting(own, append(addresses, "--scheme", string(typed))...), verdict: verify.SelfConsistent, results: "unchecked, ok, ok", says: []string{"attestation.eip712"}},
		"without the addresses":            {file: ownFile.Attestation, args: trusting(own), verdict: verify.SelfConsistent, results: "unchecked, ok, ok"},

		"a random key, on the appliance":           {file: forged, config: config, verdict: verify.Bad, results: "unchecked, ok, bad", says: []string{"this appliance's", own.address.String()}},
		"a random key, and a signer that is named": {file: forged, args: trusting(own), verdict: verify.Bad, results: "unchecked, ok, bad"},
		"a stranger's under the signer's name":     {file: misnamed, args: trusting(own), verdict: verify.Bad, results: "ok, ok, bad", says: []string{"recovered " + stranger.address.String()}},
		"the signer's under a stranger's name":     {file: renamed, args: trusting(own), verdict: verify.Bad, results: "ok, ok, bad", says: []string{"signerAddress is " + stranger.address.String()}},
		"the appliance's, where another is named":  {file: ownFile, config: config, args: trusting(stranger), verdict: verify.Bad, results: "ok, ok, bad"},
		"addresses that are not the caller's":      {file: own.attests(t, swapped, usual, nil), args: trusting(own, addresses...), verdict: verify.Bad, results: "bad, ok, ok", says: []string{"the command line has", "the file has"}},
		"a hash of other addresses":                {file: attested{own.attests(t, swapped, usual, nil).Attestation, pair, usual, nil}, args: trusting(own), verdict: verify.Bad, results: "bad, ok, ok"},
		"the API's answer, for other addresses":    {file: own.attests(t, swapped, usual, nil).Attestation, args: trusting(own, addresses...), verdict: verify.Bad, results: "bad, ok, ok"},
		"another scheme than the appliance's":      {file: own.attests(t, pair, other, nil), config: config, verdict: verify.Bad, results: "bad, ok, ok", says: []string{"the file has scheme keccak256, but the configuration has keccak256-bn254"}},
		"another domain than the appliance's":      {file: own.attests(t, pair, typed, elsewhere), config: typedConfig, verdict: verify.Bad, results: "bad, ok, ok", says: []string{"EIP-712 domain differs"}},
		"a scheme that does not exist":             {file: attested{ownFile.Attestation, pair, "rot13", nil}, args: trusting(own), verdict: verify.Bad, results: "bad, ok, ok", says: []string{`unknown digest scheme \"rot13\"`}},
		"no signature of anybody":                  {file: ofNobody, args: trusting(own), verdict: verify.Bad, results: "unchecked, bad, unchecked", says: []string{"v is 26"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// verdictTest is the expected result of 'attestd verify' for a file.
type verdictTest struct {
	file    any
	config  string // empty: the machine has no appliance
	args    []string
	verdict string
	results string   // of digest, signature and signer
	says    []string // in the result's details
}

func (test verdictTest) run(t *testing.T) {
	text, err := json.Marshal(test.file)
	if err != nil {
		t.Fatal(err)
	}
	v := verifier{stdin: text, config: test.config, args: test.args}
	status, out, errors := v.run(t, "--output", "json")
	var got struct {
		Good    bool
		Verdict string
		Checks  []verify.Check
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Checks) != 3 {
		t.Fatalf("%v: %s%s", err, out, errors)
	}
	results := got.Checks[0].Result + ", " + got.Checks[1].Result + ", " + got.Checks[2].Result
	if got.Verdict != test.verdict || got.Good != (test.verdict == verify.Good) || results != test.results {
		t.Errorf("want %s of %s:\n%s", test.verdict, test.results, out)
	}
	for _, want := range test.says {
		if !strings.Contains(out, want) {
			t.Errorf("does not say %s:\n%s", want, out)
		}
	}
	partial, _, _ := v.run(t, "--allow-partial")
	if (status == exitOK) != (test.verdict == verify.Good) || (partial == exitOK) != (test.verdict != verify.Bad) {
		t.Errorf("exit status %d, and %d with --allow-partial", status, partial)
	}
}

// An ambiguous or incomplete file is refused.
func TestVerifyRefusesWhatIsNoAttestation(t *testing.T) {
	t.Parallel()
	pair := requestOf(t, devUnspendable, devBeneficiary)
	file, err := json.Marshal(newSigner(t).attests(t, pair, appliance.SchemeKeccak256BN254, nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ old, to, says string }{
		"nothing":               {string(file), "", "the file is empty"},
		"two objects":           {string(file), string(file) + string(file), "must be one JSON object"},
		"a list":                {string(file), "[" + string(file) + "]", "must be one JSON object"},
		"a member twice":        {`{"id"`, `{"beneficiary":"` + devUnspendable + `","id"`, "beneficiary occurs twice"},
		"a member twice within": {`"v":`, `"v":27,"v":`, "signature.v occurs twice"},
		"one address alone":     {`"beneficiary"`, `"Beneficiary"`, "unspendableAddress and beneficiary must be given together"},
		"half a proof":          {string(file), "c2sp.org/tlog-proof@v1\nindex 1\n", "tlog-proof: the checkpoint is missing"},
		"no JSON and no proof":  {string(file), "hello", "must be one JSON object, or a C2SP tlog-proof, whose first line is"},
		"no hash":               {`"hash"`, `"Hash"`, "hash, signature and signerAddress are required"},
		"a typo in an address":  {"0x5aAeb", "0x5AAeb", "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(string(file), test.old, test.to, 1)
			if text == string(file) {
				t.Fatal("nothing was changed")
			}
			status, out, errors := verifier{stdin: []byte(text)}.run(t, "--allow-partial")
			if status != exitFailure || out != "" || !strings.Contains(errors, "not an attestation: ") || !strings.Contains(errors, test.says) {
				t.Errorf("status %d, %s%s", status, out, errors)
			}
		})
	}
}

// An invalid configuration is an error, since it might name the trusted signer.
func TestVerifyDoesNotPassOverABrokenConfiguration(t *testing.T) {
	t.Parallel()
	file, err := json.Marshal(newSigner(t).attests(t, requestOf(t, devUnspendable, devBeneficiary), appliance.SchemeKeccak256BN254, nil))
	if err != nil {
		t.Fatal(err)
	}
	status, out, errors := verifier{stdin: file, config: "hsm: { address_: 0x12 }\n"}.run(t, "--allow-partial")
	if status != exitFailure || out != "" || !strings.Contains(errors, "did you mean hsm.address?") {
		t.Errorf("status %d, %s%s", status, out, errors)
	}
}

// verifier is a machine on which an attestation is verified, without a daemon.
type verifier struct {
	stdin  []byte
	config string // empty: attestd is not set up
	args   []string
}

func (v verifier) run(t *testing.T, more ...string) (status int, out, errors string) {
	t.Helper()
	dir := t.TempDir()
	environ := []string{"ATTESTD_DATA_DIR=" + dir, "ATTESTD_ADMIN_SOCKET=" + filepath.Join(dir, "admin.sock")}
	if v.config != "" {
		path := filepath.Join(dir, "attestd.yaml")
		if err := os.WriteFile(path, []byte(v.config), 0o600); err != nil {
			t.Fatal(err)
		}
		environ = append(environ, "ATTESTD_CONFIG="+path)
	}
	var stdout, stderr bytes.Buffer
	args := append(append([]string{"verify", "-"}, v.args...), more...)
	status = run(t.Context(), terminal{in: bytes.NewReader(v.stdin), out: &stdout, err: &stderr, environ: environ}, args)
	return status, stdout.String(), stderr.String()
}

func requestOf(t *testing.T, unspendable, beneficiary string) appliance.Request {
	t.Helper()
	req, err := parsePair(unspendable, beneficiary)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// The attestation is printed even if its scheme cannot be determined: the API of the hosted service does not report
// one.
func TestAttestPrintsWhatWasMadeWithoutItsScheme(t *testing.T) {
	t.Parallel()
	made := newSigner(t).attests(t, requestOf(t, devUnspendable, devBeneficiary), appliance.SchemeKeccak256BN254, nil)
	for name, attestor := range map[string]http.HandlerFunc{
		"no such route":  http.NotFound,
		"another scheme": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"scheme":"keccak256"}`) },
		"an unknown one": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"scheme":"rot13"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("POST /functions/v1/attest", func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(made.Attestation)
			})
			mux.HandleFunc("GET /functions/v1/attestor", attestor)
			server := httptest.NewServer(mux)
			defer server.Close()
			var stdout, stderr bytes.Buffer
			status := run(t.Context(), terminal{in: strings.NewReader("token"), out: &stdout, err: &stderr}, []string{
				"attest", "--url", server.URL, "--api-key-file", "-", "--unspendable", devUnspendable, "--beneficiary", devBeneficiary,
			})
			var got attested
			if err := json.Unmarshal(stdout.Bytes(), &got); err != nil || status != exitOK {
				t.Fatalf("status %d, %v: %s%s", status, err, stdout.String(), stderr.String())
			}
			if want := (attested{Attestation: made.Attestation, Request: made.Request}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if !strings.Contains(stderr.String(), "omits the digest scheme") {
				t.Errorf("does not say that the scheme is left out: %s", stderr.String())
			}
		})
	}
}
