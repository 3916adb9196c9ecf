package console_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api/graphql/clienttest"
	"github.com/attestd/attestd/appliance/journal"
)

// vector is a proof with Go's verdict. The browser must reach the same verdict; see tlog_test.mjs.
type vector struct {
	What  string `json:"what"`
	Proof string `json:"proof"` // a C2SP tlog-proof
	Leaf  string `json:"leaf"`  // hex
	Good  bool   `json:"good"`
}

// The browser's check of inclusion agrees with Go's, for each record of small trees and for tampered proofs.
func TestTheBrowserJudgesProofsAsGoDoes(t *testing.T) {
	t.Parallel()
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	rig := newProofRig(t)
	var vectors []vector
	for size := int64(1); size <= 20; size++ {
		for index := range size {
			proof, leaf := rig.prove(index, size)
			vectors = append(vectors, rig.judged(fmt.Sprintf("record %d of %d", index, size), proof.String(), leaf))
		}
	}
	for _, of := range [][2]int64{{0, 1}, {0, 2}, {3, 7}, {6, 7}, {8, 17}, {16, 17}} {
		proof, leaf := rig.prove(of[0], of[1])
		vectors = append(vectors, rig.tampered(proof, leaf)...)
	}
	text, err := json.Marshal(map[string]any{"verifierKey": rig.verifierKey, "vectors": vectors})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "vectors.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	clienttest.Node(t, "tlog_test.mjs", file)
}

// proofRig is a log of twenty records with a fixed key.
type proofRig struct {
	testing.TB
	signer      note.Signer
	verifier    note.Verifier
	verifierKey string
	hashes      []tlog.Hash
}

func newProofRig(t testing.TB) *proofRig {
	t.Helper()
	skey, vkey, err := note.GenerateKey(bytes.NewReader(bytes.Repeat([]byte{7}, 32)), "example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	rig := &proofRig{TB: t, verifierKey: vkey}
	if rig.signer, err = note.NewSigner(skey); err != nil {
		t.Fatal(err)
	}
	if rig.verifier, err = note.NewVerifier(vkey); err != nil {
		t.Fatal(err)
	}
	for i := range int64(20) {
		stored, err := tlog.StoredHashes(i, leafOf(i), rig)
		if err != nil {
			t.Fatal(err)
		}
		rig.hashes = append(rig.hashes, stored...)
	}
	return rig
}

func leafOf(index int64) []byte { return fmt.Appendf(nil, `{"id":%d,"name":"Zoë"}`, index) }

// ReadHashes implements tlog.HashReader.
func (rig *proofRig) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = rig.hashes[index]
	}
	return found, nil
}

func (rig *proofRig) prove(index, size int64) (journal.InclusionProof, []byte) {
	rig.Helper()
	root, err := tlog.TreeHash(size, rig)
	if err != nil {
		rig.Fatal(err)
	}
	hashes, err := tlog.ProveRecord(size, index, rig)
	if err != nil {
		rig.Fatal(err)
	}
	signed, err := journal.SignCheckpoint(tlog.Tree{N: size, Hash: root}, rig.signer)
	if err != nil {
		rig.Fatal(err)
	}
	proof := journal.InclusionProof{Index: index, TreeSize: size, Checkpoint: string(signed)}
	for _, h := range hashes {
		proof.Hashes = append(proof.Hashes, h[:])
	}
	return proof, leafOf(index)
}

// judged returns a proof with Go's verdict.
func (rig *proofRig) judged(what, proof string, leaf []byte) vector {
	p, _, err := journal.ParseProof([]byte(proof))
	if err == nil {
		err = p.Verify(leaf, rig.verifier)
	}
	return vector{What: what, Proof: proof, Leaf: hex.EncodeToString(leaf), Good: err == nil}
}

// tampered returns variations of a good proof that an attacker could make. Go refuses each.
func (rig *proofRig) tampered(good journal.InclusionProof, leaf []byte) (made []vector) {
	add := func(what string, leaf []byte, change func(p *journal.InclusionProof)) {
		p := good
		p.Hashes = slices.Clone(good.Hashes)
		change(&p)
		v := rig.judged(fmt.Sprintf("record %d of %d: %s", good.Index, good.TreeSize, what), p.String(), leaf)
		if v.Good {
			rig.Errorf("%s: Go takes it", v.What)
		}
		made = append(made, v)
	}
	same := func(*journal.InclusionProof) {}
	add("another leaf", append(slices.Clone(leaf), ' '), same)
	add("no leaf", nil, same)
	add("the next index", leaf, func(p *journal.InclusionProof) { p.Index++ })
	add("an index beyond the tree", leaf, func(p *journal.InclusionProof) { p.Index += 32 })
	add("a hash more", leaf, func(p *journal.InclusionProof) {
		p.Hashes = append(p.Hashes, make([]byte, tlog.HashSize))
	})
	for i := range good.Hashes {
		add(fmt.Sprintf("hash %d changed", i), leaf, func(p *journal.InclusionProof) {
			p.Hashes[i] = slices.Clone(p.Hashes[i])
			p.Hashes[i][31] ^= 1
		})
		add(fmt.Sprintf("hash %d left out", i), leaf, func(p *journal.InclusionProof) {
			p.Hashes = slices.Delete(p.Hashes, i, i+1)
		})
		add(fmt.Sprintf("hash %d cut", i), leaf, func(p *journal.InclusionProof) { p.Hashes[i] = p.Hashes[i][:31] })
	}
	replace := func(old, new string) func(p *journal.InclusionProof) {
		return func(p *journal.InclusionProof) { p.Checkpoint = strings.Replace(p.Checkpoint, old, new, 1) }
	}
	size := fmt.Sprintf("\n%d\n", good.TreeSize)
	add("a checkpoint of another size", leaf, replace(size, fmt.Sprintf("\n%d\n", good.TreeSize+1)))
	add("a size that is written otherwise", leaf, replace(size, "\n0"+size[1:]))
	add("a checkpoint of another log", leaf, replace("example.com/log\n", "example.com/other\n"))
	add("a checkpoint without its signature", leaf, replace("\n\n— ", "\n"))
	root := strings.Split(good.Checkpoint, "\n")[2]
	add("a root of its own", leaf, func(p *journal.InclusionProof) {
		own := tlog.RecordHash([]byte("forged"))
		p.Checkpoint = strings.Replace(p.Checkpoint, root, base64.StdEncoding.EncodeToString(own[:]), 1)
	})
	return append(made, rig.forged(good))
}

// forged returns a valid proof for another record, under a checkpoint that an attacker signed in the log's name.
func (rig *proofRig) forged(good journal.InclusionProof) vector {
	skey, _, err := note.GenerateKey(bytes.NewReader(bytes.Repeat([]byte{8}, 32)), "example.com/log")
	if err != nil {
		rig.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		rig.Fatal(err)
	}
	leaf := []byte("forged")
	signed, err := journal.SignCheckpoint(tlog.Tree{N: 1, Hash: tlog.RecordHash(leaf)}, signer)
	if err != nil {
		rig.Fatal(err)
	}
	v := rig.judged(fmt.Sprintf("record %d of %d: another's key", good.Index, good.TreeSize),
		journal.InclusionProof{TreeSize: 1, Checkpoint: string(signed)}.String(), leaf)
	if v.Good {
		rig.Errorf("%s: Go takes it", v.What)
	}
	return v
}
