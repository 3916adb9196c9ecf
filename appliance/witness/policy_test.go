package witness_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/witness"
)

func TestPoliciesAreRead(t *testing.T) {
	t.Parallel()
	log, w1, three := newLog(t, "example.com/log").VerifierText, newCosigner("w1.example").vkey(), threeWitnesses()
	for name, test := range map[string]struct{ text, quorum string }{
		"no witness":              {"quorum none\n", "none"},
		"one witness":             {"log " + log + "\nwitness w " + w1 + " https://w.example/\nquorum w", "w"},
		"comments, tabs and ends": {"# a comment\n\t# another\n\n \twitness\tw  " + w1 + "\t \n quorum w \n", "w"},
		"two of three":            {three + "group g 2 w1 w2 w3\nquorum g\n", "2 of (w1, w2, w3)"},
		"any":                     {three + "group g any w1 w2\nquorum g\n", "1 of (w1, w2)"},
		"groups of groups":        {three + "group a all w1 w2\ngroup b 1 a w3\nquorum b\n", "1 of (2 of (w1, w2), w3)"},
		"a name that is no ASCII": {"witness Größe " + w1 + "\nquorum Größe\n", "Größe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := witness.ParsePolicy([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			if p.Quorum() != test.quorum {
				t.Errorf("quorum %q, want %q", p.Quorum(), test.quorum)
			}
		})
	}
}

func threeWitnesses() (lines string) {
	for _, name := range []string{"w1", "w2", "w3"} {
		lines += "witness " + name + " " + newCosigner(name+".example").vkey() + "\n"
	}
	return lines
}

func TestMistakesInAPolicyAreToldWithTheirLine(t *testing.T) {
	t.Parallel()
	log, w1, w2, three := newLog(t, "example.com/log").VerifierText, newCosigner("w1.example").vkey(), newCosigner("w2.example").vkey(), threeWitnesses()
	for name, test := range map[string]struct{ text, fault string }{
		"empty":                       {"", "a quorum line is missing"},
		"two quorums":                 {"quorum none\nquorum none\n", "line 2: only one quorum line is allowed"},
		"a quorum of nobody known":    {three + "quorum w4\n", "line 4: w4 must be defined first"},
		"a quorum before its witness": {"quorum w1\n" + three, "line 1: w1 must be defined first"},
		"a quorum of two":             {three + "quorum w1 w2\n", "line 4: must be: quorum NAME|none"},
		"an unknown word":             {"quorum none\nwitnesses w " + w1, `line 2: "witnesses" is not log, witness, group or quorum`},
		"a comment behind a line":     {"quorum none # nobody\n", "line 1: must be: quorum NAME|none"},
		"a carriage return":           {"quorum none\r\n", "line 1: control character 0x0d"},
		"a witness without a key":     {"witness w\nquorum w\n", "line 1: must be: witness NAME VKEY [URL]"},
		"a witness called none":       {"witness none " + w1 + "\nquorum none\n", `line 1: the name "none"`},
		"a name twice":                {"witness w " + w1 + "\nwitness w " + w2 + "\nquorum w\n", "line 2: w is defined twice"},
		"a group like a witness":      {three + "group w1 any w2\nquorum w1\n", "line 4: w1 is defined twice"},
		"a key twice, by other names": {"witness a " + w1 + "\nwitness b " + renamed("w1.example", "w9.example") + "\nquorum a\n", "line 2: another witness has the same public key"},
		"a log twice":                 {"log " + log + "\nlog " + log + "\nquorum none\n", "line 2: another log has the same public key"},
		"a member twice":              {three + "group g all w1 w1\nquorum g\n", "line 4: w1 is a member twice"},
		"a member of two groups":      {three + "group g all w1\ngroup h all w1 w2\nquorum h\n", "line 5: w1 is a member twice: of g and of h"},
		"a member unknown":            {three + "group g all w1 none\nquorum g\n", "line 4: member none of group g must be defined first"},
		"a group of itself":           {three + "group g all g\nquorum g\n", "line 4: member g of group g"},
		"no member":                   {three + "group g all\nquorum g\n", "line 4: must be: group NAME"},
		"more than there are":         {three + "group g 4 w1 w2 w3\nquorum g\n", "a number from 1 to 3"},
		"none of them":                {three + "group g 0 w1\nquorum g\n", "a number from 1 to 1"},
		"a number with a zero":        {three + "group g 01 w1\nquorum g\n", `not "01"`},
		"a log's key as a witness's":  {"witness w " + newCosigner("w").vkeyOf(1) + "\nquorum w\n", "a log's key (type 0x01)"},
		"an ML-DSA key":               {"witness w " + newCosigner("w").vkeyOf(6) + "\nquorum w\n", "an ML-DSA-44 key"},
		"a key of an unknown type":    {"witness w " + newCosigner("w").vkeyOf(9) + "\nquorum w\n", "type 0x09"},
		"a key of another name":       {"witness w " + strings.Replace(w1, "w1", "w5", 1) + "\nquorum w\n", "its hash is"},
		"a witness's key as a log's":  {"log " + w1 + "\nquorum none\n", "line 1: key of a log"},
		"rubbish for a key":           {"witness w a+b+c\nquorum w\n", "not a key of the form"},
		"a key of small order":        {"witness w " + neutral(0x04) + "\nquorum w\n", "line 1: key of witness w: the Ed25519 key has small order"},
		"a log's key of small order":  {"log " + neutral(0x01) + "\nquorum none\n", "line 1: key of a log: the Ed25519 key has small order"},
		"too long":                    {strings.Repeat("#\n", witness.MaxPolicy), "more than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := witness.ParsePolicy([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("error %v, want %q", err, test.fault)
			}
		})
	}
}

// neutral returns the vkey of the neutral point. Signatures under it need no secret.
func neutral(kind byte) string {
	typed := append([]byte{kind, 1}, make([]byte, ed25519.PublicKeySize-1)...)
	hash := sha256.Sum256(append([]byte("neutral\n"), typed...))
	return fmt.Sprintf("neutral+%x+%s", hash[:4], base64.StdEncoding.EncodeToString(typed))
}

// renamed returns the vkey of one witness's key under another name.
func renamed(of, name string) string {
	c := newCosigner(of)
	c.name = name
	return c.vkey()
}

func TestWhatIsAQuorum(t *testing.T) {
	t.Parallel()
	text := ""
	for _, name := range []string{"x1", "x2", "x3", "y1", "y2", "extra"} {
		text += "witness " + name + " " + newCosigner(name).vkey() + "\n"
	}
	p, err := witness.ParsePolicy([]byte(text + "group x 2 x1 x2 x3\ngroup y any y1 y2\ngroup both all x y\nquorum both\n"))
	if err != nil {
		t.Fatal(err)
	}
	for names, want := range map[string]bool{
		"x1 x2 y1": true, "x1 x3 y2": true, "x1 x2 x3 y1 y2 extra": true,
		"": false, "x1 x2": false, "y1 y2": false, "x1 y1": false, "x1 y1 y2 extra": false, "x1 x1 y1": false,
	} {
		if got := p.Satisfied(strings.Fields(names)...); got != want {
			t.Errorf("%q: %v", names, got)
		}
	}
}

func TestACheckpointIsCheckedByThePolicyAlone(t *testing.T) {
	t.Parallel()
	key, other := newLog(t, "example.com/log"), newLog(t, "example.com/log")
	w1, w2, w3 := newCosigner("w1.example"), newCosigner("w2.example"), newCosigner("w3.example")
	p, err := witness.ParsePolicy([]byte("log " + key.VerifierText + "\nwitness w1 " + w1.vkey() + "\nwitness w2 " + w2.vkey() + "\nwitness w3 " + w3.vkey() +
		"\ngroup two 2 w1 w2 w3\nquorum two\n"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 22, 6, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	signed, stolen := checkpointOf(t, key, 7), checkpointOf(t, other, 7)
	text := textOf(signed)
	tests := map[string]struct {
		signed, fault string
		time          time.Time
	}{
		"two of three":                {signed + w1.cosign(text, ago(time.Hour)) + w3.cosign(text, ago(time.Minute)), "", ago(time.Hour)},
		"all three":                   {signed + w1.cosign(text, ago(time.Hour)) + w3.cosign(text, ago(time.Minute)) + w2.cosign(text, now), "", ago(time.Minute)},
		"years ago":                   {signed + w1.cosign(text, ago(9e4*time.Hour)) + w3.cosign(text, ago(9e4*time.Hour)), "", ago(9e4 * time.Hour)},
		"with strangers' lines":       {signed + newCosigner("w4").cosign(text, now) + w1.cosign(text, now) + w2.cosign(text, now), "", now},
		"a clock slightly ahead":      {signed + w1.cosign(text, now.Add(4*time.Minute)) + w2.cosign(text, now), "", now},
		"one only":                    {signed + w1.cosign(text, now), "required cosignatures: 2 of (w1, w2, w3); present: w1", now},
		"none":                        {signed, "present: none", now},
		"one twice":                   {signed + w1.cosign(text, now) + w1.cosign(text, ago(time.Second)), "present: w1", now},
		"of the future":               {signed + w1.cosign(text, now.Add(time.Hour)) + w2.cosign(text, now), "w1 cosigned at 2026-11-22T07:00:00Z, which is in the future", now},
		"over another text":           {signed + w1.cosign(textOf(checkpointOf(t, key, 8)), now) + w2.cosign(text, now), "the cosignature of w1.example", now},
		"another log of its name":     {stolen + w1.cosign(textOf(stolen), now) + w2.cosign(textOf(stolen), now), "not signed by a log of the policy", now},
		"cosignatures without a log":  {text + "\n" + w1.cosign(text, now) + w2.cosign(text, now), "not signed by a log of the policy", now},
		"no note":                     {"hello\n", "the signature is missing", now},
		"a witness's key by its name": {signed + named(w1, "w9").cosign(text, now) + w2.cosign(text, now), "present: w2", now},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := p.Open([]byte(test.signed), now)
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("error %v, want %q", err, test.fault)
				}
				return
			}
			if err != nil || c.Tree.N != 7 || !c.Time.Equal(test.time) {
				t.Errorf("%v, %d records, complete at %s; want %s", err, c.Tree.N, c.Time, test.time)
			}
		})
	}
}

func named(c cosigner, name string) cosigner {
	c.name = name
	return c
}

func TestAPolicyWithoutLogsOpensNothing(t *testing.T) {
	t.Parallel()
	p, err := witness.ParsePolicy([]byte("quorum none\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Open([]byte(checkpointOf(t, newLog(t, "example.com/log"), 1)), time.Now())
	if _, missing := errors.AsType[*witness.QuorumError](err); err == nil || missing || !strings.Contains(err.Error(), "lacks a log") {
		t.Errorf("error %v", err)
	}
}
