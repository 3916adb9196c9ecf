package hsm_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestModuleIsOpenedOncePerProcess(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	if _, err := hsm.Open(t.Context(), hsm.Options{URI: token.URI}); err == nil || !strings.Contains(err.Error(), "this process uses the module already") {
		t.Errorf("got %v", err)
	}
	mustSign(t, s) // the second Open must not have finalised it
}

func TestMissingModuleNamesTheRemedy(t *testing.T) {
	t.Parallel()
	notAModule := secretFile(t, "not a library", 0o600)
	for name, test := range map[string]struct {
		uri  hsm.URI
		want string
	}{
		"no such file":    {hsm.URI{ModulePath: "/nowhere/lib.so"}, "no such file"},
		"not a library":   {hsm.URI{ModulePath: notAModule}, "ldd"},
		"unknown name":    {hsm.URI{ModuleName: "nowhere"}, "use module-path"},
		"a path for name": {hsm.URI{ModuleName: "../lib"}, "use module-path"},
		"none named":      {hsm.URI{Token: "t"}, "module-path="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := hsm.Open(t.Context(), hsm.Options{URI: test.uri})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestModuleIsFoundByName(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	folder := filepath.Dir(token.URI.ModulePath)
	for _, name := range []string{"softhsm2", "libsofthsm2", "libsofthsm2.so"} {
		got, err := hsm.FindModuleIn(name, []string{"/nowhere", folder})
		if err != nil || got != token.URI.ModulePath {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	u := token.URI
	u.ModulePath, u.ModuleName = folder, "softhsm2"
	open(t, newFaulty(t), hsm.Options{URI: u})
}
