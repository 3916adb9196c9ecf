package journal

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
)

// The scanner reads each member, and only a string with an escape is left to encoding/json.
func TestTheScannerReadsWhatJSONReads(t *testing.T) {
	id := uuid.New()
	plain := appliance.Record{Scheme: "keccak256", KeyID: "a key", Time: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)}
	plain.ID, plain.Hash, plain.Salt = id, appliance.Digest{1}, appliance.Salt{2}
	plain.SignerAddress, plain.UnspendableAddress = appliance.Address{3}, appliance.Address{4}
	plain.Beneficiary = appliance.Address{5}
	plain.Signature = appliance.Signature{R: [32]byte{6}, S: [32]byte{7}, V: 28}
	full := plain
	full.Domain = &appliance.EIP712Domain{Name: `a ,"keyId":" b`, ChainID: 9, VerifyingContract: &plain.Beneficiary}
	full.IdempotencyKey, full.Coordinator, full.Approval = "order 7", "example.com/log", &id
	full.Quorum = &appliance.Quorum{Contract: plain.Beneficiary,
		Signatures: []appliance.MemberSignature{{Member: `,"approval":"`, SignerAddress: plain.Beneficiary, ID: id}}}
	alone := full
	alone.Approval = nil
	escaped, none := plain, plain
	escaped.KeyID, none.Beneficiary = "a\tkey", appliance.Address{}
	for name, test := range map[string]struct {
		record appliance.Record
		reads  bool
	}{"plain": {plain, true}, "full": {full, true}, "a quorum without approval": {alone, true},
		"an escape": {escaped, false}, "the zero address": {none, false}} {
		leaf, err := EncodeLeaf(test.record)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := scanLeaf(leaf)
		if ok != test.reads {
			t.Errorf("%s: read: %t, want %t", name, ok, test.reads)
		}
		var want appliance.Record
		if err := json.Unmarshal(leaf, &want); ok && (err != nil || !reflect.DeepEqual(got, want)) {
			t.Errorf("%s: got %+v, want %+v (%v)", name, got, want, err)
		}
		for n := range leaf { // cut off anywhere
			if _, ok := scanLeaf(leaf[:n]); ok {
				t.Errorf("%s: %q is read", name, leaf[:n])
			}
		}
	}
}

func BenchmarkDecodeLeaf(b *testing.B) {
	r := appliance.Record{Scheme: "keccak256", KeyID: "a key", IdempotencyKey: "order 7", Time: time.Now().UTC()}
	r.SignerAddress, r.UnspendableAddress, r.Beneficiary = appliance.Address{3}, appliance.Address{4}, appliance.Address{5}
	leaf, err := EncodeLeaf(r)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("DecodeLeaf", func(b *testing.B) {
		for b.Loop() {
			if _, err := DecodeLeaf(leaf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("json.Unmarshal", func(b *testing.B) {
		for b.Loop() {
			var r appliance.Record
			if err := json.Unmarshal(leaf, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
