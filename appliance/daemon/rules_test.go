package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance/config"
)

// addresses are lines of a screening list.
func addresses(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "0x%040x\n", i+1)
	}
	return b.String()
}

func denying(n int) string {
	return "deny:\n  beneficiary:\n  - " + strings.Join(strings.Fields(addresses(n)), "\n  - ") + "\n"
}

// Each step is a content of a file, and whether it is accepted without a flag, with --allow-shorter and with
// --allow-empty.
func TestRulesThatGotLostAreConfirmedFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, next          string
		isPolicy              bool
		plain, shorter, empty bool
	}{
		"a list grows":                   {before: addresses(4), next: addresses(5), plain: true},
		"a list loses half":              {before: addresses(4), next: addresses(2), plain: true},
		"a list loses more than half":    {before: addresses(5), next: addresses(2), shorter: true},
		"a list is truncated to nothing": {before: addresses(5), next: "", empty: true},
		"a list has comments only":       {before: addresses(5), next: "# none today\n", empty: true},
		"the first list is empty":        {next: "", empty: true},
		"an empty list stays":            {before: " ", next: " ", plain: true},
		"a policy is truncated":          {isPolicy: true, before: denying(12), next: "", empty: true},
		"a policy is white space":        {isPolicy: true, before: denying(2), next: "\n", empty: true},
		"a policy loses more than half":  {isPolicy: true, before: denying(10), next: denying(4), shorter: true},
		"a policy loses half":            {isPolicy: true, before: denying(12), next: denying(6), plain: true},
		"a small policy loses most":      {isPolicy: true, before: denying(9), next: denying(1), plain: true},
		"a policy says that it is empty": {isPolicy: true, before: denying(3), next: "# no rules\n", plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for flag, confirmed := range map[string]Confirmed{"": {}, "--allow-shorter": {Shorter: true},
				"--allow-empty": {Empty: true}} {
				f, conf := filepath.Join(t.TempDir(), "rules"), &config.Config{DataDir: t.TempDir()}
				conf.Attestation.ScreeningList = f
				if c.isPolicy {
					conf.Attestation.ScreeningList, conf.Attestation.Policy = "", f
				}
				if c.before != "" {
					writeFile(t, f, c.before)
					if err := ConfirmRules(conf, Confirmed{Empty: true}); err != nil {
						t.Fatal(err)
					}
				}
				writeFile(t, f, c.next)
				want := c.plain || confirmed.Shorter && c.shorter || confirmed.Empty && c.empty
				if err := ConfirmRules(conf, confirmed); (err == nil) != want {
					t.Errorf("reload %s: %v", flag, err)
				}
				// The next start accepts confirmed files without a flag, and refuses refused files with the remedy.
				err := CheckReferences(conf)
				named := err != nil && strings.Contains(err.Error(), f) &&
					strings.Contains(err.Error(), "attestd reload --allow-")
				if named == want {
					t.Errorf("a start after reload %s: %v", flag, err)
				}
			}
		})
	}
}

// The event of a policy has the hash of each file in effect, before and after.
func TestTheEventOfAPolicyCoversEachFile(t *testing.T) {
	t.Parallel()
	c := &config.Config{}
	c.Attestation.Policy, c.Attestation.ScreeningList = filepath.Join(t.TempDir(), "p"), filepath.Join(t.TempDir(), "s")
	writeFile(t, c.Attestation.Policy, "caps: { day: 1 }\n")
	writeFile(t, c.Attestation.ScreeningList, addresses(1))
	read := func() rules {
		p, err := ReadPolicy(c)
		if err != nil {
			t.Fatal(err)
		}
		return rulesOf(p)
	}
	first := read()
	writeFile(t, c.Attestation.ScreeningList, addresses(2))
	second := read()
	if first.equal(second) || !first.Policy.same(second.Policy) {
		t.Error("another screening list is not another state of the rules")
	}
	d := policyEvent(first, second, nil, "alice").Details
	if d["policy"] == "" || d["policy"] != d["policyBefore"] || d["screeningList"] == "" ||
		d["screeningList"] == d["screeningListBefore"] {
		t.Errorf("the event has %v", d)
	}
	c.Attestation.ScreeningList = ""
	if d := policyEvent(second, read(), nil, "").Details; d["screeningList"] != "" ||
		d["screeningListBefore"] != second.Screening.SHA256 {
		t.Errorf("without the list the event has %v", d)
	}
}

func TestANamedPipeIsNoPolicy(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{ignore(readScreening(pipe)), ignore(ReadPolicyFile(pipe))} {
		// neither blocks on the pipe
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%v", err)
		}
	}
}

func ignore[T any](_ T, err error) error { return err }

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
