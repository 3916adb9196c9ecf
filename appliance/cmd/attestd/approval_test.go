package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/passkeytest"
)

// passkeys of the scripts, by their folder and the person's name.
var passkeys sync.Map

func passkeyOf(ts *testscript.TestScript, name string) *passkeytest.Passkey {
	p, _ := passkeys.LoadOrStore(ts.Getenv("WORK")+" "+name, passkeytest.New(name, "localhost"))
	return p.(*passkeytest.Passkey)
}

// passkey acts in the console's place, with an authenticator in software:
//
//	passkey enrol SOCKET NAME       sets APPROVAL
//	passkey newest SOCKET -         sets APPROVAL to the newest
//	passkey approve SOCKET NAME     approves APPROVAL
//	passkey forge CONFIG NAME       records an approval of APPROVAL, as only root and the log's key can
func passkey(ts *testscript.TestScript, negated bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: passkey enrol|newest|approve|forge SOCKET|CONFIG NAME")
	}
	p, ctx := passkeyOf(ts, args[2]), context.Background()
	admin := client.NewAdmin(ts.MkAbs(args[1]))
	defer admin.Close()
	var err error
	switch id, _ := uuid.Parse(ts.Getenv("APPROVAL")); args[0] {
	case "enrol":
		var asked approval.Listed
		asked, err = admin.EnrolApprover(ctx, wire.Enrolment{Name: p.Name, Credential: p.Credential,
			PublicKey: p.PublicKey, RPID: p.RPID})
		ts.Setenv("APPROVAL", asked.ID.String())
	case "newest":
		all, failed := admin.Approvals(ctx)
		ts.Check(failed)
		ts.Setenv("APPROVAL", all[0].ID.String())
	case "approve":
		shown, failed := admin.Approval(ctx, id)
		ts.Check(failed)
		_, err = admin.Approve(ctx, id, p.Sign(shown.Challenge))
	case "forge":
		c, failed := (&config.Source{}).LoadFile(ts.MkAbs(args[1]), nil)
		ts.Check(failed)
		if url := ts.Getenv("ATTESTD_STORE_URL"); url != "" {
			c.Store.URL = config.DatabaseURL(url)
		}
		err = daemon.RecordEvent(ctx, c, journal.Event{Kind: journal.EventApprovalGiven,
			Details: map[string]string{approval.DetailApproval: id.String(), approval.DetailApprover: "alice",
				approval.DetailCredential: p.Credential}})
	}
	if (err != nil) != negated {
		ts.Fatalf("%v: %v", args, err)
	}
	if err != nil {
		ts.Logf("%v", err)
	}
}

// asks KEYFILE IDEMPOTENCY-KEY CODE requests an attestation at ATTESTD_URL. It expects the code, or OK, and sets
// APPROVAL.
func asks(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 3 {
		ts.Fatalf("usage: asks KEYFILE IDEMPOTENCY-KEY CODE|OK")
	}
	c, err := client.New(ts.Getenv("ATTESTD_URL"), strings.TrimSpace(ts.ReadFile(args[0])), client.Options{})
	ts.Check(err)
	_, err = c.Attest(context.Background(),
		appliance.Request{UnspendableAddress: appliance.Address{1}, Beneficiary: appliance.Address{2}},
		client.AttestOptions{IdempotencyKey: args[1]})
	if got := client.CodeOf(err); string(got) != args[2] && (err != nil || args[2] != "OK") {
		ts.Fatalf("an attestation: %v, want code %s", err, args[2])
	}
	if p, ok := errors.AsType[*client.Problem](err); ok {
		ts.Setenv("APPROVAL", p.ApprovalID)
	}
}

// The script approvals.txtar runs the commands of docs/approvals.md.
func TestTheCommandsOfApprovalsAreTyped(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/script/approvals.txtar")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../docs/approvals.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?m)^ *# (attestd .*)$").FindAllStringSubmatch(string(text), -1)
	if len(commands) == 0 {
		t.Fatal("there are no commands")
	}
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)
	for _, c := range commands {
		if want := "exec " + id.ReplaceAllString(c[1], "$$APPROVAL") + "\n"; !strings.Contains(string(script), want) {
			t.Errorf("%q is not typed", want)
		}
	}
}
