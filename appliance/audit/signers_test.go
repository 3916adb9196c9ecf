package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/storetest"
)

// leafSignedBy returns the leaf of a record signed by the n-th attestor key of the tests.
func leafSignedBy(t *testing.T, n int) []byte {
	t.Helper()
	key, err := crypto.ToECDSA(crypto.Keccak256([]byte(fmt.Sprint("attestor ", n))))
	if err != nil {
		t.Fatal(err)
	}
	r := storetest.Record(t, "key")
	rsv, err := crypto.Sign(r.Hash[:], key)
	if err != nil {
		t.Fatal(err)
	}
	r.Signature = appliance.Signature{R: [32]byte(rsv[:32]), S: [32]byte(rsv[32:64]), V: rsv[64] + 27}
	r.SignerAddress, r.Time = addressOf(n), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	leaf, err := journal.EncodeLeaf(r)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func addressOf(n int) appliance.Address {
	key, err := crypto.ToECDSA(crypto.Keccak256([]byte(fmt.Sprint("attestor ", n))))
	if err != nil {
		panic(err)
	}
	return appliance.Address(crypto.PubkeyToAddress(key.PublicKey))
}

// eventLeaf returns the leaf of an event with one detail.
func eventLeaf(t *testing.T, kind journal.EventKind, detail, value string) []byte {
	t.Helper()
	e := journal.Event{Kind: kind, ID: uuid.Must(uuid.NewV7()), Details: map[string]string{detail: value}}
	leaf, err := e.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// signersTest describes a journal in letters: records signed by keys 1 to 9, and events that name keys.
type signersTest struct {
	// digits are records; s12 is a start with keys 1 and 2, +3 adds key 3, x1 is another kind of event with the address
	// of key 1
	leaves string
	opts   audit.Options
	want   string // each signer: key, first, last, records, known
	faults []string
}

func TestAnAuditNamesWhoSigned(t *testing.T) {
	t.Parallel()
	given := func(keys ...int) (o audit.Options) {
		for _, n := range keys {
			o.Signers = append(o.Signers, addressOf(n))
		}
		return o
	}
	for name, test := range map[string]signersTest{
		"nobody":                             {leaves: "", want: ""},
		"a start names the key":              {leaves: "s1 1 1", want: "1: 1-2 2 event"},
		"a start names several":              {leaves: "s12 1 2 1", want: "1: 1-3 2 event; 2: 2-2 1 event"},
		"a record is there before the start": {leaves: "1 s1 1", want: "1: 0-2 2 event"},
		"a key that is added":                {leaves: "s1 1 +2 2", want: "1: 1-1 1 event; 2: 3-3 1 event"},
		"a journal without events":           {leaves: "1 1", want: "1: 0-1 2 first"},
		"a second key without events": {leaves: "1 2 1 2", want: "1: 0-2 2 first; 2: 1-3 2 unknown",
			faults: []string{"1: signed by KEY2, which is neither the appliance's signer nor named by an event of the journal: 2 of the records 1 to 3"}},
		"a first key that no event names": {leaves: "s1 2 1", want: "2: 1-1 1 unknown; 1: 2-2 1 event",
			faults: []string{"1: signed by KEY2, which is neither"}},
		"another event says nothing": {leaves: "s1 1 x2 2", want: "1: 1-1 1 event; 2: 3-3 1 unknown",
			faults: []string{"3: signed by KEY2, which is neither"}},
		"the caller names the key": {leaves: "s1 1 1", opts: given(1), want: "1: 1-2 2 given"},
		"the caller names another": {leaves: "s1 1 1", opts: given(2), want: "1: 1-2 2 unknown",
			faults: []string{"1: signed by KEY1, which is not in --signer: records 1 to 2"}},
		"the caller names one of two": {leaves: "s12 1 2", opts: given(1, 3),
			want:   "1: 1-1 1 given; 2: 2-2 1 unknown",
			faults: []string{"2: signed by KEY2, which is not in --signer: record 2"}},
		"the appliance's own": {leaves: "s1 1 2", opts: audit.Options{Own: given(2).Signers},
			want: "1: 1-1 1 event; 2: 2-2 1 own"},
		"the first is not the appliance's": {leaves: "1 1", opts: audit.Options{Own: given(2).Signers},
			want: "1: 0-1 2 unknown", faults: []string{"0: signed by KEY1, which is neither"}},
		"whoever signed": {leaves: "s1 2", opts: audit.Options{AnySigner: true},
			want: "2: 1-1 1 unknown"},
		"the caller's word is above the rest": {leaves: "s1 1", opts: audit.Options{Signers: given(2).Signers,
			Own: given(1).Signers}, want: "1: 1-1 1 unknown", faults: []string{"1: signed by KEY1, which is not in"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

func (test signersTest) run(t *testing.T) {
	key := testLogKey(t, "example.com/log")
	a, err := audit.New(key.Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Expect(test.opts)
	var tree journal.Frontier
	for _, word := range strings.Fields(test.leaves) {
		leaf := test.leaf(t, word)
		a.Leaf(leaf)
		tree.Add(nil, tlog.RecordHash(leaf))
	}
	signed, err := journal.SignCheckpoint(tree.Tree(), key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	report := a.Finish(signed)
	names := make(map[appliance.Address]string)
	for n := range 10 {
		names[addressOf(n)] = fmt.Sprint(n)
	}
	var got []string
	for _, s := range report.Signers {
		got = append(got, fmt.Sprintf("%s: %d-%d %d %s", names[s.Address], s.First, s.Last, s.Records, s.Known))
	}
	if text := strings.Join(got, "; "); text != test.want {
		t.Errorf("the audit names %q, not %q", text, test.want)
	}
	if len(report.Damages) != len(test.faults) {
		t.Fatalf("the audit finds %v, not %q", report.Damages, test.faults)
	}
	for i, d := range report.Damages {
		text := fmt.Sprintf("%d: %s", d.Index, d.Detail)
		for address, n := range names {
			text = strings.ReplaceAll(text, address.String(), "KEY"+n)
		}
		if d.Part != "signer" || !strings.HasPrefix(text, test.faults[i]) {
			t.Errorf("the audit finds %q, not %q", text, test.faults[i])
		}
	}
}

func (test signersTest) leaf(t *testing.T, word string) []byte {
	t.Helper()
	var keys []string
	for _, digit := range word {
		if digit >= '0' && digit <= '9' {
			keys = append(keys, addressOf(int(digit-'0')).String())
		}
	}
	named := strings.Join(keys, " ")
	switch word[0] {
	case 's':
		return eventLeaf(t, journal.EventStarted, journal.DetailSigners, named)
	case '+':
		return eventLeaf(t, journal.EventSignerAdded, journal.DetailAddress, named)
	case 'x':
		return eventLeaf(t, journal.EventKeyCreated, journal.DetailSigners, named)
	}
	return leafSignedBy(t, int(word[0]-'0'))
}

// The list of signers is bounded, so a journal full of garbage does not make it long.
func TestAnAuditTellsSoManySignersApart(t *testing.T) {
	t.Parallel()
	a, err := audit.New(testLogKey(t, "example.com/log").Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	const signers = 260
	for n := range signers {
		a.Leaf(leafSignedBy(t, n))
	}
	report := a.Finish(nil)
	last := report.Damages[len(report.Damages)-2] // the checkpoint's is the last one
	if len(report.Signers) != 256 || last.Detail != "more than 256 signers exist; the others signed 4 records" {
		t.Errorf("of %d signers %d are listed, and at last: %s", signers, len(report.Signers), last)
	}
}
