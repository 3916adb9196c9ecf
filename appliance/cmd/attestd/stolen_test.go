package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

// house is an appliance's files, and the attestor key of their present holder.
type house struct {
	*testing.T
	dir    string
	key    journal.LogKey
	signer signer
	store  *bolt.Store
}

func newHouse(t *testing.T, secret string, s signer) *house {
	t.Helper()
	h := &house{T: t, dir: t.TempDir(), signer: s}
	h.must(os.WriteFile(filepath.Join(h.dir, archive.LogKeyFile), []byte(secret+"\n"), 0o600))
	h.open()
	return h
}

func (h *house) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// open opens the journal as the daemon does: its start is an event that names its key.
func (h *house) open() {
	h.Helper()
	var err error
	h.key, err = archive.ReadLogKey(h.dir)
	h.must(err)
	h.store, err = bolt.Open(filepath.Join(h.dir, archive.StoreFile), bolt.Options{Signer: h.key.Signer, Verifier: h.key.Verifier})
	h.must(err)
	h.Cleanup(func() { _ = h.store.Close() })
	_, err = h.store.Journal().AppendEvent(h.Context(), journal.Event{
		Kind: journal.EventStarted, Details: map[string]string{journal.DetailSigners: h.signer.address.String()},
	})
	h.must(err)
}

func (h *house) attest(n int) {
	h.Helper()
	request := requestOf(h.T, devUnspendable, devBeneficiary)
	for range n {
		made := h.signer.attests(h.T, request, appliance.SchemeKeccak256BN254, nil)
		h.append(appliance.Record{Attestation: made.Attestation, Request: request, Scheme: string(appliance.SchemeKeccak256BN254), KeyID: "key"})
	}
}

func (h *house) append(r appliance.Record) {
	h.Helper()
	r.ID = uuid.Must(uuid.NewV7())
	_, _, err := h.store.Journal().Append(h.Context(), r)
	h.must(err)
}

// backup writes a backup of the journal, and returns its name.
func (h *house) backup() string {
	h.Helper()
	name := filepath.Join(h.TempDir(), "backup.tar.zst")
	take := func(w io.Writer) error {
		return archive.Write(w, h.store, h.key, "test", time.Now())
	}
	_, _, err := archive.Make(h.Context(), name, take, archive.Sealing{}, archive.AuditOptions{})
	h.must(err)
	return name
}

// export writes the leaves to a file and their checkpoint to another, and returns both names.
func (h *house) export() (name, checkpoint string) {
	h.Helper()
	var leaves bytes.Buffer
	h.must(h.store.Journal().Entries(h.Context(), 0, func(e journal.Entry) error {
		leaves.Write(append(e.Leaf, '\n'))
		return nil
	}))
	name = filepath.Join(h.TempDir(), "journal.ndjson")
	h.must(os.WriteFile(name, leaves.Bytes(), 0o600))
	return name, h.checkpoint()
}

func (h *house) checkpoint() string {
	h.Helper()
	signed, err := h.store.Journal().Checkpoint(h.Context())
	h.must(err)
	name := filepath.Join(h.TempDir(), "checkpoint")
	h.must(os.WriteFile(name, signed, 0o600))
	return name
}

// auditor holds public data: the log's verifier key, the attestor's address, and an earlier checkpoint.
type auditor struct {
	*testing.T
	verifierKey, signer, earlier string
}

// audit runs 'attestd log verify' on a machine without an appliance.
func (a auditor) audit(args ...string) (status int, out string) {
	a.Helper()
	var stdout, stderr bytes.Buffer
	environ := []string{"ATTESTD_DATA_DIR=" + a.TempDir()}
	status = run(context.WithoutCancel(a.Context()), terminal{in: strings.NewReader(""), out: &stdout, err: &stderr, environ: environ}, append([]string{"log", "verify"}, args...))
	return status, stdout.String() + stderr.String()
}

// wants verifies a backup and an export of a house with the auditor's verifier key and the flags.
func (a auditor) wants(h *house, status int, says string, flags ...string) {
	a.Helper()
	export, checkpoint := h.export()
	for _, args := range [][]string{{h.backup(), "--verifier-key", a.verifierKey}, {export, "--checkpoint", checkpoint, "--verifier-key", a.verifierKey}} {
		got, out := a.audit(append(args, flags...)...)
		if got != status || !strings.Contains(out, says) {
			a.Errorf("log verify %s with %q: exit status %d, want %d, and %q:\n%s", filepath.Base(args[0]), flags, got, status, says, out)
		}
	}
}

// TestAnAuditorFindsWhatAThiefOfABackupMakes steals a backup and the log key. Every journal made from them has good
// signatures and a good tree. An auditor with only public data detects it.
func TestAnAuditorFindsWhatAThiefOfABackupMakes(t *testing.T) {
	t.Parallel()
	_, secret, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		t.Fatal(err)
	}
	own := newHouse(t, secret, newSigner(t))
	own.attest(6)
	a := auditor{T: t, verifierKey: own.key.VerifierText, signer: own.signer.address.String(), earlier: own.checkpoint()}
	own.attest(4)
	stolen := own.backup()
	own.attest(2)
	signers, since := []string{"--signer", a.signer}, []string{"--since-checkpoint", a.earlier}
	a.wants(own, exitOK, "records 1 to 12 (given)", append(signers, since...)...)
	a.wants(own, exitOK, "records 1 to 12 (named by an event of the journal)")

	thief := newSigner(t)
	t.Run("a backup that goes on beside another key", func(t *testing.T) {
		h := newRestored(t, stolen, secret, thief)
		h.attest(3)
		a.wants(h, exitFailure, "record 12: signer: signed by "+thief.address.String()+", which is not in --signer: records 12 to 14", signers...)
		a.wants(h, exitOK, thief.address.String()+"  records 12 to 14 (named by an event of the journal)", since...) // names it
	})
	t.Run("a journal that is signed anew by another key", func(t *testing.T) {
		h := newHouse(t, secret, thief)
		h.attest(12)
		a.wants(h, exitFailure, "record 1: signer: signed by "+thief.address.String(), signers...)
		a.wants(h, exitFailure, "the first 7 records differ from the earlier checkpoint", since...)
	})
	t.Run("records that are signed by a key which no event names", func(t *testing.T) {
		h := newRestored(t, stolen, secret, own.signer)
		h.signer = thief
		h.attest(1)
		a.wants(h, exitFailure, "which is neither the appliance's signer nor named by an event of the journal: record 12")
	})
	t.Run("a tree without one of the records", func(t *testing.T) {
		h := newHouse(t, secret, own.signer)
		rewritten := 0
		own.must(own.store.Journal().Entries(t.Context(), 0, func(e journal.Entry) error {
			if rewritten++; e.Event == nil && rewritten != 4 {
				h.append(e.Record)
			}
			return nil
		}))
		a.wants(h, exitOK, "(given)", signers...) // alone, it is a valid journal
		a.wants(h, exitFailure, "the first 7 records differ from the earlier checkpoint", since...)
	})
	t.Run("a journal of another log key", func(t *testing.T) {
		_, other, err := journal.NewLogKey("example.com/attestd")
		if err != nil {
			t.Fatal(err)
		}
		h := newHouse(t, other, own.signer)
		h.attest(1)
		a.wants(h, exitFailure, "", signers...)
	})
}

// newRestored is a house made from a backup and the log key, with another attestor key.
func newRestored(t *testing.T, backup, secret string, s signer) *house {
	t.Helper()
	h := &house{T: t, dir: t.TempDir(), signer: s}
	f, err := os.Open(backup)
	h.must(err)
	defer f.Close()
	_, err = archive.Read(f, h.dir)
	h.must(err)
	h.must(os.WriteFile(filepath.Join(h.dir, archive.LogKeyFile), []byte(secret+"\n"), 0o600))
	h.open()
	return h
}
