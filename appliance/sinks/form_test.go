package sinks_test

import (
	"encoding/csv"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

// attestation returns an entry with every field set.
func attestation(t testing.TB) journal.Entry {
	t.Helper()
	r := appliance.Record{
		Attestation: appliance.Attestation{ID: uuid.MustParse("0198c1f2-7a3b-7def-8123-456789abcdef"),
			Hash: appliance.Digest{0xaa, 31: 0xbb}, SignerAddress: appliance.Address{0x11}},
		Request: appliance.Request{UnspendableAddress: appliance.Address{0x22},
			Beneficiary: appliance.Address{0x33}},
		Scheme: "keccak256", KeyID: "k3x5wq7mzp2n4r6t", IdempotencyKey: "order 4711",
		Time: time.Date(2026, 11, 22, 3, 4, 5, 678_901_234, time.UTC), Salt: appliance.Salt{9},
	}
	leaf, err := journal.EncodeLeaf(r)
	check(t, err)
	return journal.Entry{Index: 12, Record: r, Leaf: leaf}
}

// event returns an event with texts that may break formats.
func event(t testing.TB, kind journal.EventKind, by string, details map[string]string) journal.Entry {
	t.Helper()
	e := journal.Event{Kind: kind, ID: uuid.MustParse("0198c1f2-7a3b-7def-8123-456789abcdef"),
		Time: time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC), By: by, Details: details}
	leaf, err := journal.EncodeEvent(e)
	check(t, err)
	return journal.Entry{Index: 13, Event: &e, Leaf: leaf}
}

func form(redact sinks.Redaction) sinks.Form {
	return sinks.Form{Log: "example.com/attestd+1a2b3c4d", Version: "1.2.3", Redact: redact}
}

func line(t testing.TB, f sinks.Form, format sinks.Format, e journal.Entry) string {
	t.Helper()
	text, err := f.Line(format, e)
	check(t, err)
	return string(text)
}

const (
	unspendable = "0x2200000000000000000000000000000000000000"
	beneficiary = "0x3300000000000000000000000000000000000000"
)

// Redacted addresses appear in no format and in no event.
func TestRedaction(t *testing.T) {
	t.Parallel()
	refused := event(t, "refused", "root (uid 0)",
		map[string]string{"code": "x", "unspendableAddress": unspendable, "beneficiary": beneficiary})
	for redact, tells := range map[sinks.Redaction][2]bool{
		sinks.RedactAddresses: {false, false}, sinks.RedactUnspendable: {false, true}, sinks.RedactNone: {true, true},
	} {
		for _, format := range []sinks.Format{sinks.FormatJSON, sinks.FormatCEF, sinks.FormatCSV} {
			for _, e := range []journal.Entry{attestation(t), refused} {
				text := line(t, form(redact), format, e)
				got := [2]bool{strings.Contains(text, unspendable), strings.Contains(text, beneficiary)}
				if got != tells {
					t.Errorf("%s as %s tells %v, want %v: %s", redact, format, got, tells, text)
				}
				if strings.Contains(text, "4711") || strings.Contains(text, `salt`) {
					t.Errorf("the idempotency key or the salt is told: %s", text)
				}
			}
		}
	}
	if len(refused.Event.Details) != 3 {
		t.Error("the journal's own event was changed")
	}
}

func TestJSONTellsAnAttestation(t *testing.T) {
	t.Parallel()
	var got map[string]any
	check(t, json.Unmarshal([]byte(line(t, form(sinks.RedactAddresses), sinks.FormatJSON, attestation(t))), &got))
	want := map[string]any{
		"type": "attestation", "severity": "info", "log": "example.com/attestd+1a2b3c4d", "index": 12.0,
		"id":   "0198c1f2-7a3b-7def-8123-456789abcdef",
		"time": "2026-11-22T03:04:05.678901234Z", "keyId": "k3x5wq7mzp2n4r6t", "scheme": "keccak256",
		"hash":          "0xaa000000000000000000000000000000000000000000000000000000000000bb",
		"signerAddress": "0x1100000000000000000000000000000000000000",
	}
	if h, _ := got["leafHash"].(string); len(h) != 64 {
		t.Errorf("leafHash is %v", got["leafHash"])
	}
	delete(got, "leafHash")
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestJSONIsOneLineOfASCII(t *testing.T) {
	t.Parallel()
	text := line(t, form(sinks.RedactNone), sinks.FormatJSON,
		event(t, "key_created", "jürgen\n\u2028", map[string]string{"name": "Zahlung 💶 \x00"}))
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' {
			t.Fatalf("it has the byte %#x: %s", c, text)
		}
	}
	var got struct {
		By      string
		Details map[string]string
	}
	check(t, json.Unmarshal([]byte(text), &got))
	if got.By != "jürgen\n\u2028" || got.Details["name"] != "Zahlung 💶 \x00" {
		t.Errorf("%q is read back from %s", got, text)
	}
}

// Header and extension are escaped as in ArcSight Common Event Format, revision 25.
func TestCEF(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		entry         journal.Entry
		begins, holds string
	}{
		"an attestation": {
			attestation(t),
			`CEF:0|attestd|attestd|1.2.3|attestation|Attestation signed|2|rt=1795316645678 cat=attestation externalId=0198c1f2-7a3b-7def-8123-456789abcdef cn1=12 cn1Label=index suid=k3x5wq7mzp2n4r6t cs1=0xaa`,
			` cs2=0x1100000000000000000000000000000000000000 cs2Label=signerAddress cs3=example.com/attestd+1a2b3c4d cs3Label=log `,
		},
		"an event": {
			event(t, "key_created", `a=b\c|d`, nil), `CEF:0|attestd|attestd|1.2.3|key_created|key created|4|`,
			` suser=a\=b\\c|d cs3=`,
		},
		"lines": {
			event(t, "hsm_lost", "a\r\nb\x00\tc", nil), `CEF:0|attestd|attestd|1.2.3|hsm_lost|hsm lost|8|`,
			` suser=a\r\nb  c `,
		},
		"details": {event(t, "unknown_redemption", "", map[string]string{"hash": "0x=1"}),
			`CEF:0|attestd|attestd|1.2.3|unknown_redemption|unknown redemption|10|`, ` msg={"hash":"0x\=1"}`},
		"long details": {event(t, "started", "", map[string]string{"a": strings.Repeat("é", 5000)}), `CEF:0|`,
			strings.Repeat("é", 1016) + "…"},
	} {
		text := line(t, form(sinks.RedactAddresses), sinks.FormatCEF, test.entry)
		if !strings.HasPrefix(text, test.begins) || !strings.Contains(text+" ", test.holds) ||
			strings.ContainsAny(text, "\r\n\x00\t") {
			t.Errorf("%s: got\n%s\nwant it to begin\n%s\nand to have\n%s", name, text, test.begins, test.holds)
		}
	}
}

func TestCEFEscapesItsHeader(t *testing.T) {
	t.Parallel()
	f := form(sinks.RedactNone)
	f.Version = "1|2\\3\n4"
	if text := line(t, f, sinks.FormatCEF, attestation(t)); !strings.HasPrefix(text,
		`CEF:0|attestd|attestd|1\|2\\3 4|attestation|`) {
		t.Error(text)
	}
}

// The output is valid RFC 4180, and a spreadsheet reads no cell as a formula.
func TestCSV(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"} {
		text := sinks.CSVHeader() + sinks.CSVEnd +
			line(t, form(sinks.RedactNone), sinks.FormatCSV,
				event(t, "key_created", by, map[string]string{"name": `a "b", c`})) + sinks.CSVEnd +
			line(t, form(sinks.RedactNone), sinks.FormatCSV, attestation(t)) + sinks.CSVEnd
		rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		check(t, err)
		cell := func(row int, column string) string { return rows[row][slices.Index(rows[0], column)] }
		if got := cell(1, "by"); !strings.HasPrefix(got, "'") {
			t.Errorf("%q is written as %q", by, got)
		}
		if cell(1, "details") != `{"name":"a \"b\", c"}` || cell(1, "event") != "key_created" ||
			cell(1, "index") != "13" {
			t.Errorf("%q", rows[1])
		}
		if cell(2, "beneficiary") != beneficiary || cell(2, "type") != "attestation" ||
			cell(2, "keyId") != "k3x5wq7mzp2n4r6t" {
			t.Errorf("%q", rows[2])
		}
	}
}

func TestNamesOfFormatsAndRedactionsAreChecked(t *testing.T) {
	t.Parallel()
	if _, err := sinks.ParseFormat("csv"); err == nil {
		t.Error("csv is for exports alone")
	}
	if _, err := sinks.ParseRedaction("all"); err == nil ||
		!strings.Contains(err.Error(), `"all" is not addresses, unspendable or none`) {
		t.Error(err)
	}
	if _, err := sinks.ParseFacility("kern"); err == nil ||
		!strings.Contains(err.Error(), `"kern" is not one of user, daemon, auth`) {
		t.Error(err)
	}
}
