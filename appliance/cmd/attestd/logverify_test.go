package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// ownWitness is a witness whose secret key the test has.
type ownWitness struct {
	name string
	key  ed25519.PrivateKey
	hash []byte // of the key
	line string // of a policy
}

func newOwnWitness(name string) ownWitness {
	seed := sha256.Sum256([]byte(name))
	w := ownWitness{name: name + ".example", key: ed25519.NewKeyFromSeed(seed[:])}
	typed := append([]byte{0x04}, w.key.Public().(ed25519.PublicKey)...)
	sum := sha256.Sum256(append([]byte(w.name+"\n"), typed...))
	w.hash = sum[:4]
	w.line = fmt.Sprintf("witness %s %s+%x+%s\n", name, w.name, w.hash, base64.StdEncoding.EncodeToString(typed))
	return w
}

// cosign returns the checkpoint with the witness's cosignature (C2SP tlog-cosignature).
func (w ownWitness) cosign(signed []byte, at time.Time) []byte {
	text, _, _ := strings.Cut(string(signed), "\n\n")
	signature := ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", at.Unix(), text))
	raw := append(binary.BigEndian.AppendUint64(w.hash, uint64(at.Unix())), signature...)
	return fmt.Appendf(nil, "%s— %s %s\n", signed, w.name, base64.StdEncoding.EncodeToString(raw))
}

func policyOf(t *testing.T, log journal.LogKey, w ownWitness) *witness.Policy {
	t.Helper()
	p, err := witness.ParsePolicy(
		[]byte("log " + log.VerifierText + "\n" + w.line + "quorum " + strings.Fields(w.line)[1] + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestARecordedContradictionFailsTheVerification(t *testing.T) {
	t.Parallel()
	b, key := newBusyBackend(t, "example.com/log")
	checkpoint, err := b.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w1, w2 := newOwnWitness("w1"), newOwnWitness("w2")
	event, err := b.store.Journal().AppendEvent(t.Context(),
		journal.Event{Kind: journal.EventContradiction, Details: map[string]string{
			journal.DetailWitness: "w1", journal.DetailWitnessKey: fmt.Sprintf("%s+%x", w1.name, w1.hash),
			journal.DetailReason: "it has cosigned 9 records", journal.DetailCheckpoint: string(checkpoint),
		}})
	if err != nil {
		t.Fatal(err)
	}
	report, err := b.store.Journal().Verify(t.Context(), audit.Options{AnySigner: true})
	if err != nil || !report.OK() {
		t.Fatal(report.Damages, err)
	}
	for name, test := range map[string]struct {
		policy *witness.Policy
		ok     bool
	}{
		"without a policy":      {nil, false},
		"the policy has it":     {policyOf(t, key, w1), false},
		"the policy has others": {policyOf(t, key, w2), true},
	} {
		t.Run(name, func(t *testing.T) {
			found := (&logVerify{witnesses: witnessCheck{policy: test.policy}}).found(report)
			var out strings.Builder
			found.write(&out)
			if found.OK != test.ok || strings.Contains(out.String(), "CONTRADICTED") == test.ok ||
				!strings.Contains(out.String(), event.Event.ID.String()) {
				t.Errorf("ok %t, want %t:\n%s", found.OK, test.ok, &out)
			}
		})
	}
}

func TestNotOlderThanBoundsTheWitnessedCheckpoint(t *testing.T) {
	t.Parallel()
	b, key := newBusyBackend(t, "example.com/log")
	checkpoint, err := b.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w1 := newOwnWitness("w1")
	now := time.Now()
	signed := w1.cosign(checkpoint, now.Add(-time.Hour))
	for notBefore, says := range map[time.Time]string{
		{}:                         "",
		now.Add(-2 * time.Hour):    "",
		now.Add(-30 * time.Minute): "get a newer checkpoint",
	} {
		check := witnessCheck{policy: policyOf(t, key, w1), notBefore: notBefore}
		if _, err := check.open(signed); says == "" && err != nil || says != "" &&
			(err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("not before %v: %v, want %q", notBefore, err, says)
		}
	}
	flag := logVerify{app: new(app), notOlder: "30m"}
	if _, err := flag.options(new(cobra.Command)); err != nil || flag.witnesses.notBefore.IsZero() {
		t.Errorf("--not-older-than 30m: %v, not before %v", err, flag.witnesses.notBefore)
	}
	none, err := witness.ParsePolicy([]byte("log " + key.VerifierText + "\nquorum none\n"))
	if err != nil {
		t.Fatal(err)
	}
	check := witnessCheck{policy: none, notBefore: now.Add(-2 * time.Hour)}
	if _, err := check.open(signed); err == nil ||
		!strings.Contains(err.Error(), "needs a policy with a quorum of witnesses") {
		t.Errorf("a policy without a quorum: %v", err)
	}
}

func TestATruncatedExportSaysWhatWasNotChecked(t *testing.T) {
	t.Parallel()
	b, key := newBusyBackend(t, "example.com/log")
	checkpoint, err := b.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report, err := b.store.Journal().Verify(t.Context(), audit.Options{AnySigner: true})
	if err != nil {
		t.Fatal(err)
	}
	w1 := newOwnWitness("w1")
	witnessed := witnessCheck{policy: policyOf(t, key, w1)}
	if _, err := witnessed.open(w1.cosign(checkpoint, time.Now())); err != nil {
		t.Fatal(err)
	}
	newer := report
	newer.Size += 4
	for name, test := range map[string]struct {
		verify logVerify
		report audit.Report
		says   []string
	}{
		"a verifier key alone": {logVerify{isFile: true}, report,
			[]string{"others see the same history", "records after the 3 of this file"}},
		"a witnessed export": {logVerify{isFile: true, witnesses: witnessed}, report,
			[]string{"records after the 3 of this file, which may be truncated at 2"}},
		"the appliance": {logVerify{}, report, []string{"others see the same history"}},
		"the appliance, since": {logVerify{earlier: "file"}, report,
			[]string{"records after those of --since-checkpoint"}},
		"the appliance, up to date": {logVerify{witnesses: witnessed}, report, nil},
		"the appliance, with newer": {logVerify{witnesses: witnessed}, newer,
			[]string{"the last 4 records: witnesses have cosigned the first 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			var unsaid []string
			said := test.verify.unwitnessed(test.report)
			for _, each := range test.says {
				if !strings.Contains(strings.Join(said, "\n"), each) {
					unsaid = append(unsaid, each)
				}
			}
			if len(unsaid) > 0 || len(said) != len(test.says) {
				t.Errorf("says %q, not %q", said, unsaid)
			}
		})
	}
}
