package appliance_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// cosigned is an attestation by a software key.
func cosigned(t *testing.T, hash appliance.Digest) appliance.Attestation {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	rsv, err := crypto.Sign(hash[:], key)
	if err != nil {
		t.Fatal(err)
	}
	return appliance.Attestation{
		ID: uuid.New(), Hash: hash, SignerAddress: appliance.Address(crypto.PubkeyToAddress(key.PublicKey)),
		Signature: appliance.Signature{R: [32]byte(rsv[:32]), S: [32]byte(rsv[32:64]), V: rsv[64] + 27},
	}
}

// quorumRecord is a record that n members have signed.
func quorumRecord(t *testing.T, n int) appliance.Record {
	t.Helper()
	request := appliance.Request{UnspendableAddress: appliance.Address{1}, Beneficiary: appliance.Address{2}}
	scheme, err := appliance.NewScheme(appliance.SchemeNames[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	hash := scheme.Digest(request)
	own := cosigned(t, hash)
	all := []appliance.MemberSignature{own.By("here")}
	for range n - 1 {
		all = append(all, cosigned(t, hash).By("there"))
	}
	return appliance.Record{
		Attestation: own, Request: request, Scheme: string(scheme.Name), KeyID: "key",
		Quorum: appliance.NewQuorum(appliance.Address{0xc0}, all),
	}
}

func TestAQuorumsRecordIsALeafAndAnAnswer(t *testing.T) {
	r := quorumRecord(t, 3)
	leaf, err := journal.EncodeLeaf(r)
	if err != nil {
		t.Fatal(err)
	}
	read, err := journal.DecodeLeaf(leaf)
	if err != nil || read.Verify() != nil {
		t.Fatalf("%v, %v: %s", err, read.Verify(), leaf)
	}
	text, err := json.Marshal(read.Answer())
	if err != nil {
		t.Fatal(err)
	}
	var answer appliance.Attestation
	if err := json.Unmarshal(text, &answer); err != nil || answer != r.Answer() {
		t.Errorf("%v: %s", err, text)
	}
	if len(answer.Signature.Joined) != 3*65 || answer.SignerAddress != r.Quorum.Contract || answer.Verify() == nil {
		t.Errorf("the answer is not of a quorum: %s", text)
	}
}

func TestAQuorumNeedsDifferentMembers(t *testing.T) {
	r := quorumRecord(t, 3)
	a := r.Answer()
	members, err := a.Signers()
	if err != nil || a.VerifyQuorum(members, 3) != nil {
		t.Fatal(err)
	}
	if err := a.VerifyQuorum(members, 4); err == nil {
		t.Error("three members are taken for four")
	}
	if err := a.VerifyQuorum(members[1:], 2); err == nil {
		t.Error("a signer who is no member is accepted")
	}
	part := func(i int) string { return a.Signature.Joined[65*i : 65*(i+1)] }
	for name, joined := range map[string]string{
		"one twice": part(0) + part(0), "another order": part(1) + part(0), "a byte more": part(0) + part(1) + "x",
		"a byte less": part(0) + part(1)[:64],
		"high s":      part(0) + part(1)[:32] + strings.Repeat("\xff", 32) + part(1)[64:],
		"v of 0":      part(0)[:64] + "\x00" + part(1),
	} {
		bad := a
		bad.Signature.Joined = joined
		if err := bad.VerifyQuorum(members, 1); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestAQuorumsRecordIsAudited(t *testing.T) {
	for name, spoil := range map[string]func(r *appliance.Record){
		"another signer":     func(r *appliance.Record) { r.Quorum.Signatures[0].SignerAddress[0] ^= 1 },
		"another digest":     func(r *appliance.Record) { r.Quorum.Signatures[0].R[0] ^= 1 },
		"another order":      func(r *appliance.Record) { slices.Reverse(r.Quorum.Signatures) },
		"one twice":          func(r *appliance.Record) { r.Quorum.Signatures[1] = r.Quorum.Signatures[0] },
		"without its own":    func(r *appliance.Record) { r.Attestation = cosigned(t, r.Hash) },
		"none":               func(r *appliance.Record) { r.Quorum.Signatures = nil },
		"of another attempt": func(r *appliance.Record) { r.ID = uuid.New() },
	} {
		r := quorumRecord(t, 3)
		spoil(&r)
		if r.Verify() == nil {
			t.Errorf("%s is not found", name)
		}
	}
}
