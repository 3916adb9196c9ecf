package drills

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/quorum"
)

// Each member can coordinate, and each request succeeds while one of the three members is killed, stopped or slow.
func TestAQuorumAttestsWithoutAnyOneMember(t *testing.T) {
	q := startQuorum(t, 2)
	a, b, c := q.members[0], q.members[1], q.members[2]
	n := 0
	next := func() int { n++; return n }
	made, err := a.attestAs(t, next(), "order-1")
	if err != nil || made.status != http.StatusOK ||
		made.VerifyQuorum([]appliance.Address{a.signer, b.signer, c.signer}, 2) != nil {
		t.Fatalf("%v %s\n%s", err, made.text, a.Log())
	}
	if again, err := a.attestAs(t, 1, "order-1"); err != nil || again.text != made.text {
		t.Errorf("a repeat: %v\n%s\n%s", err, again.text, made.text)
	}
	back := "/functions/v1/attest/" + made.ID.String()
	if _, text := a.Ask(t, http.MethodGet, back, a.Token, nil); !strings.Contains(text, strings.Trim(made.text, "{}")) {
		t.Errorf("reading back: %s\n%s", text, made.text)
	}
	a.Write(t, "made.json", made.text)
	out := a.Run(t, "verify", filepath.Join(a.Dir, "made.json"),
		"--unspendable", fmt.Sprintf("0x%040x", 0xa001), "--beneficiary", fmt.Sprintf("0x%040x", 0xb001))
	if !strings.Contains(out, "quorum") {
		t.Error(out)
	}
	if out := a.Run(t, "quorum", "status"); !strings.Contains(out, "2 of 3 members") || !strings.Contains(out, c.name) {
		t.Error(out)
	}
	a.Run(t, "quorum", "test")
	c.signal(t, syscall.SIGSTOP)
	q.attests(next(), a, a, b)
	q.attests(next(), b, a, b)
	q.load(1000, a)
	q.load(2000, b)
	c.signal(t, syscall.SIGCONT)
	c.Kill(t)
	q.attests(next(), a, a, b)
	q.attests(next(), b, a, b)
	q.load(3000, a)
	a.Run(t, "quorum", "status") // enough are left
	b.Kill(t)
	if out := a.Fails(t, "quorum", "status"); !strings.Contains(out, "no attestation can be made") {
		t.Error(out)
	}
	refused, err := a.attestAs(t, next(), "")
	if err != nil || refused.status != http.StatusServiceUnavailable ||
		refused.Code != appliance.CodeQuorumUnreachable ||
		refused.retryAfter == "" || len(refused.Members) != 2 {
		t.Errorf("a member alone: %v, %s", err, refused.text)
	}
	b.Start(t)
	q.attests(next(), a, a, b)
	c.Start(t)
	q.auditAll()
}

// A request that one member refuses by its rules needs the others. With two refusals, no repeat can succeed.
func TestTheMembersOwnRulesEndARequest(t *testing.T) {
	q := startQuorum(t, 2)
	a, b, c := q.members[0], q.members[1], q.members[2]
	screen := func(m *quorumMember) {
		m.Write(t, "screened", fmt.Sprintf("0x%040x\n", 0xb001))
		m.Configure("ATTESTD_ATTESTATION_SCREENING_LIST=" + filepath.Join(m.Dir, "screened"))
		m.restart(t)
	}
	screen(c)
	q.attests(1, a, a, b)
	screen(b)
	got, err := a.attestAs(t, 1, "")
	slices.SortFunc(got.Members, func(x, y appliance.MemberFailure) int { return strings.Compare(x.Member, y.Member) })
	want := []appliance.MemberFailure{{Member: b.name, Code: appliance.CodeScreened},
		{Member: c.name, Code: appliance.CodeScreened}}
	if err != nil || got.status != http.StatusForbidden || got.Code != appliance.CodeQuorumRefused ||
		!slices.Equal(got.Members, want) {
		t.Errorf("%v, %d %s", err, got.status, got.text)
	}
	q.attests(2, c, a, b, c) // its pair is on no list
}

// An answer with another digest, another signer or a bad signature does not count, and is an event and a metric.
func TestALyingMemberNeverSpoilsAnAttestation(t *testing.T) {
	q := startQuorum(t, 2)
	a, b, c := q.members[0], q.members[1], q.members[2]
	lies := map[string]func(*appliance.Attestation){
		"another digest":  func(a *appliance.Attestation) { a.Hash[31] ^= 1 },
		"another signer":  func(a *appliance.Attestation) { a.SignerAddress[0] ^= 1 },
		"a bad signature": func(a *appliance.Attestation) { a.Signature.R[31] ^= 1 },
	}
	n := 0
	for name, lie := range lies {
		n++
		b.lie(lie)
		q.attests(n, a, a, c)
		c.Kill(t)
		got, err := a.attestAs(t, n+100, "")
		lied := appliance.MemberFailure{Member: b.name, Code: quorum.CodeInvalidAnswer}
		if err != nil || got.Code != appliance.CodeQuorumUnreachable || !slices.Contains(got.Members, lied) {
			t.Errorf("%s: %v, %s", name, err, got.text)
		}
		c.Start(t)
	}
	b.network.Store(nil)
	daemontest.Await(t, "the events", func() (bool, string) {
		out := a.Run(t, "log", "export")
		return strings.Count(out, `"event":"`+string(quorum.EventInvalidAnswer)+`"`) >= 3, out
	})
	q.attests(50, a, a, b, c)
	admin := client.NewAdmin(filepath.Join(a.Dir, "admin.sock"))
	defer admin.Close()
	s, err := admin.QuorumTest(t.Context())
	text, _ := json.Marshal(s)
	if err != nil || len(s.Members) != 2 || s.Members[0].Error+s.Members[1].Error != "" || s.Members[0].Invalid < 3 {
		t.Errorf("quorum test: %v %s", err, text)
	}
	q.auditAll()
}

// The coordinator is killed after one member has signed and before the other has. The repeated request gets the
// recorded signature, and no member signs twice.
func TestAKilledCoordinatorGetsTheRecordedSignatures(t *testing.T) {
	q := startQuorum(t, 3)
	a, b, c := q.members[0], q.members[1], q.members[2]
	probe := q.attests(7, b, a, b, c) // another request for the same addresses, for its hash
	c.signal(t, syscall.SIGSTOP)
	ended := make(chan error, 1)
	go func() {
		got, err := a.attestAs(t, 7, "order-7")
		if err == nil {
			err = fmt.Errorf("answered %s", got.text)
		}
		ended <- err
	}()
	daemontest.Await(t, "a member has signed", func() (bool, string) {
		records := b.recordsOf(t, probe.Hash)
		return len(records) == 2, fmt.Sprint(records)
	})
	a.Kill(t)
	if err := <-ended; strings.HasPrefix(err.Error(), "answered") {
		t.Fatal(err)
	}
	c.signal(t, syscall.SIGCONT)
	a.Start(t)
	made, err := a.attestAs(t, 7, "order-7")
	if err != nil || made.status != http.StatusOK ||
		made.VerifyQuorum([]appliance.Address{a.signer, b.signer, c.signer}, 3) != nil {
		t.Fatalf("%v %s\n%s", err, made.text, a.Log())
	}
	a.Kill(t) // after the answer: the record is on the disk
	a.Start(t)
	if again, err := a.attestAs(t, 7, "order-7"); err != nil || again.text != made.text {
		t.Errorf("%v\n%s\n%s", err, again.text, made.text)
	}
	for _, m := range []*quorumMember{b, c} {
		// One of the first request, and one of order-7.
		if records := m.recordsOf(t, probe.Hash); len(records) != 2 {
			t.Errorf("%s signed %d times: %v", m.name, len(records), records)
		}
	}
	for _, s := range made.Signatures {
		if s.SignerAddress != a.signer && s.ID == made.ID {
			t.Errorf("a member's record has the id of the attestation: %s", made.text)
		}
	}
	q.auditAll()
}
