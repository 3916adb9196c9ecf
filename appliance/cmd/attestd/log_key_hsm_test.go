package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// logKeyInHSM generates a log key in the token, and continues the log with it. The returned faults affect only that
// key.
func (d *daemonProcess) logKeyInHSM(t testing.TB) *hsmtest.Faults {
	t.Helper()
	var made hsm.KeyInfo
	if err := json.Unmarshal([]byte(
		d.run(t, "hsm", "keygen", "--label", "log", "--algorithm", "ed25519", "--output", "json")), &made); err != nil {
		t.Fatal(err)
	}
	source := config.Source{File: filepath.Join(d.dir, "attestd.yaml")}
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
	d.workerUses(faults.Module)
	uri.Object, uri.ID, uri.ModulePath = made.Label, nil, faults.Module
	d.configure("ATTESTD_JOURNAL_KEY=" + uri.String())
	d.run(t, "log", "rotate-key", "--reason", "the log key moves into the HSM")
	return faults
}

// While the HSM does not sign, reads are answered and attestations are refused. Attesting then continues without a
// restart.
func TestALogKeyWhoseHSMIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(*hsmtest.Faults) (back func()){
		"the token's server is gone": func(f *hsmtest.Faults) func() {
			f.Down(pkcs11.CKR_DEVICE_ERROR)
			return f.Up
		},
		"it makes wrong signatures": func(f *hsmtest.Faults) func() {
			f.Set("C_Sign", hsmtest.Fault{Answer: hsmtest.BitFlipped})
			return f.Clear
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemonFolder(t)
			d.configure("ATTESTD_SERVER_REQUEST_TIMEOUT=1s")
			faults := d.logKeyInHSM(t)
			d.start(t)
			defer d.kill(t)
			made, status, code := d.attestation(t)
			if status != http.StatusOK {
				t.Fatalf("status %d, code %q\n%s", status, code, d.log())
			}
			back := away(faults)
			for range 2 {
				_, status, code := d.attestation(t)
				if status != http.StatusServiceUnavailable || code != string(appliance.CodeJournalUnavailable) &&
					code != string(appliance.CodeTimeout) {
					t.Errorf("status %d, code %q, want 503 %s or %s", status, code, appliance.CodeJournalUnavailable,
						appliance.CodeTimeout)
				}
				d.reads(t, made)
			}
			back()
			await(t, "it attests again", func() (bool, string) {
				_, status, code := d.attestation(t)
				return status == http.StatusOK, code
			})
			d.awaitReadiness(t, http.StatusOK, "ok")
			if out := d.run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
				t.Error(out)
			}
		})
	}
}

// While the token's server is down, /readyz fails.
func TestReadinessFailsWithoutTheLogKey(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	faults := d.logKeyInHSM(t)
	d.start(t)
	defer d.kill(t)
	faults.Down(pkcs11.CKR_DEVICE_ERROR)
	await(t, "/readyz fails with the journal", func() (bool, string) {
		resp, body := d.ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, "journal"), resp.Status + body
	})
	faults.Up()
	await(t, "/readyz succeeds", func() (bool, string) {
		resp, body := d.ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == http.StatusOK, resp.Status + body
	})
}

// A copy of data_dir contains no key that signs checkpoints: log.key, its retired form and backups hold only public
// keys.
func TestACopyOfTheDataSignsNoCheckpoint(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.logKeyInHSM(t)
	dir := filepath.Join(d.dir, "data")
	text, err := os.ReadFile(filepath.Join(dir, archive.LogKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := journal.ParseLogKey(string(text))
	if err != nil || key.IsFile() || key.Signer != nil {
		t.Fatalf("%s: %v", text, err)
	}
	d.environ = nil // without journal.key
	if out, err := d.command("key", "create", "--name", "a").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "whose secret is in an HSM") {
		t.Errorf("key create: %s, %v", out, err)
	}
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.Contains(path, ".retired-") ||
			strings.Contains(path, ".before-") || strings.Contains(path, "softhsm") {
			return err
		}
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "PRIVATE+KEY+") {
			t.Errorf("%s has a secret key", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
