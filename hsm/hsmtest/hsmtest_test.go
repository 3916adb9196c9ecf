package hsmtest_test

import (
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestSetupKeepsWhatExists(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	first, err := hsmtest.Setup(dir)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := os.ReadFile(first.PIN)
	if err != nil {
		t.Fatal(err)
	}
	second, err := hsmtest.Setup(dir)
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

func TestTokensOfParallelTestsAreApart(t *testing.T) {
	t.Parallel()
	var seen sync.Map
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			token := hsmtest.New(t)
			if _, twice := seen.LoadOrStore(token.Key.Address, true); twice {
				t.Error("two tests have the same key")
			}
			for range 10 { // each opens and ends its own copy of the module while the others do
				u := token.URI
				u.Token, u.Object = "", "" // and sees no other's token or key
				status, err := hsm.Inspect(t.Context(), hsm.Options{URI: u})
				if err != nil || *status.Key.Address != token.Key.Address {
					t.Fatalf("%+v, %v", status, err)
				}
			}
		})
	}
}
