package hsm_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

func TestModuleIsOpenedOncePerProcess(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	if _, err := hsm.Open(t.Context(), hsm.Options{URI: token.URI}); err == nil ||
		!strings.Contains(err.Error(), "this process already uses the module") {
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
		got, err := hsm.FindLibrary(name, []string{"/nowhere", folder})
		if err != nil || got != token.URI.ModulePath {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	u := token.URI
	u.ModulePath, u.ModuleName = folder, "softhsm2"
	open(t, newFaulty(t), hsm.Options{URI: u})
}

func TestModulesListsSoftHSMOnce(t *testing.T) {
	t.Parallel()
	want, err := softhsm.Module() // Debian has it at two paths, and registered with p11-kit
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, m := range hsm.Modules() {
		if !softhsm.IsModule(m.Path) {
			continue
		}
		paths = append(paths, m.Path)
		if m.Name != "SoftHSM" || m.HSM {
			t.Errorf("%+v, want SoftHSM, which is no HSM", m)
		}
	}
	if !slices.Equal(paths, []string{want}) {
		t.Errorf("SoftHSM is at %q, want %q once", paths, want)
	}
}

func TestRegistrationsAreRead(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "vendor.module")
	for name, test := range map[string]struct{ text, want string }{
		"a path":          {"# Vendor\nmodule: /opt/vendor/pkcs11.so\ncritical: yes\n", "/opt/vendor/pkcs11.so"},
		"no spaces":       {"module:/opt/vendor/pkcs11.so", "/opt/vendor/pkcs11.so"},
		"an unknown file": {"module: nowhere.so\n", ""},
		"no module":       {"remote: unix:path=/run/vendor\n", ""},
	} {
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hsm.Registered(file); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
