package softhsm_test

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/attestd/attestd/hsm/softhsm"
)

func TestCreateKeepsWhatExists(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	first, err := softhsm.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := os.ReadFile(first.PIN)
	if err != nil {
		t.Fatal(err)
	}
	second, err := softhsm.Create(dir)
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("%+v, then %+v, %v", first, second, err)
	}
	if again, err := os.ReadFile(first.PIN); err != nil || string(again) != string(pin) {
		t.Errorf("the PIN changed, %v", err)
	}
	for _, file := range []string{first.PIN, first.Conf, filepath.Join(dir, "so-pin")} {
		if stat, err := os.Stat(file); err != nil || stat.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want mode 0600", file, stat, err)
		}
	}
}

func TestTokenDirIsReadFromTheConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, test := range map[string]struct{ text, want string }{
		"as Create writes it": {softhsm.Conf("/var/lib/tokens"), "/var/lib/tokens"},
		"without spaces":      {"log.level=INFO\ndirectories.tokendir=/tokens\n", "/tokens"},
		"nothing about it":    {"log.level = INFO\n", ""},
	} {
		path := filepath.Join(dir, "softhsm2.conf")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := softhsm.TokenDir(path); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := softhsm.TokenDir(filepath.Join(dir, "none")); got != "" {
		t.Errorf("a file that is not there: %q", got)
	}
}
