package api_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

func TestAnAttestationIsAnsweredAsTheInterfaceSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.attest("X-Request-Id", "order-7.b")
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" ||
		a.header.Get("X-Request-Id") != "order-7.b" {
		t.Fatal(a, a.header)
	}
	var members map[string]json.RawMessage
	r.must(json.Unmarshal(a.body, &members))
	for _, name := range []string{"id", "hash", "signature", "signerAddress"} {
		if _, has := members[name]; !has {
			t.Errorf("no %s in %s", name, a)
		}
	}
	if len(members) != 4 {
		t.Errorf("other members in %s", a)
	}
	attestation := r.parse(a)
	r.must(attestation.Verify())
	if standard, err := json.Marshal(attestation); err != nil || string(standard) != string(a.body) {
		t.Errorf("%s\nencoding/json writes %s, %v", a, standard, err)
	}
	request, err := api.ParseRequest([]byte(good))
	r.must(err)
	if attestation.Hash != r.attestor.Scheme.Digest(request) ||
		attestation.SignerAddress != r.attestor.Signer.Address() {
		t.Errorf("of other addresses or another key: %s", a)
	}
	if r.size() != 1 {
		t.Error("it is not in the journal")
	}
}

func (r *rig) parse(a answer) appliance.Attestation {
	r.Helper()
	if a.status != 200 {
		r.Fatal(a)
	}
	var attestation appliance.Attestation
	r.must(json.Unmarshal(a.body, &attestation))
	return attestation
}

func TestUsualWaysToSayJSONAreAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	spaced := strings.NewReplacer(",", " ,\n\t", ":", " : ").Replace(good) + "\r\n"
	escaped := strings.Replace(good, "beneficiary", `benefici\u0061ry`, 1)
	full := good + strings.Repeat(" ", 16<<10-len(good))
	for _, body := range []string{good, spaced, escaped, full,
		strings.ReplaceAll(good, beneficiary, strings.ToLower(beneficiary))} {
		for _, kind := range []string{"application/json", "application/json; charset=utf-8",
			"Application/JSON;charset=UTF-8", `application/json; charset="utf-8"`} {
			if a := r.do("POST", attestPath, body, "X-API-Key", r.token, "Content-Type", kind); a.status != 200 {
				t.Errorf("%s of %d bytes: %s", kind, len(body), a)
			}
		}
	}
}

func TestReadingBackProvesTheRecordFromTheAnswerAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 5 {
		r.attest()
	}
	made := r.parse(r.attest())
	r.attest()
	a := r.do("GET", attestPath+"/"+made.ID.String(), "", "x-api-key", r.token)
	var back struct {
		appliance.Attestation
		UnspendableAddress, Beneficiary, Scheme string
		Time                                    time.Time
		Leaf                                    []byte
		Proof                                   struct {
			Index, TreeSize int64
			LeafHash        []byte
			Hashes          [][]byte
			Checkpoint      string
		}
	}
	r.must(json.Unmarshal(a.body, &back))
	if back.Attestation != made || back.UnspendableAddress != unspendable || back.Beneficiary != beneficiary ||
		back.Scheme != "keccak256-bn254" || back.Time.IsZero() {
		t.Errorf("it is not what was attested: %s", a)
	}
	record, err := journal.DecodeLeaf(back.Leaf)
	if err != nil || record.Attestation != made {
		t.Errorf("the leaf is of another: %s, %v", back.Leaf, err)
	}

	var about struct {
		Log struct{ Origin, VerifierKey string }
	}
	r.must(json.Unmarshal(r.do("GET", "/functions/v1/attestor", "").body, &about))
	verifier, err := note.NewVerifier(about.Log.VerifierKey)
	r.must(err)
	opened, err := note.Open([]byte(back.Proof.Checkpoint), note.VerifierList(verifier))
	r.must(err)
	lines := strings.Split(opened.Text, "\n")
	root, err := tlog.ParseHash(lines[2])
	r.must(err)
	if lines[0] != about.Log.Origin || lines[1] != fmt.Sprint(back.Proof.TreeSize) {
		t.Errorf("checkpoint of another log or tree: %q", opened.Text)
	}
	var path tlog.RecordProof
	for _, h := range back.Proof.Hashes {
		path = append(path, tlog.Hash(h))
	}
	if err := tlog.CheckRecord(path, back.Proof.TreeSize, root, back.Proof.Index,
		tlog.RecordHash(back.Leaf)); err != nil {
		t.Error(err)
	}
}

func TestAnotherAPIKeysAttestationIsNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	made := r.parse(r.attest())
	theirs, _ := r.newKey(appliance.KeyRequest{})
	a := r.do("GET", attestPath+"/"+made.ID.String(), "", "x-api-key", theirs)
	never := r.do("GET", attestPath+"/"+uuid.NewString(), "", "x-api-key", theirs)
	if a.status != 404 || a.problem().Code != appliance.CodeNotFound || never.status != 404 {
		t.Errorf("%s, and one that never was: %s", a, never)
	}
}

// Once an address is screened, neither a retry nor GET returns its signature.
func TestAScreenedAttestationCannotBeReadBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	again := func() answer {
		return r.do("POST", attestPath, good, "x-api-key", r.token, "Content-Type", "application/json",
			"Idempotency-Key", "k")
	}
	path := attestPath + "/" + r.parse(again()).ID.String()
	back := func() answer { return r.do("GET", path, "", "x-api-key", r.token) }
	if a := back(); a.status != 200 {
		t.Fatal(a)
	}
	list, err := policy.ParseScreening(strings.NewReader(beneficiary))
	r.must(err)
	r.attestor.Govern(&policy.Policy{Screening: list})
	for name, a := range map[string]answer{"a repeat": again(), "reading back": back()} {
		if a.status != 403 || a.problem().Code != appliance.CodeScreened ||
			strings.Contains(string(a.body), "signature") {
			t.Errorf("%s: %s", name, a)
		}
	}
	r.attestor.Govern(nil)
	if a := back(); a.status != 200 {
		t.Error(a)
	}
}

func TestAnyoneLearnsWhoSigns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.do("GET", "/functions/v1/attestor", "")
	who := fmt.Sprintf(`"signerAddress":%q,"publicKey":"0x%s"`, r.attestor.Signer.Address(),
		hex.EncodeToString(r.attestor.Signer.PublicKey()))
	want := fmt.Sprintf(
		`{%s,"scheme":"keccak256-bn254","keys":[{"state":"active","default":true,%s}],"log":{"origin":"test.example/log","verifierKey":%q}}`,
		who, who, r.log.VerifierText)
	if a.status != 200 || string(a.body) != want {
		t.Errorf("%s\nwant %s", a, want)
	}
}

func TestAnIdempotencyKeyMakesOneAttestationEvenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const callers = 24
	var wg sync.WaitGroup
	answers := make([]answer, callers)
	for i := range callers {
		wg.Go(func() { answers[i] = r.attest("Idempotency-Key", "order-7") })
	}
	wg.Wait()
	replayed := 0
	for _, a := range answers {
		if a.status != 200 || string(a.body) != string(answers[0].body) {
			t.Errorf("%s, and another caller got %s", a, answers[0])
		}
		if a.header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	if replayed != callers-1 || r.size() != 1 {
		t.Errorf("%d replays and %d records, want %d and 1", replayed, r.size(), callers-1)
	}
	other := strings.Replace(good, beneficiary, strings.ToLower(unspendable), 1)
	a := r.do("POST", attestPath, other, "x-api-key", r.token, "Content-Type", "application/json", "Idempotency-Key",
		"order-7")
	if a.status != 422 || a.problem().Code != appliance.CodeIdempotencyMismatch || r.size() != 1 {
		t.Errorf("another request under the same key: %s", a)
	}
	if a := r.attest("Idempotency-Key", "order-8"); a.status != 200 || a.header.Get("Idempotent-Replayed") != "" ||
		r.size() != 2 {
		t.Errorf("another key: %s", a)
	}
}
