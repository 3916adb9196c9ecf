package console

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/journal"
)

// A refusal's page names the rule for each code in the table of docs/policy.md.
func TestEachCodeOfThePolicyHasItsRule(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| rule | code |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile("(?m)^\\| (?:`([a-z_]+)`)?.*?\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(rows) < 7 {
		t.Fatalf("the table: %q", table)
	}
	for _, row := range rows {
		e := journal.Event{Kind: journal.EventRefused, Details: map[string]string{"code": row[2]}}
		if rule := ruleOf(&e); rule == "" || !strings.HasPrefix(rule, row[1]) {
			t.Errorf("%s of the rule %s: %q", row[2], row[1], rule)
		}
	}
}

// Lists leave out what only proves an event. The page of its proof shows it.
func TestListsLeaveOutWhatOnlyProves(t *testing.T) {
	t.Parallel()
	e := journal.Event{Kind: journal.EventKeyCreated, Details: map[string]string{"name": "payments", "secretHash": "aa",
		"authenticatorData": "bb", "clientData": "cc", "credential": "dd", "publicKey": "ee", "signature": "ff"}}
	rows := eventRows([]journal.Entry{{Event: &e}}, nil)
	if len(rows) != 1 || !slices.Equal(rows[0].Details, []string{"name: payments"}) {
		t.Errorf("%+v", rows)
	}
}
