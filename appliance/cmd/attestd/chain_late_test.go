package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/redemptions"
)

// A stolen signature is redeemed, and then an API key attests its addresses: the alarm stays, for the appliance and for
// an auditor.
func TestAnAlarmIsNotWipedWithAnAPIKey(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.Start(t)
	defer func() { w.Kill(t) }()
	_, body := w.Ask(t, http.MethodGet, "/functions/v1/attestor", "", nil)
	if err := json.Unmarshal([]byte(body), &struct{ SignerAddress *appliance.Address }{&w.signer}); err != nil {
		t.Fatal(err)
	}
	w.node.SetAttestor(t, w.signer)
	stolen := w.stolenOver(t, digestOf(t, devUnspendable, devBeneficiary))
	w.node.Redeem(t, stolen, 5_000_000)
	w.awaitChain(t, "the alarm", func(s chain.Status) bool { return s.Contracts[0].Unknown == 1 && s.Halted })
	daemontest.Await(t, "the journal has the alarm", func() (bool, string) {
		out := w.Run(t, "log", "list", "--events")
		return strings.Contains(out, "unknown_redemption"), out
	})
	w.Run(t, "resume")
	if ours := w.attest(t); ours.Hash != stolen.Hash {
		t.Fatalf("%s is attested, and %s was stolen", ours.Hash, stolen.Hash)
	}
	stays := func(when string) {
		t.Helper()
		w.awaitReading(t)
		w.Fails(t, "chain", "status")
		if out := w.Run(t, "chain", "redemptions", "--unknown"); !strings.Contains(out, stolen.Hash.String()) {
			t.Errorf("%s: %s", when, out)
		}
	}
	stays("after it was attested")
	w.Kill(t)
	w.Start(t)
	stays("after a restart")

	dir := t.TempDir()
	write(t, filepath.Join(dir, "journal.ndjson"), []byte(w.Run(t, "log", "export")))
	write(t, filepath.Join(dir, "checkpoint"), []byte(w.Run(t, "log", "checkpoint")))
	audit := exec.Command("attestd", "chain", "verify", "journal.ndjson", "--checkpoint",
		"checkpoint", "--verifier-key", w.VerifierKey(t),
		"--contract", chaintest.Contract.String(), "--rpc", w.node.URL, "--confirmations", "0")
	audit.Env, audit.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
	if out, err := audit.CombinedOutput(); err == nil || !strings.Contains(string(out), stolen.Hash.String()) ||
		!strings.Contains(string(out), "AFTER the redemption") {
		t.Errorf("an auditor: %v\n%s", err, out)
	}
}

// digestOf is the digest that the appliance signs for two addresses.
func digestOf(t *testing.T, unspendable, beneficiary string) appliance.Digest {
	t.Helper()
	scheme, err := appliance.NewScheme(appliance.SchemeNames[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	var r appliance.Request
	if r.UnspendableAddress, err = appliance.ParseAddress(unspendable); err == nil {
		r.Beneficiary, err = appliance.ParseAddress(beneficiary)
	}
	if err != nil {
		t.Fatal(err)
	}
	return scheme.Digest(r)
}

func TestAnExportAccountsForWhatItHadBefore(t *testing.T) {
	t.Parallel()
	block := time.Unix(1_800_000_000, 0)
	r := chain.Redemption{Hash: appliance.Digest{1: 0xaa}, TransactionHash: appliance.Digest{0xbb}, Time: block}
	attested := func(after time.Duration) journal.Entry {
		return journal.Entry{Record: appliance.Record{Attestation: appliance.Attestation{Hash: r.Hash},
			Time: block.Add(after)}}
	}
	alarm := func(transaction appliance.Digest) journal.Entry {
		return journal.Entry{Event: &journal.Event{
			Kind:    chain.EventUnknownRedemption,
			Details: map[string]string{"transactionHash": transaction.String(), "hash": r.Hash.String()},
		}}
	}
	for name, c := range map[string]struct {
		entries []journal.Entry
		unknown bool
	}{
		"nothing":             {unknown: true},
		"before":              {entries: []journal.Entry{attested(-time.Second)}},
		"in its second":       {entries: []journal.Entry{attested(time.Second)}},
		"three seconds later": {entries: []journal.Entry{attested(3 * time.Second)}, unknown: true},
		"before, and again": {entries: []journal.Entry{attested(-time.Second),
			attested(time.Hour)}},
		"after its alarm, of a block ahead": {entries: []journal.Entry{alarm(r.TransactionHash),
			attested(-time.Second)}, unknown: true},
		"after the alarm of another part": {entries: []journal.Entry{alarm(appliance.Digest{0xcc}),
			attested(-time.Second)}},
		"before an alarm that was not one": {entries: []journal.Entry{attested(-time.Second),
			alarm(r.TransactionHash)}},
		"before its alarm, and again after it": {entries: []journal.Entry{attested(-time.Second),
			alarm(r.TransactionHash), attested(time.Second)}},
	} {
		x := newAuditedExport()
		for i, e := range c.entries {
			e.Index = int64(i)
			x.add(e)
		}
		if found := x.judge(r); (found != nil) != c.unknown {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// Pending redemptions are not called unknown: after a restore of chain.db there may be thousands of genuine ones.
func TestPendingRedemptionsAreNotUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := redemptions.Open(filepath.Join(dir, "chain.db"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Begin("usdc", chaintest.Contract, []string{"rpc"}); err != nil {
		t.Fatal(err)
	}
	var all []chain.Redemption
	for n := range 3 {
		all = append(all, chain.Redemption{Contract: "usdc", Hash: appliance.Digest{byte(n + 1)}, Block: uint64(n),
			Time: time.Unix(1_800_000_000, 0)})
	}
	if err := store.Advance("usdc", "rpc", chain.Block{Number: 9}, all); err != nil {
		t.Fatal(err)
	}
	all[2].Judgement = chain.Judgement{Verdict: chain.Unknown, Reports: []string{"rpc"}, Open: true}
	if err := store.SetVerdicts("usdc", all[2:]); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	lists := func(args ...string) string {
		cmd := exec.Command("attestd", append([]string{"chain", "redemptions"}, args...)...)
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "ATTESTD_DATA_DIR=" + dir,
			"ATTESTD_ADMIN_SOCKET=" + filepath.Join(dir, "admin.sock"),
			`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": ["https://rpc.example.com"], "address": "` +
				chaintest.Contract.String() + `"}]`,
			"ATTESTD_HSM_URI=pkcs11:token=t;object=o?module-path=/lib/none.so&pin-source=file:/none",
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if out := lists("--unknown"); !strings.Contains(out, all[2].Hash.String()) || strings.Contains(out,
		all[0].Hash.String()) || !strings.Contains(out,
		"2 redemptions are not listed, because they have not been compared with the journal yet") {
		t.Errorf("--unknown:\n%s", out)
	}
	if out := lists(); strings.Count(out, " pending ") != 2 {
		t.Errorf("all:\n%s", out)
	}
	if out := lists("--output", "json"); strings.Count(out, `"verdict": ""`)+strings.Count(out, `"verdict":""`) != 2 {
		t.Errorf("all as JSON:\n%s", out)
	}
}
