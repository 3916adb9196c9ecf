package hsm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Module is a PKCS#11 library on this machine.
type Module struct {
	Name string // the vendor's product, or the name of its p11-kit registration
	Path string
	// the library is from a vendor of HSMs; false for software, smart cards and libraries known only from p11-kit
	HSM bool
}

// Modules returns the PKCS#11 libraries on this machine, each once: HSM libraries first, then SoftHSM, then libraries
// that are registered with p11-kit.
func Modules() []Module {
	var candidates, found []Module
	for _, known := range knownModules() {
		candidates = append(candidates, known.installed()...)
	}
	for _, m := range append(candidates, registeredModules()...) {
		known := slices.ContainsFunc(found, func(f Module) bool { return sameFile(f.Path, m.Path) })
		if isFile(m.Path) && !known {
			found = append(found, m)
		}
	}
	return found
}

func isFile(path string) bool {
	stat, err := os.Stat(path)
	return err == nil && stat.Mode().IsRegular()
}

func sameFile(one, other string) bool {
	a, err := os.Stat(one)
	b, otherErr := os.Stat(other)
	return err == nil && otherErr == nil && os.SameFile(a, b)
}

// FindModule returns the first library of a product by its name in Modules, such as SoftHSM.
func FindModule(product string) (m Module, found bool) {
	for _, known := range knownModules() {
		if known.Name != product {
			continue
		}
		for _, m := range known.installed() {
			if isFile(m.Path) {
				return m, true
			}
		}
	}
	return Module{}, false
}

// knownModules lists the paths at which vendors and distributions install their libraries, as patterns of
// filepath.Glob.
func knownModules() []Module {
	return []Module{
		{"Luna", "/usr/safenet/lunaclient/lib/libCryptoki2_64.so", true},
		{"Luna", "/usr/safenet/lunaclient/libs/64/libCryptoki2.so", true},
		{"CloudHSM", "/opt/cloudhsm/lib/libcloudhsm_pkcs11.so", true},
		{"nShield", "/opt/nfast/toolkits/pkcs11/libcknfast.so", true},
		{"YubiHSM 2", "/usr/lib/*-linux-gnu/pkcs11/yubihsm_pkcs11.so", true},
		{"YubiHSM 2", "/usr/lib64/pkcs11/yubihsm_pkcs11.so", true},
		{"YubiHSM 2", "/usr/local/lib/pkcs11/yubihsm_pkcs11.so", true},
		{"SoftHSM", "/usr/lib/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/pkcs11/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib64/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib/pkcs11/libsofthsm2.so", false},
		{"SoftHSM", "/usr/lib/*-linux-gnu/softhsm/libsofthsm2.so", false},
		{"SoftHSM", "/usr/local/lib/softhsm/libsofthsm2.so", false},
	}
}

// installed returns the paths of a known module that exist.
func (m Module) installed() []Module {
	paths, err := filepath.Glob(m.Path)
	if err != nil {
		return nil
	}
	found := make([]Module, len(paths))
	for i, path := range paths {
		found[i] = Module{m.Name, path, m.HSM}
	}
	return found
}

// registrationFolders hold p11-kit's registrations: files NAME.module with a line "module: FILE" (pkcs11.conf(5)).
func registrationFolders() []string {
	return []string{"/etc/pkcs11/modules", "/usr/share/p11-kit/modules"}
}

// registeredModules returns the modules registered with p11-kit, without p11-kit's own modules, which hold no keys.
func registeredModules() []Module {
	var registered []Module
	for _, folder := range registrationFolders() {
		files, err := filepath.Glob(filepath.Join(folder, "*.module"))
		if err != nil {
			continue
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".module")
			path := registeredPath(file)
			if path != "" && !strings.HasPrefix(name, "p11-kit-") {
				registered = append(registered, Module{Name: name, Path: path})
			}
		}
	}
	return registered
}

// registeredPath returns the library that a registration names, or "".
func registeredPath(registration string) string {
	text, err := os.ReadFile(registration)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		key, library, _ := strings.Cut(line, ":")
		if library = strings.TrimSpace(library); strings.TrimSpace(key) != "module" || library == "" {
			continue
		}
		if filepath.IsAbs(library) {
			return library
		}
		if path, err := findLibrary(library, moduleFolders()); err == nil {
			return path
		}
	}
	return ""
}

// Locate returns the path of the module's file, which may be relative, or not exist.
func (u URI) Locate() (string, error) {
	switch {
	case u.ModulePath != "" && u.ModuleName == "":
		return u.ModulePath, nil
	case u.ModulePath != "":
		return findLibrary(u.ModuleName, []string{u.ModulePath})
	case u.ModuleName != "":
		for _, folder := range registrationFolders() {
			if path := registeredPath(filepath.Join(folder, filepath.Base(u.ModuleName)+".module")); path != "" {
				return path, nil
			}
		}
		return findLibrary(u.ModuleName, moduleFolders())
	}
	return "", errors.New("the pkcs11 URI lacks a module: add module-path=/path/to/library.so or module-name")
}

// moduleFolders are the folders in which Debian, Fedora and p11-kit keep PKCS#11 modules.
func moduleFolders() []string {
	folders := []string{
		"/usr/lib64/pkcs11", "/usr/lib/pkcs11", "/usr/lib64/softhsm", "/usr/lib/softhsm",
		"/usr/local/lib/pkcs11", "/usr/local/lib/softhsm", "/usr/local/lib64", "/usr/local/lib", "/usr/lib64",
		"/usr/lib",
	}
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/pkcs11", "/usr/lib/*-linux-gnu/softhsm",
		"/usr/lib/*-linux-gnu"} {
		if found, err := filepath.Glob(pattern); err == nil {
			folders = append(folders, found...)
		}
	}
	return folders
}

// findLibrary returns the first file of that name, with or without "lib" and ".so", in the folders.
func findLibrary(name string, folders []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return "", errors.New("module-name has a /; use module-path for a path")
	}
	for _, folder := range folders {
		for _, n := range []string{name, name + ".so", "lib" + name + ".so"} {
			path := filepath.Join(folder, n)
			if isFile(path) {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("module %q was not found in %s; use module-path", name, strings.Join(folders, ", "))
}
