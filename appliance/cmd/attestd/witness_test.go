package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// policyHolder is an auditor who has a policy, and no other data of the appliance.
type policyHolder struct {
	*testing.T
	dir string
}

func (a policyHolder) path(name string) string { return filepath.Join(a.dir, name) }

func (a policyHolder) write(name, text string) string {
	a.Helper()
	if err := os.WriteFile(a.path(name), []byte(text), 0o600); err != nil {
		a.Fatal(err)
	}
	return a.path(name)
}

// checks runs a command whose output must contain says. With good, its exit status must be 0.
func (a policyHolder) checks(good bool, says string, args ...string) {
	a.Helper()
	cmd := (&daemontest.Daemon{Dir: a.dir}).Command(args...)
	cmd.Env = append(os.Environ(), "ATTESTD_CONFIG=")
	out, err := cmd.CombinedOutput()
	if (err == nil) != good || !strings.Contains(string(out), says) {
		a.Errorf("attestd %s: %v, want %q\n%s", strings.Join(args, " "), err, says, out)
	}
}

// witnessed is an appliance whose checkpoints two real witnesses cosign, and a remote auditor.
type witnessed struct {
	*daemontest.Daemon
	auditor policyHolder
	key     journal.LogKey
}

func newWitnessed(t *testing.T) *witnessed {
	t.Helper()
	d := daemontest.New(t)
	d.Run(t, "log", "checkpoint")
	secret, err := os.ReadFile(filepath.Join(d.Dir, "data", archive.LogKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := journal.ParseLogKey(string(secret))
	if err != nil {
		t.Fatal(err)
	}
	w := &witnessed{d, policyHolder{t, t.TempDir()}, key}
	policy := "log " + key.VerifierText + "\n"
	names := ""
	for _, each := range realWitnesses(t, key.VerifierText) {
		policy += each.line()
		names += " " + each.name
	}
	path := w.auditor.write("policy", policy+"group both all"+names+"\nquorum both\n")
	d.Configure("ATTESTD_JOURNAL_WITNESSES="+path, "ATTESTD_JOURNAL_WITNESS_INTERVAL=100ms", "ATTESTD_HSM_SESSIONS=1")
	return w
}

// attest attests n times, and returns the last attestation.
func (w *witnessed) attest(t *testing.T, n int) (a appliance.Attestation) {
	t.Helper()
	c, err := client.New(w.URL, w.Token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if a, err = c.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{}); err != nil {
			t.Fatalf("%v\n%s", err, w.Log())
		}
	}
	return a
}

// audit returns an export, and a witnessed checkpoint of exactly its records.
func (w *witnessed) audit(t *testing.T) (journal, checkpoint string) {
	t.Helper()
	daemontest.Await(t, "the witnesses are up with the journal", func() (bool, string) {
		journal, checkpoint = w.Run(t, "log", "export"), w.Run(t, "log", "checkpoint")
		return strings.Split(checkpoint, "\n")[1] == fmt.Sprint(strings.Count(journal, "\n")), checkpoint
	})
	return journal, checkpoint
}

func TestARewrittenJournalIsCaughtByAPolicyAlone(t *testing.T) {
	t.Parallel()
	w := newWitnessed(t)
	a := w.auditor
	policy := a.path("policy")
	w.Start(t)
	last := w.attest(t, 12)
	proof := a.write("good.tlog-proof", w.Run(t, "log", "prove", last.ID.String(), "--witnessed"))
	inJSON := a.write("good.json", w.Run(t, "log", "prove", last.ID.String(), "--witnessed", "--output", "json"))
	j, checkpoint := w.audit(t)
	export, signed := a.write("good.ndjson", j), a.write("good.checkpoint", checkpoint)

	signer := last.SignerAddress.String()
	a.checks(true, "The attestation is good", "verify", proof, "--policy", policy, "--signer", signer)
	a.checks(true, "cosigned by transparency at", "verify", inJSON, "--policy", policy, "--signer", signer)
	a.checks(false, "not checked: signer", "verify", proof, "--policy", policy)
	a.checks(false, "not checked: signer, witnessed", "verify", proof)
	a.checks(true, "Journal integrity: verified", "log", "verify", export, "--checkpoint", signed, "--policy", policy)
	if _, served := w.Ask(t, http.MethodGet, "/log/checkpoint", "", nil); served != checkpoint ||
		strings.Count(served, "\n— witness.example/") != 2 {
		t.Errorf("GET /log/checkpoint: %s", served)
	}
	if out := w.Run(t, "log", "verify", "--policy", policy); !strings.Contains(out, "witnessed: ") {
		t.Errorf("log verify: %s", out)
	}
	ended := w.load(t)
	w.types(t, last)
	ended()
	_, newest, err := journal.ReadCheckpoint([]byte(w.Run(t, "log", "checkpoint", "--newest")))
	if err != nil {
		t.Fatal(err)
	}
	w.Kill(t)

	for _, records := range []int{5, int(newest.N) + 20} { // fewer than before, and more
		forged := w.rewrite(t, j, records)
		forgedExport := a.write("forged.ndjson", w.Run(t, "log", "export"))
		forgedCheckpoint := w.Run(t, "log", "checkpoint", "--newest")
		_, cosignatures, _ := strings.Cut(checkpoint, "\n— witness")
		a.checks(true, "Journal integrity: verified", "log", "verify", forgedExport, "--checkpoint",
			a.write("f", forgedCheckpoint), "--verifier-key", w.key.VerifierText)
		a.checks(false, "no quorum: required", "log", "verify", forgedExport, "--checkpoint",
			a.write("f", forgedCheckpoint), "--policy", policy)
		a.checks(false, "does not verify", "log", "verify", forgedExport, "--checkpoint",
			a.write("f", forgedCheckpoint+"— witness"+cosignatures), "--policy", policy)
		a.checks(false, "DAMAGED", "log", "verify", forgedExport, "--checkpoint", signed, "--policy", policy)
		inForged := w.Run(t, "log", "prove", forged.ID.String(), "--output", "json")
		a.checks(false, "no quorum: required", "verify", a.write("f", inForged), "--policy", policy)
		a.checks(false, "not in the tree of the checkpoint",
			"verify", a.write("f", transplanted(t, inForged, checkpoint)), "--policy", policy)
		w.Start(t)
		w.alarms(t)
		w.attest(t, 1) // no witness can prevent it
		daemontest.Await(t, "the journal has an event of each", func() (bool, string) {
			events := w.Run(t, "log", "list", "--events")
			return strings.Count(events, string(journal.EventContradiction)) >= 2, events
		})
		w.Kill(t)
	}
}

// load attests five times per second, up to 500 times, until end is called.
func (w *witnessed) load(t *testing.T) (end func()) {
	t.Helper()
	c, err := client.New(w.URL, w.Token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for range 500 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := c.Attest(ctx, daemontest.RandomRequest(), client.AttestOptions{}); err != nil && ctx.Err() == nil {
				t.Errorf("attest under load: %v", err)
			}
		}
	}()
	return func() { stop(); <-done }
}

// types runs the commands of docs/witness.md: the operator's with the appliance's configuration, the auditor's without.
func (w *witnessed) types(t *testing.T, last appliance.Attestation) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/witness.md")
	if err == nil {
		err = os.Rename(w.auditor.path("policy"), w.auditor.path("witnesses.policy"))
	}
	if err == nil {
		err = os.Symlink("witnesses.policy", w.auditor.path("policy")) // the daemon's name for it
	}
	if err != nil {
		t.Fatal(err)
	}
	typed := 0
	for line := range strings.Lines(string(text)) {
		command, isTyped := strings.CutPrefix(line, "$ ")
		if !isTyped {
			continue
		}
		typed++
		cmd := exec.CommandContext(t.Context(), "sh", "-ec",
			strings.NewReplacer("ID", last.ID.String(), "ADDRESS", last.SignerAddress.String()).Replace(command))
		cmd.Dir, cmd.Env = w.auditor.dir, w.Command().Env
		if strings.Contains(command, "--policy") {
			cmd.Env = append(os.Environ(), "ATTESTD_CONFIG=")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s%v\n%s", command, err, out)
		}
	}
	if typed != 5 {
		t.Errorf("%d commands are told", typed)
	}
}

// rewrite replaces the appliance's journal by one without its first record and with other records at its end. It
// simulates a thief of the log key who also deletes the high-water mark. It returns the newest record.
func (w *witnessed) rewrite(t *testing.T, j string, records int) (newest appliance.Record) {
	t.Helper()
	data := filepath.Join(w.Dir, "data")
	kept, err := filepath.Glob(filepath.Join(data, archive.StoreFile+"*")) // and its write-ahead log
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(data, highwater.FileName)
	for _, path := range append(kept, mark, highwater.NewestPath(mark), filepath.Join(data, witness.FileName)) {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	var leaves []appliance.Record
	for _, line := range strings.Split(strings.TrimSpace(j), "\n") {
		if e, err := journal.DecodeEntry(0, []byte(line)); err == nil && e.Event == nil {
			leaves = append(leaves, e.Record)
		}
	}
	s, err := bolt.Open(filepath.Join(data, archive.StoreFile),
		bolt.Options{Signer: w.key.Signer, Verifier: w.key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, token, err := appliance.NewAPIKey(
		appliance.KeyRequest{Name: "forged", Scopes: []appliance.Scope{appliance.ScopeAttest}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Keys().Create(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	w.Token = token
	for i := range records {
		newest = leaves[1+i%(len(leaves)-1)]
		newest.ID[15] ^= byte(i / (len(leaves) - 1))
		newest.KeyID, newest.IdempotencyKey = key.ID, ""
		if _, _, err := s.Journal().Append(t.Context(), newest); err != nil {
			t.Fatal(err)
		}
	}
	return newest
}

// transplanted is a proof with another checkpoint.
func transplanted(t *testing.T, proof, checkpoint string) string {
	t.Helper()
	var p struct {
		Leaf  []byte                 `json:"leaf"`
		Proof journal.InclusionProof `json:"proof"`
	}
	if err := json.Unmarshal([]byte(proof), &p); err != nil {
		t.Fatal(err)
	}
	p.Proof.Checkpoint = checkpoint
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alarms waits until both witnesses have contradicted the journal, and checks that all report it.
func (w *witnessed) alarms(t *testing.T) {
	t.Helper()
	daemon := client.NewAdmin(filepath.Join(w.Dir, "admin.sock"))
	defer daemon.Close()
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	for contradict := 0; contradict < 2; {
		s, err := daemon.Witnesses(ctx)
		if err != nil {
			t.Fatalf("%v: %+v\n%s", err, s, w.Log())
		}
		contradict = 0
		for _, each := range s.Witnesses {
			if each.Contradicts {
				contradict++
			}
		}
		time.Sleep(10 * time.Millisecond) // between two polls
	}
	if n := strings.Count(string(w.Log()), "CONTRADICTION"); n != 2 {
		t.Errorf("%d alarms\n%s", n, w.Log())
	}
	out, err := w.Command("doctor").CombinedOutput()
	if n := strings.Count(string(out), "contradicts the journal since"); err == nil || n != 2 {
		t.Errorf("doctor: %v\n%s", err, out)
	}
}
