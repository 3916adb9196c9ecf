package hsm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/miekg/pkcs11"
)

// module is what this package uses of *pkcs11.Ctx. Tests put faults between it and a real one.
type module interface {
	Initialize(...pkcs11.InitializeOption) error
	Finalize() error
	GetInfo() (pkcs11.Info, error)

	GetSlotList(tokenPresent bool) ([]uint, error)
	GetTokenInfo(slot uint) (pkcs11.TokenInfo, error)
	GetMechanismList(slot uint) ([]*pkcs11.Mechanism, error)
	InitToken(slot uint, pin, label string) error

	OpenSession(slot uint, flags uint) (pkcs11.SessionHandle, error)
	CloseSession(pkcs11.SessionHandle) error
	GetSessionInfo(pkcs11.SessionHandle) (pkcs11.SessionInfo, error)
	Login(s pkcs11.SessionHandle, user uint, pin string) error
	Logout(pkcs11.SessionHandle) error
	InitPIN(s pkcs11.SessionHandle, pin string) error

	FindObjectsInit(pkcs11.SessionHandle, []*pkcs11.Attribute) error
	FindObjects(s pkcs11.SessionHandle, most int) ([]pkcs11.ObjectHandle, bool, error)
	FindObjectsFinal(pkcs11.SessionHandle) error
	GetAttributeValue(pkcs11.SessionHandle, pkcs11.ObjectHandle, []*pkcs11.Attribute) ([]*pkcs11.Attribute, error)
	GenerateKeyPair(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, public, private []*pkcs11.Attribute) (pkcs11.ObjectHandle, pkcs11.ObjectHandle, error)

	SignInit(pkcs11.SessionHandle, []*pkcs11.Mechanism, pkcs11.ObjectHandle) error
	Sign(pkcs11.SessionHandle, []byte) ([]byte, error)
}

// loadModule opens the shared library. It is never unloaded again: modules leave threads and exit handlers
// behind, and a process that runs into code that was unmapped crashes.
func loadModule(path string) (module, error) {
	if m := pkcs11.New(path); m != nil {
		return m, nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("load module: %w; install the HSM's PKCS#11 library, or correct module-path", err)
	}
	return nil, fmt.Errorf("load module %s: not a loadable PKCS#11 library; `ldd %[1]s` shows what it misses", path)
}

// initializing serialises C_Initialize across the modules of a process. PKCS#11 makes it safe for one module at a
// time only, and they share the C library: SoftHSM 2.6.1 reads its configuration with strtok, and of two that do so
// at once one falls back to the system's tokens without a word.
var initializing sync.Mutex

// initialize calls C_Initialize with CKF_OS_LOCKING_OK, which the binding sets and which makes one session per
// thread safe (PKCS#11 v2.40 base, section 5.4).
func initialize(m module) error {
	initializing.Lock()
	defer initializing.Unlock()
	return failed("C_Initialize", m.Initialize())
}

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

// readPIN reads the PIN each time it is needed, so that it is not kept in memory. No error of it has the PIN.
func (u URI) readPIN() (string, error) {
	path, err := u.PINFile()
	if err != nil {
		return "", fmt.Errorf("read the PIN: %w", err)
	}
	stat, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read the PIN: %w", err)
	}
	// The group may read: systemd hands credentials over as 0440.
	if stat.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("read the PIN: %s may be used by every user (mode %04o): chmod 0600 %[1]s", path, stat.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the PIN: %w", err)
	}
	pin := strings.TrimRight(string(text), "\r\n")
	if pin == "" {
		return "", fmt.Errorf("read the PIN: %s is empty", path)
	}
	if strings.ContainsRune(pin, 0) {
		return "", fmt.Errorf("read the PIN: %s has a NUL byte", path)
	}
	return pin, nil
}
