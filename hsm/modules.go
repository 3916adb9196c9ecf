package hsm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// locate returns the module's file.
func (u URI) locate() (string, error) {
	switch {
	case u.ModulePath != "" && u.ModuleName == "":
		return u.ModulePath, nil
	case u.ModulePath != "":
		return findModule(u.ModuleName, []string{u.ModulePath})
	case u.ModuleName != "":
		if path := p11KitModule(u.ModuleName); path != "" {
			return path, nil
		}
		return findModule(u.ModuleName, moduleFolders())
	}
	return "", errors.New("the pkcs11 URI names no module: add module-path=/path/to/library.so or module-name")
}

// moduleFolders are where Debian, Fedora and p11-kit keep PKCS#11 modules.
func moduleFolders() []string {
	folders := []string{
		"/usr/lib64/pkcs11", "/usr/lib/pkcs11", "/usr/lib64/softhsm", "/usr/lib/softhsm",
		"/usr/local/lib/pkcs11", "/usr/local/lib/softhsm", "/usr/local/lib64", "/usr/local/lib", "/usr/lib64", "/usr/lib",
	}
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/pkcs11", "/usr/lib/*-linux-gnu/softhsm", "/usr/lib/*-linux-gnu"} {
		if found, err := filepath.Glob(pattern); err == nil {
			folders = append(folders, found...)
		}
	}
	return folders
}

func findModule(name string, folders []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return "", errors.New("module-name has a /; use module-path for a path")
	}
	for _, folder := range folders {
		for _, n := range []string{name, name + ".so", "lib" + name + ".so"} {
			path := filepath.Join(folder, n)
			if stat, err := os.Stat(path); err == nil && stat.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("module %q is in none of %s; use module-path", name, strings.Join(folders, ", "))
}

// p11KitModule returns the library that the system's registration of that name has, in NAME.module with a line
// "module: FILE" (pkcs11.conf(5)), or "".
func p11KitModule(name string) string {
	for _, folder := range []string{"/etc/pkcs11/modules", "/usr/share/p11-kit/modules"} {
		text, err := os.ReadFile(filepath.Join(folder, filepath.Base(name)+".module"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			key, file, _ := strings.Cut(line, ":")
			if strings.TrimSpace(key) != "module" {
				continue
			}
			file = strings.TrimSpace(file)
			if filepath.IsAbs(file) {
				return file
			}
			if path, err := findModule(file, moduleFolders()); err == nil {
				return path
			}
		}
	}
	return ""
}
