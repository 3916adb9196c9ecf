package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/attestd/attestd/hsm/hsmtest"
)

// softHSMVariable names the variable in which SoftHSM looks for its configuration.
const softHSMVariable = hsmtest.ConfVariable

// foundModule is a PKCS#11 library on this machine.
type foundModule struct {
	name string
	path string
	hsm  bool // of a vendor of HSMs, rather than software, a smart card or a registration that nobody may use
}

// knownModules are where vendors and distributions install their libraries.
func knownModules() []foundModule {
	return []foundModule{
		{"Luna", "/usr/safenet/lunaclient/lib/libCryptoki2_64.so", true},
		{"Luna", "/usr/safenet/lunaclient/libs/64/libCryptoki2.so", true},
		{"CloudHSM", "/opt/cloudhsm/lib/libcloudhsm_pkcs11.so", true},
		{"nShield", "/opt/nfast/toolkits/pkcs11/libcknfast.so", true},
		{"YubiHSM 2", "/usr/lib/*-linux-gnu/pkcs11/yubihsm_pkcs11.so", true},
		{"YubiHSM 2", "/usr/lib64/pkcs11/yubihsm_pkcs11.so", true},
		{"YubiHSM 2", "/usr/local/lib/pkcs11/yubihsm_pkcs11.so", true},
		{"SoftHSM", "/usr/lib/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib/*-linux-gnu/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/pkcs11/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/libsofthsm2.so", false},
		{"SoftHSM", "/usr/local/lib/softhsm/libsofthsm2.so", false},
	}
}

// findModules returns the PKCS#11 libraries on this machine, those of HSMs first, each once.
func findModules() (found []foundModule) {
	add := func(m foundModule) {
		stat, err := os.Stat(m.path)
		known := slices.ContainsFunc(found, func(f foundModule) bool {
			other, err := os.Stat(f.path)
			return err == nil && os.SameFile(stat, other)
		})
		if err == nil && stat.Mode().IsRegular() && !known {
			found = append(found, m)
		}
	}
	for _, m := range knownModules() {
		paths, err := filepath.Glob(m.path)
		if err != nil {
			continue
		}
		for _, path := range paths {
			add(foundModule{m.name, path, m.hsm})
		}
	}
	for _, m := range registeredModules() {
		add(m)
	}
	return found
}

// registeredModules are those that p11-kit knows (pkcs11.conf(5)), without p11-kit's own, which have no keys.
func registeredModules() (found []foundModule) {
	for _, folder := range []string{"/etc/pkcs11/modules", "/usr/share/p11-kit/modules"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.module"))
		if err != nil {
			continue
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".module")
			if strings.HasPrefix(name, "p11-kit-") {
				continue
			}
			for _, path := range registeredPaths(file) {
				found = append(found, foundModule{name: name, path: path})
			}
		}
	}
	return found
}

// registeredPaths are where the library that a registration names may be.
func registeredPaths(file string) (paths []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		key, library, _ := strings.Cut(line, ":")
		if library = strings.TrimSpace(library); strings.TrimSpace(key) != "module" || library == "" {
			continue
		}
		if filepath.IsAbs(library) {
			return []string{library}
		}
		for _, folder := range []string{"/usr/lib/*-linux-gnu/pkcs11", "/usr/lib64/pkcs11", "/usr/lib/pkcs11"} {
			if more, err := filepath.Glob(filepath.Join(folder, library)); err == nil {
				paths = append(paths, more...)
			}
		}
	}
	return paths
}

// chooseModule returns the one library that nobody needs to be asked about: the only one of an HSM, or SoftHSM where
// there is none of an HSM.
func chooseModule(found []foundModule) (foundModule, error) {
	var ofHSMs, soft []foundModule
	for _, m := range found {
		if m.hsm {
			ofHSMs = append(ofHSMs, m)
		}
		if isSoftHSM(m.path) {
			soft = append(soft, m)
		}
	}
	switch {
	case len(ofHSMs) == 1:
		return ofHSMs[0], nil
	case len(ofHSMs) == 0 && len(soft) > 0:
		return soft[0], nil
	case len(found) == 0:
		return foundModule{}, errors.New("no PKCS#11 module is on this machine: install the HSM's client, or SoftHSM to try " +
			"(apt install softhsm2, dnf install softhsm), or name one with --module")
	}
	return foundModule{}, fmt.Errorf("which PKCS#11 module? Name one with --module: %s", listModules(found))
}

func listModules(found []foundModule) string {
	items := make([]string, len(found))
	for i, m := range found {
		items[i] = m.path + " (" + m.name + ")"
	}
	return strings.Join(items, ", ")
}

func isSoftHSM(modulePath string) bool { return strings.Contains(filepath.Base(modulePath), "softhsm") }

// softHSMTokens returns the folder of tokens that a softhsm2.conf names, "" where it names none.
func softHSMTokens(conf string) string {
	text, err := os.ReadFile(conf)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) == "directories.tokendir" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
