package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
)

// watched is an appliance whose signer is the attestor of a contract on a chain.
type watched struct {
	*daemontest.Daemon
	node   *chaintest.Node
	signer appliance.Address
}

func newWatched(t *testing.T) watched {
	t.Helper()
	node := chaintest.New(t)
	w := watched{Daemon: daemontest.New(t), node: node}
	w.Configure(
		fmt.Sprintf(
			`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": [%q], "address": %q, "start_block": 0, "confirmations": 0}]`, node.URL, chaintest.Contract),
		"ATTESTD_CHAIN_HALT=true", "ATTESTD_CHAIN_POLL_INTERVAL=100ms",
	)
	return w
}

// awaitChain waits for a status of the watchtower.
func (w watched) awaitChain(t *testing.T, what string, is func(s chain.Status) bool) {
	t.Helper()
	daemontest.Await(t, what, func() (bool, string) {
		var s chain.Status
		cmd := w.Command("chain", "status", "--output", "json")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, _ := cmd.Output() // fails on an unknown redemption
		return json.Unmarshal(out, &s) == nil && len(s.Contracts) == 1 && is(s), string(out) + stderr.String()
	})
}

// awaitRedemptions waits until there are count redemptions, all of which the journal has.
func (w watched) awaitRedemptions(t *testing.T, count int) {
	t.Helper()
	daemontest.Await(t, fmt.Sprintf("%d redemptions of ours", count), func() (bool, string) {
		list := w.redemptions(t)
		judged := !slices.ContainsFunc(list, func(r map[string]any) bool { return r["attestationId"] == nil })
		return judged && len(list) == count, fmt.Sprint(list)
	})
}

// redemptions are the redemptions that the command lists.
func (w watched) redemptions(t *testing.T) []map[string]any {
	t.Helper()
	var list struct{ Redemptions []map[string]any }
	if out := w.Run(t, "chain", "redemptions", "--output", "json"); json.Unmarshal([]byte(out), &list) != nil {
		t.Fatal(out)
	}
	return list.Redemptions
}

// attest attests over the API, and fails the test if that is refused.
func (w watched) attest(t *testing.T) appliance.Attestation {
	t.Helper()
	a, status, code := attestation(t, w.Daemon)
	if status != http.StatusOK {
		t.Fatalf("attest: %d %s", status, code)
	}
	return a
}

// stolen is an attestation that was signed with the appliance's key, but not by the appliance.
func (w watched) stolen(t *testing.T, n byte) appliance.Attestation {
	t.Helper()
	return w.stolenOver(t, appliance.Digest{1: 0x5e, 31: n})
}

// stolenOver is a signature by the appliance's key over a digest, made without the appliance.
func (w watched) stolenOver(t *testing.T, digest appliance.Digest) appliance.Attestation {
	t.Helper()
	a := appliance.Attestation{Hash: digest, SignerAddress: w.signer, Signature: w.Steal(t, digest)}
	if err := a.Verify(); err != nil {
		t.Fatal(err)
	}
	return a
}

// The watchtower detects a signature that bypassed the appliance, halts attesting, and continues after 'resume'. An
// auditor without access to the appliance detects it, too.
func TestASignatureThatWeNeverMadeIsCaughtOnChain(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.Start(t)
	defer func() { w.Kill(t) }()
	ours := w.attest(t)
	w.signer = ours.SignerAddress
	awaitReadiness(t, w.Daemon, http.StatusServiceUnavailable, "attestor_mismatch")
	w.awaitChain(t, "there is no attestor yet", func(s chain.Status) bool {
		return s.Contracts[0].SignerMatches != nil && !*s.Contracts[0].SignerMatches &&
			*s.Contracts[0].Attestor == appliance.Address{}.String()
	})
	w.node.SetAttestor(t, w.signer)
	w.node.Redeem(t, ours, 70)
	w.node.Redeem(t, ours, 30)
	w.awaitRedemptions(t, 2)
	w.Run(t, "chain", "status")
	if list := w.redemptions(t); list[0]["attestationId"] != ours.ID.String() || list[0]["amount"] != "70" ||
		list[0]["keyId"] == nil {
		t.Errorf("a part: %v", list[0])
	}

	forged := w.stolen(t, 1)
	tx, block := w.node.Redeem(t, forged, 5_000_000)
	w.awaitChain(t, "the other one is found", func(s chain.Status) bool {
		return s.Contracts[0].Unknown == 1 && s.Halted
	})
	w.Fails(t, "chain", "status")
	if _, status, code := attestation(t, w.Daemon); status != http.StatusServiceUnavailable ||
		code != string(appliance.CodeHalted) {
		t.Errorf("attesting goes on: %d %s", status, code)
	}
	if lines := regexp.MustCompile(`(?m)^.*ERROR.*`+forged.Hash.String()+`.*$`).FindAllString(string(w.Log()),
		-1); len(lines) == 0 {
		t.Errorf("no ERROR line has the hash:\n%s", w.Log())
	}
	last := w.redemptions(t)[2]
	if last["attestationId"] != nil || last["hash"] != forged.Hash.String() || last["transactionHash"] != tx.String() ||
		last["block"] != float64(block) {
		t.Errorf("the unknown redemption: %v", last)
	}
	daemontest.Await(t, "the journal has the alarm", func() (bool, string) {
		out := w.Run(t, "log", "list", "--events")
		return regexp.MustCompile(`unknown_redemption.*`+forged.Hash.String()).MatchString(out) &&
			strings.Contains(out, "halted") && strings.Contains(out, " redeemed "), out
	})
	w.caughtByAnAuditor(t, forged)

	w.Kill(t)
	w.Start(t)
	if _, status, code := attestation(t, w.Daemon); code != string(appliance.CodeHalted) {
		t.Errorf("a restart ends the halt: %d %s", status, code)
	}
	w.Run(t, "resume")
	w.attest(t)
	w.Kill(t)
	w.Start(t)
	w.awaitReading(t)
	w.attest(t)
	w.node.Redeem(t, w.stolen(t, 2), 1)
	w.awaitChain(t, "another one halts again", func(s chain.Status) bool { return s.Halted })
}

// awaitReading waits until the daemon has judged a new block.
func (w watched) awaitReading(t *testing.T) {
	t.Helper()
	w.node.Mine(1)
	head := w.node.Head(t)
	w.awaitChain(t, "the newest block is read", func(s chain.Status) bool { return s.Contracts[0].Block >= head })
}

// caughtByAnAuditor compares the chain with an export, on a machine that has no other data.
func (w watched) caughtByAnAuditor(t *testing.T, forged appliance.Attestation) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "journal.ndjson"), []byte(w.Run(t, "log", "export")))
	write(t, filepath.Join(dir, "checkpoint"), []byte(w.Run(t, "log", "checkpoint")))
	audit := func(checkpoint, contract string) (string, error) {
		cmd := exec.Command("attestd", "chain", "verify", filepath.Join(dir, "journal.ndjson"), "--checkpoint",
			checkpoint, "--verifier-key", w.VerifierKey(t),
			"--contract", contract, "--rpc", w.node.URL, "--confirmations", "0")
		cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := audit(filepath.Join(dir, "checkpoint"), chaintest.Contract.String())
	if err == nil || !strings.Contains(out, forged.Hash.String()) || !strings.Contains(out, "1 of 3 redemptions") ||
		strings.Contains(out, "DAMAGED") {
		t.Errorf("an auditor: %v\n%s", err, out)
	}
	if out, err := audit(filepath.Join(dir, "checkpoint"), chaintest.Attestor.String()); err != nil ||
		!strings.Contains(out, "0 redemptions") {
		t.Errorf("a contract that has redeemed nothing: %v\n%s", err, out)
	}
	if out, err := audit(filepath.Join(dir, "checkpoint"), w.signer.String()); err == nil ||
		!strings.Contains(out, "no contract exists") {
		t.Errorf("no contract: %v\n%s", err, out)
	}
}

// Each command of docs/chain.md works, in order. The commands for an alarm run during one.
func TestTheDocumentOfTheWatchtowerIsTyped(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.Start(t)
	defer func() { w.Kill(t) }()
	ours := w.attest(t)
	w.signer = ours.SignerAddress
	w.node.SetAttestor(t, w.signer)
	w.attest(t)
	w.node.Redeem(t, ours, 1)
	w.node.Redeem(t, w.stolen(t, 1), 2)
	w.awaitChain(t, "the alarm", func(s chain.Status) bool { return s.Halted })
	text, err := os.ReadFile("../../../docs/chain.md")
	if err != nil {
		t.Fatal(err)
	}
	types := strings.NewReplacer(
		"'example.com/attestd+1a2b3c4d+AQ…'", w.VerifierKey(t), "0x00000000000000000000000000000000000A55e7",
		chaintest.Contract.String(),
		"--start-block 21000000", "--start-block 0 --confirmations 0", "https://rpc.example.com", w.node.URL,
	)
	fails := map[string]bool{"chain status": true, "chain verify": true}
	dir, typed := t.TempDir(), 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for _, command := range regexp.MustCompile(`(?m)^[$#] ((?:.*\\\n)*.*)$`).FindAllStringSubmatch(block[1], -1) {
			cmd := exec.Command("sh", "-c", types.Replace(command[1]))
			cmd.Env, cmd.Dir = w.Command().Env, dir
			out, err := cmd.CombinedOutput()
			want := false
			for part := range fails {
				want = want || strings.Contains(command[1], part)
			}
			if (err != nil) != want || cmd.ProcessState.ExitCode() > exitFailure {
				t.Errorf("%s: %v\n%s", command[1], err, out)
			}
			typed++
		}
	}
	if typed < 8 {
		t.Errorf("%d commands were typed", typed)
	}
	w.attest(t) // resume was typed
	if out := w.Fails(t, "doctor"); !regexp.MustCompile(
		`fail +chain +usdc: 1 redemptions are not in the journal.*\n +→ .*list the redemptions: attestd chain redemptions --unknown`).MatchString(out) {
		t.Errorf("doctor:\n%s", out)
	}
}

// While no daemon runs, the chain commands show the state of the last daemon, and doctor asks the contract itself.
func TestTheWatchtowersFilesAreReadWithoutADaemon(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	if out := w.Fails(t, "chain", "status"); !strings.Contains(out, "does not exist") {
		t.Errorf("before the first start: %s", out)
	}
	w.Start(t)
	ours := w.attest(t)
	w.signer = ours.SignerAddress
	attestation(t, w.Daemon) // the same addresses, and so the same hash
	attests(t, w.Daemon)
	w.node.SetAttestor(t, w.signer)
	w.node.Redeem(t, ours, 7)
	w.awaitRedemptions(t, 1)
	w.Kill(t)
	w.Run(t, "chain", "status")
	if list := w.redemptions(t); len(list) != 1 || list[0]["amount"] != "7" {
		t.Errorf("%v", list)
	}
	for flag, want := range map[string]int{"--redeemed": 2, "--unredeemed": 1} {
		var list []map[string]any
		if out := w.Run(t, "log", "list", flag, "--output", "json"); json.Unmarshal([]byte(out), &list) != nil ||
			len(list) != want {
			t.Errorf("log list %s: %s", flag, out)
		}
	}
	if out := w.Run(t, "log", "list", "--redeemed"); !strings.Contains(out, "REDEEMED") ||
		!regexp.MustCompile(` 7\n`).MatchString(out) {
		t.Errorf("log list --redeemed:\n%s", out)
	}
	out, _ := w.Command("doctor").CombinedOutput()
	if !strings.Contains(string(out), "the attestor is this appliance's signer, "+w.signer.String()) {
		t.Errorf("doctor:\n%s", out)
	}
	w.node.SetAttestor(t, chaintest.Contract)
	out, _ = w.Command("doctor").CombinedOutput()
	if !regexp.MustCompile(`chain +usdc: .*its attestor is|chain +usdc: .*the attestor is the contract`).Match(out) {
		t.Errorf("doctor:\n%s", out)
	}
}
