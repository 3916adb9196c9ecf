package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/webhooks"
)

// Fields and findings are wrapped to the available columns, and nothing is cut. With unlimited columns, they have one
// line each.
func TestTextsFitTheirTerminal(t *testing.T) {
	t.Parallel()
	reason := "the upgrade of the contract of the third of November, which the bank had asked for in writing, took longer"
	long := doctor.Finding{State: doctor.Fail, Check: "chain usdc", Detail: reason,
		Remedy: "ask who runs it, then: attestd resume"}
	for name, write := range map[string]func(p *page){
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
				fitted := fits(t, columns, write)
				if got, want := strings.Fields(fitted), strings.Fields(whole.String()); len(got) != len(want) {
					t.Errorf("%d words at %d columns, want %d:\n%s", len(got), columns, len(want), fitted)
				}
			}
		})
	}
}

// fits writes to a page with that many columns, and returns its text.
func fits(t *testing.T, columns int, write func(p *page)) string {
	t.Helper()
	var fitted bytes.Buffer
	write(&page{w: &fitted, columns: columns})
	for line := range strings.Lines(fitted.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("%d of %d columns: %s", n, columns, line)
		}
	}
	return fitted.String()
}

// A narrow table has one line for each row. It first shortens addresses, then leaves out empty columns, then the given
// ones, and cuts texts at last.
func TestATableFitsItsTerminal(t *testing.T) {
	t.Parallel()
	const id, address = "0198c1f2-7a3b-7def-8123-456789abcdef", "0x1111111111111111111111111111111111111111"
	row := []string{"4711", "2026-11-22 09:30:00Z", "-", id, address, "the upgrade of the contract took longer"}
	for _, c := range []struct {
		columns int
		want    string
	}{
		{154, "INDEX  TIME                  BY  ID                                    UNSPENDABLE                                 REASON\n" +
			"4711   2026-11-22 09:30:00Z  -   " + id + "  " + address + "  the upgrade of the contract took longer\n"},
		{123, "INDEX  TIME                  BY  ID                                    UNSPENDABLE  REASON\n" +
			"4711   2026-11-22 09:30:00Z  -   " + id + "  0x1111…1111  the upgrade of the contract took longer\n"},
		{119, "INDEX  TIME                  ID                                    UNSPENDABLE  REASON\n" +
			"4711   2026-11-22 09:30:00Z  " + id + "  0x1111…1111  the upgrade of the contract took longer\n"},
		{80, "INDEX  ID                                    UNSPENDABLE  REASON\n" +
			"4711   " + id + "  0x1111…1111  the upgrade of the co…\n"},
	} {
		got := fits(t, c.columns, func(p *page) {
			table(p, "INDEX\tTIME\tBY\tID\tUNSPENDABLE\tREASON", [][]string{row}, "TIME")
			if p.narrow != (c.columns < 154) {
				t.Errorf("at %d columns, narrow is %v", c.columns, p.narrow)
			}
		})
		if got != c.want {
			t.Errorf("at %d columns:\n%swant:\n%s", c.columns, got, c.want)
		}
	}
}

// The tables of commands whose values are long fit a small terminal, with a line for each row, and keep the columns that
// a reader needs.
func TestTablesOfCommandsFitASmallTerminal(t *testing.T) {
	t.Parallel()
	address := appliance.Address{0x5a, 0xae}
	now, id := time.Now(), uuid.Must(uuid.NewV7())
	name := strings.Repeat("name-", 12)
	refusal := &quorum.Refusal{Time: now, Code: appliance.CodePolicySecond}
	for _, c := range []struct {
		write func(p *page)
		keeps string // a regular expression
	}{
		{func(p *page) {
			writeQuorum(p, quorum.Status{Members: []quorum.MemberStatus{{Name: "lima", Signer: address, Version: "1.2.3+45",
				Signed: 1_000_000, Refused: 7, LastRefusal: refusal, Error: "connection refused: " + name}}})
		}, `lima +0x5aAE…0000 +\S+ +.*connection`},
		{func(p *page) {
			writeCluster(p, wire.Cluster{Members: []wire.Member{{Name: name, Version: "1.2.3+20261121153000.gabcdef123456",
				SignerAddress: address.String(), LastSeen: now}}, Differences: []wire.Difference{{Of: "policy",
				Values: []wire.DifferentValue{{Value: name, Members: []string{name}}}}}}, now)
		}, `name-.*… +0x5aAE…0000 +0 +0 +0s ago`},
		{func(p *page) {
			writeRedemptions(p, []chain.Redemption{{Contract: "usdc", Block: 22_236_429, Time: now, AttestationID: &id,
				KeyID: "k3x5wq7mzp2n4r6t", Hash: appliance.Digest{1}, TransactionHash: appliance.Digest{2}}})
		}, id.String()},
		{func(p *page) {
			writeApprovals(p, []approval.Listed{{State: approval.Waiting, Approval: approval.Approval{ID: id, Asked: now,
				Expires: now, Kind: journal.EventApproverEnrolled, Approver: &approval.Approver{Name: name}}}})
		}, id.String() + ` +waiting +.*enrol name`},
		{func(p *page) {
			writeDeliveries(p, []webhooks.Delivery{{ID: id.String(), Time: now, Type: "approval.requested", Attempt: 3,
				Outcome: webhooks.Failed, Status: 500, Error: name + name}})
		}, id.String() + ` +failed +500 +name`},
	} {
		got := fits(t, 80, c.write)
		if !regexp.MustCompile(c.keeps).MatchString(got) {
			t.Errorf("no %s in\n%s", c.keeps, got)
		}
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
