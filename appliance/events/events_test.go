package events_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	origin = "example.com/attestd"
	log    = "example.com/attestd+1a2b3c4d"
)

var (
	id   = uuid.MustParse("0198c1f2-7a3b-7def-8123-456789abcdef")
	when = time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
)

func entry(t *testing.T, kind journal.EventKind, details map[string]string) journal.Entry {
	t.Helper()
	leaf, err := journal.EncodeEvent(journal.Event{Kind: kind, ID: id, Time: when, Details: details})
	if err != nil {
		t.Fatal(err)
	}
	e, err := journal.DecodeEntry(7, leaf)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func record() journal.Entry {
	r := appliance.Record{KeyID: "k3x5wq7mzp2n4r6t", Scheme: "keccak256-bn254", Time: when, IdempotencyKey: "secret"}
	r.ID = id
	r.UnspendableAddress[0], r.Beneficiary[0] = 0xAB, 0xCD
	return journal.Entry{Index: 7, Record: r}
}

func event(t *testing.T, e journal.Entry) events.Event {
	t.Helper()
	made, err := events.FromEntry(origin, log, e)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAnAttestationIsACloudEventWithItsLeaf(t *testing.T) {
	text, err := json.Marshal(event(t, record()))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	data, _ := got["data"].(map[string]any)
	delete(got, "data")
	for name, want := range map[string]any{
		"specversion": "1.0", "id": id.String(), "source": origin, "type": "attestation.issued",
		"subject": id.String(), "time": "2026-11-28T10:00:00Z", "datacontenttype": "application/json",
	} {
		if got[name] != want {
			t.Errorf("%s is %v, not %v", name, got[name], want)
		}
	}
	if len(got) != 7 {
		t.Errorf("the event has other attributes: %v", got)
	}
	if data["log"] != log || data["index"] != 7. || data["keyId"] != "k3x5wq7mzp2n4r6t" {
		t.Errorf("data: %v", data)
	}
	if strings.Contains(string(text), "secret") || data["signature"] != nil || data["salt"] != nil {
		t.Errorf("the event has the idempotency key, the signature or the salt: %s", text)
	}
}

// Each kind of event in docs/journal.md has a type of its own.
func TestEachKindOfTheJournalHasAType(t *testing.T) {
	doc, err := os.ReadFile("../../docs/journal.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "\n| `event` | when | details |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	found := 0
	for line := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(names, -1) {
			found++
			if got := event(t, entry(t, journal.EventKind(m[1]), nil)); got.Type.Group() == "journal" {
				t.Errorf("%s has the type %s", m[1], got.Type)
			}
		}
	}
	if found < 25 {
		t.Errorf("%d kinds were found in the table", found)
	}
	if got := event(t, entry(t, "something_new", nil)).Type; got != "journal.something_new" {
		t.Errorf("a kind without a type has %s", got)
	}
}

func TestViewersSeeTheirEventsOnly(t *testing.T) {
	const key, other = "k3x5wq7mzp2n4r6t", "aaaaaaaaaaaaaaaa"
	issued := event(t, record())
	refused := event(t, entry(t, journal.EventRefused, map[string]string{"code": "screened", "keyId": key}))
	second := event(t, entry(t, journal.EventSecond, map[string]string{"id": id.String(), "keyId": key}))
	created := event(t, entry(t, journal.EventKeyCreated, map[string]string{"id": key}))
	packet := events.Event{Type: events.PacketUpdated, Subject: "0xab", Index: -1}
	for name, test := range map[string]struct {
		viewer events.Viewer
		sees   [5]bool // issued, refused, second, created, packet
	}{
		"an operator":           {events.Viewer{Operator: true}, [5]bool{true, true, true, true, true}},
		"the key that asked":    {events.Viewer{KeyID: key}, [5]bool{true, true, false, false, false}},
		"another key":           {events.Viewer{KeyID: other}, [5]bool{}},
		"a reader of packets":   {events.Viewer{Packets: true}, [5]bool{4: true}},
		"the key, with packets": {events.Viewer{KeyID: key, Packets: true}, [5]bool{true, true, false, false, true}},
		"without a key":         {events.Viewer{}, [5]bool{}},
	} {
		for i, e := range []events.Event{issued, refused, second, created, packet} {
			if got := test.viewer.May(e); got != test.sees[i] {
				t.Errorf("%s sees %s: %t", name, e.Type, got)
			}
		}
	}
}

func TestFilters(t *testing.T) {
	issued := event(t, record())
	transfer := events.Event{Type: events.TransferUpdated, Subject: "0xfe", Addresses: []string{"0xaa", "0xbb"},
		Chains: []string{"ethereum.1", "union.union-1"}}
	for _, test := range []struct {
		types, addresses, chains, subjects string
		issued, transfer                   bool
	}{
		{"", "", "", "", true, true},
		{"transfer.updated", "", "", "", false, true},
		{"attestation.*,packet.*", "", "", "", true, false},
		{"", "0xAA", "", "", false, true},
		{"", "0xcd00000000000000000000000000000000000000,0xcc", "", "", true, false},
		{"", "0xcc", "", "", false, false},
		{"", "", "union.union-1", "", false, true},
		{"", "", "", "0xFE", false, true},
		{"", "", "", id.String(), true, false},
		{"transfer.*", "0xbb", "ethereum.1", "0xfe", false, true},
		{"transfer.*", "0xbb", "ethereum.2", "0xfe", false, false},
	} {
		f, err := events.ParseFilter(test.types, test.addresses, test.chains, test.subjects)
		if err != nil {
			t.Fatal(err)
		}
		if f.Matches(issued) != test.issued || f.Matches(transfer) != test.transfer {
			t.Errorf("%+v matches the attestation: %t, the transfer: %t", test, f.Matches(issued), f.Matches(transfer))
		}
	}
	for types, field := range map[string]string{"attestation.isued": "types", "attestation": "types", ",": "types"} {
		_, err := events.ParseFilter(types, "", "", "")
		if e, ok := errors.AsType[*appliance.Error](err); !ok || e.Code != appliance.CodeInvalidField || e.Field != field {
			t.Errorf("%q: %v", types, err)
		}
	}
	if _, err := events.ParseFilter("", strings.Repeat("0xaa,", events.MaxFiltered)+"0xaa", "", ""); err == nil {
		t.Error("more than MaxFiltered addresses were accepted")
	}
}

func TestATypeThatTheKeyMayNotSeeIsRefused(t *testing.T) {
	viewer := events.Viewer{KeyID: "k3x5wq7mzp2n4r6t"}
	for types, allowed := range map[string]bool{
		"attestation.issued": true, "attestation.*": true, "": true, "transfer.updated": false, "key.*": false,
		"attestation.issued,log.checkpoint": false,
	} {
		f, err := events.ParseFilter(types, "", "", "")
		if err != nil {
			t.Fatal(err)
		}
		err = f.Allowed(viewer)
		if (err == nil) != allowed || err != nil && appliance.CodeOf(err) != appliance.CodeScopeRequired {
			t.Errorf("%q: %v", types, err)
		}
	}
}

func TestARedemptionIsAnEventOfTheKeyThatAskedForTheAttestation(t *testing.T) {
	const key = "k3x5wq7mzp2n4r6t"
	e := event(t, entry(t, journal.EventRedeemed, map[string]string{"id": id.String(), "keyId": key,
		journal.DetailBeneficiary: "0xCD"}))
	if e.Type != events.AttestationRedeemed || e.Subject != id.String() || len(e.Addresses) != 1 ||
		e.Addresses[0] != "0xcd" {
		t.Errorf("%+v", e)
	}
	if !(events.Viewer{KeyID: key}).May(e) || (events.Viewer{KeyID: "aaaaaaaaaaaaaaaa"}).May(e) {
		t.Error("not exactly its key sees it")
	}
	if f := (events.Filter{Types: []string{"attestation.redeemed"}}); f.Allowed(events.Viewer{KeyID: key}) != nil {
		t.Error("a key may not ask for it")
	}
}
