package wire_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

func TestAKeyGoesOverTheWireWithoutTheHashOfItsSecret(t *testing.T) {
	t.Parallel()
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "payments", Rate: appliance.Unlimited},
		time.Now().UTC())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(wire.NewKey(key))
	if err != nil || strings.Contains(string(text), "secretHash") ||
		strings.Contains(string(text), key.SecretHash.String()[2:]) {
		t.Errorf("%s, %v", text, err)
	}
	var read wire.Key
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	want := key
	want.SecretHash = appliance.Digest{}
	if !reflect.DeepEqual(read.APIKey, want) {
		t.Errorf("read %+v, want %+v", read.APIKey, want)
	}
}

func TestAnEntryIsReadAsItWasToldWithItsLeafOrWithoutAddresses(t *testing.T) {
	t.Parallel()
	record := appliance.Record{
		Attestation: appliance.Attestation{SignerAddress: appliance.Address{1}, Hash: appliance.Digest{6},
			Signature: appliance.Signature{R: [32]byte{4}, S: [32]byte{5}, V: 27}},
		Request: appliance.Request{UnspendableAddress: appliance.Address{2}, Beneficiary: appliance.Address{3}},
	}
	whole := journal.Entry{Index: 7, Record: record, Leaf: []byte("leaf")}
	for _, entry := range []journal.Entry{whole, whole.WithoutAddresses(),
		{Index: 8, Event: &journal.Event{Kind: journal.EventStarted}, Leaf: []byte("event")}} {
		text, err := json.Marshal(wire.ProvenEntry{Entry: wire.NewEntry(entry)})
		if err != nil {
			t.Fatal(err)
		}
		var read wire.ProvenEntry
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := read.Whole(); !reflect.DeepEqual(got, entry) {
			t.Errorf("%s was read as %+v", text, got)
		}
		for _, member := range []string{`"unspendableAddress"`, `"beneficiary"`, `"hash"`, `"signature"`} {
			if has := strings.Count(string(text),
				member); has != map[bool]int{true: 1}[entry.Record.Beneficiary == record.Beneficiary] {
				t.Errorf("%s has %s %d times", text, member, has)
			}
		}
	}
}
