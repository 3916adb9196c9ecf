package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm/hsmtest"
)

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
			d := daemontest.New(t)
			d.Configure("ATTESTD_SERVER_REQUEST_TIMEOUT=1s")
			faults := d.LogKeyInHSM(t)
			d.Start(t)
			defer d.Kill(t)
			made, status, code := attestation(t, d)
			if status != http.StatusOK {
				t.Fatalf("status %d, code %q\n%s", status, code, d.Log())
			}
			back := away(faults)
			for range 2 {
				_, status, code := attestation(t, d)
				if status != http.StatusServiceUnavailable || code != string(appliance.CodeJournalUnavailable) &&
					code != string(appliance.CodeTimeout) {
					t.Errorf("status %d, code %q, want 503 %s or %s", status, code, appliance.CodeJournalUnavailable,
						appliance.CodeTimeout)
				}
				readsBack(t, d, made)
			}
			back()
			daemontest.Await(t, "it attests again", func() (bool, string) {
				_, status, code := attestation(t, d)
				return status == http.StatusOK, code
			})
			awaitReadiness(t, d, http.StatusOK, "ok")
			if out := d.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
				t.Error(out)
			}
		})
	}
}

// While the token's server is down, /readyz fails.
func TestReadinessFailsWithoutTheLogKey(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	faults := d.LogKeyInHSM(t)
	d.Start(t)
	defer d.Kill(t)
	faults.Down(pkcs11.CKR_DEVICE_ERROR)
	daemontest.Await(t, "/readyz fails with the journal", func() (bool, string) {
		resp, body := d.Ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(body, "journal"), resp.Status + body
	})
	faults.Up()
	daemontest.Await(t, "/readyz succeeds", func() (bool, string) {
		resp, body := d.Ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == http.StatusOK, resp.Status + body
	})
}

// A copy of data_dir contains no key that signs checkpoints: log.key, its retired form and backups hold only public
// keys.
func TestACopyOfTheDataSignsNoCheckpoint(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.LogKeyInHSM(t)
	dir := filepath.Join(d.Dir, "data")
	text, err := os.ReadFile(filepath.Join(dir, archive.LogKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := journal.ParseLogKey(string(text))
	if err != nil || key.IsFile() || key.Signer != nil {
		t.Fatalf("%s: %v", text, err)
	}
	d.Environ = nil // without journal.key
	if out, err := d.Command("key", "create", "--name", "a").CombinedOutput(); err == nil ||
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
