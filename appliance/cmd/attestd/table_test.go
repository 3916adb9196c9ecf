package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance/doctor"
)

// Long values are wrapped to the available columns, and none is cut. With unlimited columns, a row is one line.
func TestTablesFitTheirTerminal(t *testing.T) {
	t.Parallel()
	reason := "the upgrade of the contract of the third of November, which the bank had asked for in writing, took longer"
	row := []string{"4711", "2026-11-22 09:30:00Z", "0198c1f2-7a3b-7def-8123-456789abcdef", devUnspendable,
		strings.Repeat("a", 66), reason}
	long := doctor.Finding{State: doctor.Fail, Check: "chain usdc", Detail: reason,
		Remedy: "ask who runs it, then: attestd resume"}
	for name, write := range map[string]func(p *page){
		"table": func(p *page) { table(p, "INDEX\tTIME\tID\tUNSPENDABLE\tHASH\tREASON", [][]string{row, row}) },
		"fields": func(p *page) {
			fields(p, [][2]string{{"index", "4711"}, {"idempotency key", ""}, {"reason", reason}})
		},
		"findings": func(p *page) {
			writeFindings(p, []doctor.Finding{{State: doctor.OK, Check: "clock", Detail: "is right"}, long})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var whole bytes.Buffer
			write(&page{w: &whole})
			if !strings.Contains(whole.String(), reason) {
				t.Errorf("without bounds a value is broken:\n%s", whole.String())
			}
			for _, columns := range []int{80, 132} {
				var fitted bytes.Buffer
				write(&page{w: &fitted, columns: columns})
				for line := range strings.Lines(fitted.String()) {
					if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
						t.Errorf("%d of %d columns: %s", n, columns, line)
					}
				}
				if got, want := strings.Fields(fitted.String()), strings.Fields(whole.String()); len(got) != len(want) {
					t.Errorf("%d words at %d columns, want %d:\n%s", len(got), columns, len(want), fitted.String())
				}
			}
		})
	}
}

func TestATableWithRoomIsAsItWas(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	table(&page{w: &b, columns: 80}, "ID\tNAME\tSTATE", [][]string{{"1", "payments", "active"}, {"22", "x"}})
	const want = "ID  NAME      STATE\n1   payments  active\n22  x\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
