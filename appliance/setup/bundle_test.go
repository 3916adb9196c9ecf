package setup_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/setup"
)

// member is the configuration of a member of a cluster.
func member(t *testing.T, values map[string]any) *config.Config {
	t.Helper()
	dir := t.TempDir()
	_, secret, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log.key"), []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	values["data_dir"] = dir
	none := config.Source{File: os.DevNull}
	c, err := none.Load(values)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestABundleHoldsWhatAllMembersShare(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "screened")
	if err := os.WriteFile(list, []byte("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("caps: { day: 1 }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := member(t, map[string]any{
		"store.url": "postgres://attestd:swordfish@db/attestd", "attestation.eip712.chain_id": 10_000_000,
		"attestation.eip712.name": "a",
		"attestation.scheme":      "eip712", "attestation.screening_list": list, "limits.default_rate": "50/s",
		"server.listen":      "127.0.0.1:1",
		"attestation.policy": policy,
	})
	b, err := setup.NewBundle(c, "1.2.3", appliance.Address{1}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"store.url": "postgres://attestd@db/attestd", "journal.origin": "example.com/attestd",
		"hsm.address":        appliance.Address{1}.String(),
		"attestation.scheme": "eip712", "attestation.eip712.chain_id": uint64(10_000_000),
		"attestation.eip712.name":    "a",
		"attestation.screening_list": list, "limits.default_rate": "50/s", "attestation.policy": policy,
	}
	for name, value := range want {
		if b.Settings[name] != value {
			t.Errorf("%s is %v, want %v", name, b.Settings[name], value)
		}
	}
	if len(b.Settings) != len(want) || !strings.HasPrefix(b.Screening, "0x5aAe") ||
		!strings.HasPrefix(b.Policy, "caps") {
		t.Errorf("%+v", b)
	}
	if b, err = setup.NewBundle(c, "1.2.3", appliance.Address{1}, true, time.Now()); err != nil ||
		b.Settings["store.url"] != string(c.Store.URL) {
		t.Errorf("with the password: %v, %v", b.Settings["store.url"], err)
	}
	if _, err := setup.NewBundle(member(t, map[string]any{}), "", appliance.Address{}, false, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "store.url is not set") {
		t.Errorf("without a database: %v", err)
	}
}

func TestABundleIsOpenedByItsPassphraseWhileItIsGood(t *testing.T) {
	t.Parallel()
	now := time.Now()
	whole, err := setup.NewBundle(member(t, map[string]any{"store.url": "postgres:///a"}), "1.2.3",
		appliance.Address{1}, false, now)
	if err != nil {
		t.Fatal(err)
	}
	seal := func(b setup.Bundle) []byte {
		var sealed bytes.Buffer
		if err := b.Seal(&sealed, []byte("correct horse"), 10); err != nil {
			t.Fatal(err)
		}
		return sealed.Bytes()
	}
	newer := whole
	newer.Format = 2
	noKey := whole
	noKey.LogKey = "PRIVATE"
	sealed := seal(whole)
	if bytes.Contains(sealed, []byte("PRIVATE")) {
		t.Error("the log key can be read")
	}
	middle := len(sealed) / 2
	changed := append(append(bytes.Clone(sealed[:middle]), sealed[middle]^1), sealed[middle+1:]...)
	for name, test := range map[string]struct {
		sealed     []byte
		passphrase string
		at         time.Time
		want       string // in the error; "" for none
	}{
		"as it was sealed":   {sealed, "correct horse", now.Add(6 * 24 * time.Hour), ""},
		"another passphrase": {sealed, "battery staple", now, "the passphrase is wrong"},
		"a week old": {sealed, "correct horse", now.Add(8 * 24 * time.Hour),
			"has expired after 7 days: create a new bundle on a member: attestd setup --bundle FILE"},
		"of tomorrow": {sealed, "correct horse", now.Add(-24 * time.Hour),
			"is in the future: set the clock of this machine"},
		"cut":            {sealed[:middle], "correct horse", now, "not a complete bundle"},
		"changed":        {changed, "correct horse", now, "not a complete bundle"},
		"something else": {[]byte("hello\n"), "correct horse", now, "not a complete bundle"},
		"empty":          {nil, "correct horse", now, "not a complete bundle"},
		"of another format": {seal(newer), "correct horse", now,
			"the bundle has format 2, this attestd reads format 1"},
		"of a key that is no key": {seal(noKey), "correct horse", now, "the bundle's log key"},
		"without a passphrase":    {sealed, "", now, "passphrase"},
		"with something behind it": {append(bytes.Clone(sealed), "more\n"...), "correct horse", now,
			"not a complete bundle"},
		"with an empty line before": {append([]byte("\n"), sealed...), "correct horse", now, ""},
	} {
		b, err := setup.OpenBundle(bytes.NewReader(test.sealed), []byte(test.passphrase), test.at)
		switch {
		case test.want == "" && (err != nil || b.LogKey != whole.LogKey):
			t.Errorf("%s: %+v, %v", name, b, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}
