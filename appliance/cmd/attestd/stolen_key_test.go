package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// honestWitness cosigns each checkpoint of a log that is consistent with the previous one (C2SP tlog-witness).
type honestWitness struct {
	*testing.T
	key  ed25519.PrivateKey
	seen tlog.Tree
}

func (w *honestWitness) typed() []byte {
	return append([]byte{4}, w.key.Public().(ed25519.PublicKey)...)
}

func (w *honestWitness) hash() []byte {
	sum := sha256.Sum256(append([]byte("witness.example\n"), w.typed()...))
	return sum[:4]
}

// policy is the policy of an auditor who requires this witness's cosignature on a log's checkpoints.
func (w *honestWitness) policy(log journal.LogKey) string {
	w.Helper()
	key := fmt.Sprintf("witness.example+%x+%s", w.hash(), base64.StdEncoding.EncodeToString(w.typed()))
	path := filepath.Join(w.TempDir(), "policy")
	if err := os.WriteFile(path, []byte("log "+log.VerifierText+"\nwitness w "+key+"\nquorum w\n"), 0o600); err != nil {
		w.Fatal(err)
	}
	return path
}

// cosign adds the cosignature to a checkpoint, if the consistency proof shows that its tree extends the last one.
func (w *honestWitness) cosign(signed []byte, log journal.LogKey, proof tlog.TreeProof) string {
	w.Helper()
	tree, err := journal.OpenCheckpoint(signed, log.Verifier)
	if err == nil && w.seen.N > 0 {
		err = tlog.CheckTree(proof, tree.N, tree.Hash, w.seen.N, w.seen.Hash)
	}
	if err != nil {
		w.Fatalf("the witness does not cosign: %v", err)
	}
	w.seen = tree
	text, _, _ := strings.Cut(string(signed), "\n\n")
	now := time.Now().Unix()
	signature := ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", now, text))
	raw := append(binary.BigEndian.AppendUint64(w.hash(), uint64(now)), signature...)
	return string(signed) + "— witness.example " + base64.StdEncoding.EncodeToString(raw) + "\n"
}

// rebuilt is a log that a thief has made from the public tiles of another log.
type rebuilt struct{ hashes []tlog.Hash }

func (r *rebuilt) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	read := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		read[i] = r.hashes[at]
	}
	return read, nil
}

func (r *rebuilt) add(t *testing.T, at int64, leaf tlog.Hash) {
	t.Helper()
	hashes, err := tlog.StoredHashesForRecordHash(at, leaf, r)
	if err != nil {
		t.Fatal(err)
	}
	r.hashes = append(r.hashes, hashes...)
}

// rebuild reads the level of the leaves, as GET /log/tile/0/000.p/N serves it.
func rebuild(t *testing.T, h *house, records int64) *rebuilt {
	t.Helper()
	tile, err := h.store.Journal().Tile(t.Context(), tlog.Tile{H: 8, L: 0, N: 0, W: int(records)})
	h.must(err)
	r := &rebuilt{}
	for at := range records {
		r.add(t, at, tlog.Hash(tile[at*tlog.HashSize:(at+1)*tlog.HashSize]))
	}
	return r
}

// A thief of the log key rebuilds the tree from its public tiles, and appends a record that their own key signed. A
// witness that has seen the log cosigns it, since the tree is consistent. Neither a policy nor a verifier key makes the
// record's signer trusted.
func TestARecordAppendedWithAStolenLogKeyIsNotGood(t *testing.T) {
	t.Parallel()
	_, secret, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		t.Fatal(err)
	}
	own, thief := newHouse(t, secret, newSigner(t)), newSigner(t)
	own.attest(5)
	w := &honestWitness{T: t, key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
	published, err := own.store.Journal().Checkpoint(t.Context())
	own.must(err)
	w.cosign(published, own.key, nil)

	tree := rebuild(t, own, w.seen.N)
	request := requestOf(t, devUnspendable, devBeneficiary)
	record := appliance.Record{
		Attestation: thief.attests(t, request, appliance.SchemeKeccak256BN254, nil).Attestation, Request: request,
		Scheme: string(appliance.SchemeKeccak256BN254), KeyID: "key", Time: time.Now().UTC().Truncate(time.Millisecond),
	}
	record.ID = uuid.Must(uuid.NewV7())
	leaf, err := journal.EncodeLeaf(record)
	own.must(err)
	at := w.seen.N
	tree.add(t, at, tlog.RecordHash(leaf))
	root, err := tlog.TreeHash(at+1, tree)
	own.must(err)
	signed, err := journal.SignCheckpoint(tlog.Tree{N: at + 1, Hash: root}, own.key.Signer)
	own.must(err)
	consistency, err := tlog.ProveTree(at+1, w.seen.N, tree)
	own.must(err)
	cosigned := w.cosign(signed, own.key, consistency)
	inclusion, err := tlog.ProveRecord(at+1, at, tree)
	own.must(err)
	proof := journal.InclusionProof{Index: at, TreeSize: at + 1, Checkpoint: cosigned}
	for _, h := range inclusion {
		proof.Hashes = append(proof.Hashes, bytes.Clone(h[:]))
	}

	config := "hsm: { address: \"" + own.signer.address.String() + "\" }\n"
	byPolicy, byKey := []string{"--policy", w.policy(own.key)}, []string{"--verifier-key", own.key.VerifierText}
	const holds = "The log has the attestation, but its signer was not checked: give --signer ADDRESS."
	for _, each := range []struct {
		config, says string
		args         []string
	}{
		{"", "witnessed +ok", byPolicy},
		{"", holds, byPolicy},
		{"", holds, byKey},
		{"", "The attestation is BAD", append([]string{"--signer", own.signer.address.String()}, byPolicy...)},
		{config, "The attestation is BAD", byPolicy},
		{config, "The attestation is BAD", byKey},
	} {
		v := verifier{stdin: []byte(proof.WithLeaf(leaf)), config: each.config, args: each.args}
		status, out, failed := v.run(t)
		if status != exitFailure || !regexp.MustCompile(each.says).MatchString(out) || strings.Contains(out, "is good") {
			t.Errorf("verify %q with %q: exit status %d, want %q:\n%s%s", each.args, each.config, status, each.says, out, failed)
		}
	}
}
