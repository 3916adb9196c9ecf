package journal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/storetest"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func testLogKey(t testing.TB, origin string) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey(origin)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// leafRecords returns records with every member in each form that JSON encodes differently.
func leafRecords(t testing.TB) []appliance.Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	contract := appliance.Address{1, 2, 3}
	plain := storetest.Record(t, "aaaaaaaaaaaaaaaa")
	plain.Time = at
	full := storetest.Record(t, `k<e>&y "\ é `+"\u2028\t\x01")
	full.Time, full.Salt = at.Add(120*time.Millisecond), appliance.Salt{0xff, 1}
	full.Scheme, full.IdempotencyKey = "eip712", `<a href="x">&amp;</a>`
	full.Domain = &appliance.EIP712Domain{Name: "n<&>", Version: "1", ChainID: 1<<64 - 1, VerifyingContract: &contract}
	return []appliance.Record{plain, full, {Time: at}}
}

func TestLeafIsWhatJSONIs(t *testing.T) {
	for _, r := range leafRecords(t) {
		leaf, err := journal.EncodeLeaf(r)
		if err != nil {
			t.Fatal(err)
		}
		want, err := jsonOf(r)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(leaf, want) {
			t.Errorf("the leaf is\n%s, json.Marshal returns\n%s", leaf, want)
		}
	}
}

// jsonOf returns the json.Marshal of a record without the signature's bytes.
func jsonOf(r appliance.Record) ([]byte, error) {
	text, err := json.Marshal(r)
	forContracts := fmt.Sprintf(`,"bytes":"%#x"}`, r.Signature.Bytes())
	if n := bytes.Count(text, []byte(forContracts)); err == nil && n != 1 {
		err = fmt.Errorf("%s has the signature's bytes %d times", text, n)
	}
	return bytes.Replace(text, []byte(forContracts), []byte("}"), 1), err
}

func TestLeafHasOneForm(t *testing.T) {
	r := leafRecords(t)[0]
	leaf, err := journal.EncodeLeaf(r)
	if err != nil {
		t.Fatal(err)
	}
	got, err := journal.DecodeLeaf(leaf)
	if err != nil || got != r {
		t.Fatalf("decoded %+v (%v), not %+v", got, err, r)
	}
	text := string(leaf)
	for name, other := range map[string]string{
		"a newline": text + "\n",
		"the bytes": strings.Replace(text, `},"signer`,
			fmt.Sprintf(`,"bytes":"%#x"},"signer`, r.Signature.Bytes()), 1),
		"a space":           strings.Replace(text, ":", ": ", 1),
		"another member":    strings.Replace(text, "{", `{"x":1,`, 1),
		"a member twice":    strings.Replace(text, "{", `{"scheme":"keccak256",`, 1),
		"a member left out": strings.Replace(text, `"scheme":"keccak256-bn254",`, "", 1),
		"an empty member":   strings.Replace(text, `"time"`, `"idempotencyKey":"","time"`, 1),
		"another case":      strings.Replace(text, `"scheme"`, `"Scheme"`, 1),
		"lower-case address": strings.Replace(text, r.Beneficiary.String(), strings.ToLower(r.Beneficiary.String()),
			1),
		"another escape":      strings.Replace(text, "keccak", `\u006beccak`, 1),
		"another time zone":   strings.Replace(text, "03:04:05Z", "04:04:05+01:00", 1),
		"a fraction of zeros": strings.Replace(text, "03:04:05Z", "03:04:05.000Z", 1),
		"nothing":             "",
		"not JSON":            "x",
		"two records":         text + text,
	} {
		if other == text {
			t.Fatalf("%s: the test changes nothing", name)
		}
		if _, err := journal.DecodeLeaf([]byte(other)); err == nil {
			t.Errorf("%s: a leaf may be %s", name, other)
		}
	}
}

func FuzzDecodeLeaf(f *testing.F) {
	for _, r := range leafRecords(f) {
		leaf, err := journal.EncodeLeaf(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(leaf)
	}
	f.Fuzz(func(t *testing.T, leaf []byte) {
		r, err := journal.DecodeLeaf(leaf)
		if err != nil {
			return
		}
		var want appliance.Record
		if err := json.Unmarshal(leaf, &want); err != nil || !reflect.DeepEqual(r, want) {
			t.Errorf("%q was decoded as %+v, and by encoding/json as %+v (%v)", leaf, r, want, err)
		}
		again, err := journal.EncodeLeaf(r)
		if err != nil || !bytes.Equal(again, leaf) {
			t.Errorf("%q was decoded, and encoded as %q (%v)", leaf, again, err)
		}
		if text, err := jsonOf(r); err != nil || !bytes.Equal(text, leaf) {
			t.Errorf("json.Marshal says %q (%v), EncodeLeaf %q", text, err, leaf)
		}
	})
}

func FuzzOpenCheckpoint(f *testing.F) {
	key := testLogKey(f, "example.com/log")
	signed, err := journal.SignCheckpoint(tlog.Tree{N: 7, Hash: tlog.RecordHash(nil)}, key.Signer)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add([]byte(""))
	f.Add(bytes.Replace(signed, []byte("7"), []byte("8"), 1))
	f.Fuzz(func(t *testing.T, text []byte) {
		tree, err := journal.OpenCheckpoint(text, key.Verifier)
		if err == nil && (tree.N != 7 || !bytes.HasPrefix(text, signed)) {
			t.Errorf("a checkpoint of %d was made without the key: %q", tree.N, text)
		}
	})
}

func TestCheckpointIsATlogCheckpoint(t *testing.T) {
	key := testLogKey(t, "example.com/log")
	tree := tlog.Tree{N: 1234567, Hash: tlog.RecordHash([]byte("x"))}
	signed, err := journal.SignCheckpoint(tree, key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(signed), "\n")
	if len(lines) != 6 || lines[0] != "example.com/log" || lines[1] != "1234567" || lines[2] != tree.Hash.String() ||
		lines[3] != "" || !strings.HasPrefix(lines[4], "— example.com/log ") || lines[5] != "" {
		t.Errorf("the checkpoint is %q", signed)
	}
	if _, err := note.Open(signed, note.VerifierList(key.Verifier)); err != nil {
		t.Error(err)
	}
	if got, err := journal.OpenCheckpoint(signed, key.Verifier); err != nil || got != tree {
		t.Errorf("opened %+v (%v), not %+v", got, err, tree)
	}
}

func TestCheckpointIsRefused(t *testing.T) {
	key, other := testLogKey(t, "example.com/log"), testLogKey(t, "example.com/log")
	sign := func(text string, by journal.LogKey) []byte {
		signed, err := note.Sign(&note.Note{Text: text}, by.Signer)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	hash := tlog.RecordHash(nil).String()
	good := sign("example.com/log\n7\n"+hash+"\n", key)
	if _, err := journal.OpenCheckpoint(good, key.Verifier); err != nil {
		t.Fatal(err)
	}
	for name, signed := range map[string][]byte{
		"unsigned":         []byte("example.com/log\n7\n" + hash + "\n"),
		"another key's":    sign("example.com/log\n7\n"+hash+"\n", other),
		"another log's":    sign("example.com/other\n7\n"+hash+"\n", key),
		"changed":          bytes.Replace(good, []byte("\n7\n"), []byte("\n8\n"), 1),
		"a leading zero":   sign("example.com/log\n07\n"+hash+"\n", key),
		"a negative size":  sign("example.com/log\n-7\n"+hash+"\n", key),
		"a short hash":     sign("example.com/log\n7\n"+hash[:8]+"\n", key),
		"no hash":          sign("example.com/log\n7\n", key),
		"only an origin":   sign("example.com/log\n", key),
		"empty":            nil,
		"a size too large": sign("example.com/log\n99999999999999999999\n"+hash+"\n", key),
	} {
		if tree, err := journal.OpenCheckpoint(signed, key.Verifier); err == nil {
			t.Errorf("%s: opened as %+v", name, tree)
		}
	}
}

// hashTree is a tree in memory that only tlog computes.
type hashTree []tlog.Hash

func (h hashTree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = h[index]
	}
	return out, nil
}

func (h *hashTree) add(t testing.TB, n int64, leaf []byte) {
	t.Helper()
	stored, err := tlog.StoredHashes(n, leaf, *h)
	if err != nil {
		t.Fatal(err)
	}
	*h = append(*h, stored...)
}

func TestFrontierIsTlogsTree(t *testing.T) {
	var tree hashTree
	var frontier journal.Frontier
	for n := range int64(131) {
		want, err := tlog.TreeHash(n, tree)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := journal.NewFrontier(n, tree)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []journal.Frontier{frontier, loaded, frontier.Clone()} {
			if f.Size() != n || f.Tree() != (tlog.Tree{N: n, Hash: want}) {
				t.Fatalf("size %d: the tree is %+v, not %v", n, f.Tree(), want)
			}
		}
		leaf := []byte{byte(n)}
		changed := frontier.Clone()
		changed.Add(nil, tlog.RecordHash([]byte("another")))
		before := len(tree)
		tree.add(t, n, leaf)
		if completed := frontier.Add(nil, tlog.RecordHash(leaf)); !slicesEqual(completed, tree[before:]) {
			t.Fatalf("leaf %d completes %v, not %v", n, completed, tree[before:])
		}
	}
}

func slicesEqual(a, b []tlog.Hash) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// proofOf6 returns the proof that leaf 6 is in a tree of 11, and the hashes of its path. Each leaf is its index as a
// byte.
func proofOf6(t *testing.T, key journal.LogKey) (proof journal.InclusionProof, path tlog.RecordProof) {
	t.Helper()
	var tree hashTree
	const size, index = 11, 6
	for n := range int64(size) {
		tree.add(t, n, []byte{byte(n)})
	}
	root, err := tlog.TreeHash(size, tree)
	if err != nil {
		t.Fatal(err)
	}
	checkpoint, err := journal.SignCheckpoint(tlog.Tree{N: size, Hash: root}, key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	path, err = tlog.ProveRecord(size, index, tree)
	if err != nil {
		t.Fatal(err)
	}
	proof = journal.InclusionProof{Index: index, TreeSize: size, Checkpoint: string(checkpoint)}
	for _, h := range path {
		proof.Hashes = append(proof.Hashes, h[:])
	}
	return proof, path
}

func TestInclusionProof(t *testing.T) {
	key, other := testLogKey(t, "example.com/log"), testLogKey(t, "example.com/log")
	const index = 6
	proof, path := proofOf6(t, key)
	if err := proof.Verify([]byte{index}, key.Verifier); err != nil {
		t.Error(err)
	}

	text := "c2sp.org/tlog-proof@v1\nindex 6\n"
	for _, h := range path {
		text += h.String() + "\n"
	}
	if text += "\n" + proof.Checkpoint; proof.String() != text {
		t.Errorf("as text it is %q, not %q", proof.String(), text)
	}

	for name, spoil := range map[string]func(p *journal.InclusionProof) (leaf []byte, v note.Verifier){
		"another leaf": func(*journal.InclusionProof) ([]byte, note.Verifier) { return []byte{7}, key.Verifier },
		"another key": func(*journal.InclusionProof) ([]byte, note.Verifier) {
			return []byte{index}, other.Verifier
		},
		"another index": func(p *journal.InclusionProof) ([]byte, note.Verifier) {
			p.Index++
			return []byte{index}, key.Verifier
		},
		"another size": func(p *journal.InclusionProof) ([]byte, note.Verifier) {
			p.TreeSize++
			return []byte{index}, key.Verifier
		},
		"a negative index": func(p *journal.InclusionProof) ([]byte, note.Verifier) {
			p.Index = -1
			return []byte{index}, key.Verifier
		},
		"a hash less": func(p *journal.InclusionProof) ([]byte, note.Verifier) {
			p.Hashes = p.Hashes[1:]
			return []byte{index}, key.Verifier
		},
		"a short hash": func(p *journal.InclusionProof) ([]byte, note.Verifier) {
			p.Hashes = append([][]byte{{1, 2}}, p.Hashes[1:]...)
			_ = p.String() // must not panic
			return []byte{index}, key.Verifier
		},
	} {
		p := proof
		leaf, verifier := spoil(&p)
		if p.Verify(leaf, verifier) == nil {
			t.Errorf("%s: the proof holds", name)
		}
	}
}
