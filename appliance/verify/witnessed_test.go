package verify_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/verify"
	"github.com/attestd/attestd/appliance/witness"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// logged is a log with some records, and the proof of one.
type logged struct {
	key   journal.LogKey
	entry journal.Entry
	proof journal.InclusionProof
}

func newLogged(t *testing.T) logged {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	s, err := bolt.Open(filepath.Join(t.TempDir(), "journal"), bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := logged{key: key}
	for range 5 {
		if l.entry, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key")); err != nil {
			t.Fatal(err)
		}
	}
	if l.proof, err = s.Journal().Prove(t.Context(), l.entry.Index); err != nil {
		t.Fatal(err)
	}
	return l
}

// asJSON is the output of 'attestd log prove --output json', with more members.
func (l logged) asJSON(t *testing.T, more map[string]any) string {
	t.Helper()
	members := map[string]any{"leaf": l.entry.Leaf, "proof": l.proof}
	for name, value := range more {
		members[name] = value
	}
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// answer has the members of GET /functions/v1/attest/{id} besides leaf and proof.
func (l logged) answer(a appliance.Attestation) map[string]any {
	return map[string]any{"id": a.ID, "hash": a.Hash, "signature": a.Signature, "signerAddress": a.SignerAddress}
}

func TestAnAttestationIsCheckedByAPolicy(t *testing.T) {
	t.Parallel()
	l, other := newLogged(t), newLogged(t)
	policyOf := func(text string) *witness.Policy {
		p, err := witness.ParsePolicy([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	own := policyOf("log " + l.key.VerifierText + "\nquorum none\n")
	moved := l
	moved.proof.Index--
	swapped := l
	swapped.entry.Leaf = other.entry.Leaf
	tests := map[string]struct {
		text    string
		policy  *witness.Policy // nil: only the log's key is known
		verdict string
		says    string // of the last check
	}{
		"a proof with its leaf":         {l.proof.WithLeaf(l.entry.Leaf), own, verify.Good, "record 4 of the 5 records of example.com/log+"},
		"a proof in JSON":               {l.asJSON(t, nil), own, verify.Good, "record 4"},
		"the answer of the API":         {l.asJSON(t, l.answer(l.entry.Record.Attestation)), own, verify.SelfConsistent, "record 4"},
		"a proof by the log's key":      {l.proof.WithLeaf(l.entry.Leaf), nil, verify.Good, "record 4 of the 5 records of example.com/log+"},
		"another log's, by that key":    {other.proof.WithLeaf(other.entry.Leaf), nil, verify.Bad, "checkpoint: "},
		"no proof for that key":         {string(l.entry.Leaf), nil, verify.SelfConsistent, "the file lacks a proof"},
		"an attestation alone":          {string(l.entry.Leaf), own, verify.SelfConsistent, "the file lacks a proof"},
		"another log":                   {other.proof.WithLeaf(other.entry.Leaf), own, verify.Bad, "not signed by a log of the policy"},
		"another place":                 {moved.proof.WithLeaf(l.entry.Leaf), own, verify.Bad, "not in the tree"},
		"another leaf":                  {swapped.asJSON(t, nil), own, verify.Bad, "not in the tree"},
		"a checkpoint of another log":   {strings.Replace(l.asJSON(t, nil), jsonOf(t, l.proof.Checkpoint), jsonOf(t, other.proof.Checkpoint), 1), own, verify.Bad, "not signed by a log of the policy"},
		"a checkpoint that was changed": {strings.Replace(l.proof.WithLeaf(l.entry.Leaf), "\n5\n", "\n6\n", 1), own, verify.Bad, "not signed by a log of the policy"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, proven, err := verify.ParseProven([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			k := verify.Known{Policy: test.policy, Proven: proven, Signers: []appliance.Address{l.entry.Record.SignerAddress}, SignerFrom: verify.FromCaller}
			name := "witnessed"
			if test.policy == nil {
				k.Verifier, name = l.key.Verifier, "log"
			}
			checks := k.Check(f)
			last := checks[len(checks)-1]
			if verdict, _ := verify.Verdict(checks); verdict != test.verdict || last.Name != name || !strings.Contains(last.Detail, test.says) {
				t.Errorf("%s: %+v, want %s and %q", verdict, checks, test.verdict, test.says)
			}
		})
	}
}

// A log accepts all records that its key appends, so inclusion does not make a signer trusted.
func TestALogDoesNotSayWhoMaySign(t *testing.T) {
	t.Parallel()
	l := newLogged(t)
	f, proven, err := verify.ParseProven([]byte(l.proof.WithLeaf(l.entry.Leaf)))
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]verify.Known{
		"no log":      {Proven: proven},
		"the log":     {Proven: proven, Verifier: l.key.Verifier},
		"the journal": {Proven: proven, Recorded: &l.entry},
		"the journal of a configured appliance": {
			Proven: proven, Recorded: &l.entry, Signers: []appliance.Address{{1}}, SignerFrom: "this appliance's, hsm.address",
		},
	} {
		checks := k.Check(f)
		verdict, unchecked := verify.Verdict(checks)
		if verdict != verify.SelfConsistent || !slices.Contains(unchecked, "signer") || !strings.Contains(checks[2].Detail, "give --signer") {
			t.Errorf("%s: %s %q %+v", name, verdict, unchecked, checks)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFilesThatProveNoAttestation(t *testing.T) {
	t.Parallel()
	l, other := newLogged(t), newLogged(t)
	event, err := journal.NewContinuation(l.key, []byte(l.proof.Checkpoint), nil, "a test", "root", l.entry.Time())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := journal.EncodeEvent(event)
	if err != nil {
		t.Fatal(err)
	}
	for fault, text := range map[string]string{
		"run: attestd log prove ID --witnessed":          l.proof.String(),
		"it proves an event":                             l.proof.WithLeaf(leaf),
		"leaf: record":                                   l.proof.WithLeaf([]byte("{}")),
		"the leaf belongs to another attestation":        l.asJSON(t, l.answer(other.entry.Record.Attestation)),
		"hash, signature and signerAddress are required": "{}",
		"tlog-proof: the checkpoint is missing":          "c2sp.org/tlog-proof@v1\nindex 1\n",
		"the body must be one JSON object":               "hello",
	} {
		if _, _, err := verify.ParseProven([]byte(text)); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: error %v", fault, err)
		}
	}
}
