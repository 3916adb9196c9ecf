package daemontest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// Address is the address of the default attestor key.
func (d *Daemon) Address(tb testing.TB) string {
	tb.Helper()
	var status wire.Status
	if err := json.Unmarshal([]byte(d.Run(tb, "health", "--output", "json")), &status); err != nil {
		tb.Fatal(err)
	}
	return status.SignerAddress.String()
}

// Worker returns the process id of the daemon's HSM worker.
func (d *Daemon) Worker(tb testing.TB) int {
	tb.Helper()
	var status hsm.Status
	if err := json.Unmarshal([]byte(d.Run(tb, "hsm", "status", "--output", "json")), &status); err != nil ||
		status.Worker == 0 {
		tb.Fatalf("%+v, %v", status, err)
	}
	return status.Worker
}

// WorkerUses lets a module of hsmtest use the files in its folder.
func (d *Daemon) WorkerUses(module string) {
	d.Configure("ATTESTD_HSM_WORKER_PATHS=" + filepath.Dir(module))
}

// UseModule makes the appliance load another module than SoftHSM for the same token.
func (d *Daemon) UseModule(t testing.TB, module string) {
	t.Helper()
	file := filepath.Join(d.Dir, "attestd.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(text), "module-path=")
	_, rest, ends := strings.Cut(after, "&")
	if !found || !ends {
		t.Fatalf("no module-path in %s", text)
	}
	if err := os.WriteFile(file, []byte(before+"module-path="+module+"&"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ThroughFaults puts a module that fails on demand before SoftHSM.
func (d *Daemon) ThroughFaults(tb testing.TB) *hsmtest.Faults {
	tb.Helper()
	module, err := softhsm.Module()
	if err != nil {
		tb.Fatal(err)
	}
	faults := hsmtest.NewFaults(tb, module)
	d.WorkerUses(faults.Module)
	d.UseModule(tb, faults.Module)
	return faults
}

// LogKeyInHSM generates a log key in the token, and continues the log with it. The returned faults affect only that
// key.
func (d *Daemon) LogKeyInHSM(t testing.TB) *hsmtest.Faults {
	t.Helper()
	var made hsm.KeyInfo
	if err := json.Unmarshal([]byte(
		d.Run(t, "hsm", "keygen", "--label", "log", "--algorithm", "ed25519", "--output", "json")), &made); err != nil {
		t.Fatal(err)
	}
	source := config.Source{File: filepath.Join(d.Dir, "attestd.yaml")}
	c, err := source.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	uri, err := hsm.ParseURI(c.TokenURIs()[0])
	if err != nil {
		t.Fatal(err)
	}
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	faults := hsmtest.NewFaults(t, module)
	d.WorkerUses(faults.Module)
	uri.Object, uri.ID, uri.ModulePath = made.Label, nil, faults.Module
	d.Configure("ATTESTD_JOURNAL_KEY=" + uri.String())
	d.Run(t, "log", "rotate-key", "--reason", "the log key moves into the HSM")
	return faults
}

// Steal signs a digest with the appliance's key, as someone does who has the PIN and bypasses attestd.
func (d *Daemon) Steal(tb testing.TB, digest appliance.Digest) (signature appliance.Signature) {
	tb.Helper()
	cmd := exec.Command("thief", digest.String())
	cmd.Env = d.Command().Env
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &signature)
	}
	if err != nil {
		tb.Fatalf("the HSM does not sign behind the appliance's back: %v", err)
	}
	return signature
}

// thief DIGEST is the program that signs for Steal: a PKCS#11 module reads its environment once for each process.
func thief() {
	signature, err := signBehind(os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(signature)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func signBehind(text string) (signature appliance.Signature, err error) {
	var digest appliance.Digest
	if err := digest.UnmarshalText([]byte(text)); err != nil {
		return signature, err
	}
	source := config.Source{Environ: os.Environ()}
	c, err := source.Load(nil)
	if err != nil {
		return signature, err
	}
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return signature, err
	}
	signer, err := hsm.Open(context.Background(), hsm.Options{URI: uri, Sessions: 1})
	if err != nil {
		return signature, err
	}
	defer signer.Close()
	return signer.Sign(context.Background(), digest)
}
