// Package softhsm makes SoftHSM tokens in a folder, for `attestd dev` and for tests, and finds SoftHSM's files. SoftHSM
// implements PKCS#11 v2.40 in software: its keys are only as well protected as their folder.
package softhsm

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/hsm"
)

// ConfVariable is the environment variable in which SoftHSM looks for its configuration at C_Initialize.
const ConfVariable = "SOFTHSM2_CONF"

// ConfName is the name of the configuration file in the folder of Create.
const ConfName = "softhsm2.conf"

// Module returns the path of SoftHSM's library.
func Module() (string, error) {
	if m, found := hsm.FindModule("SoftHSM"); found {
		return m.Path, nil
	}
	return "",
		errors.New(
			"SoftHSM is not installed (libsofthsm2.so not found): run `make deps`, or install the package softhsm2 (Debian) or softhsm (Fedora)")
}

// IsModule reports whether a PKCS#11 library is SoftHSM, judging by its file name.
func IsModule(path string) bool { return strings.Contains(filepath.Base(path), "softhsm") }

// Conf returns the text of a softhsm2.conf(5) that keeps tokens in a folder.
func Conf(tokenDir string) string {
	return fmt.Sprintf(
		"directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\nslots.removable = false\n", tokenDir)
}

// TokenDir returns the folder of tokens that a configuration file names. It returns "" if the file cannot be read or
// does not name one.
func TokenDir(confFile string) string {
	text, err := os.ReadFile(confFile)
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

// Folder holds a configuration of SoftHSM, its tokens, and their PINs.
type Folder struct {
	Module string // libsofthsm2.so
	Conf   string // softhsm2.conf, for SOFTHSM2_CONF
	PIN    string // file with the user PIN, mode 0600
	SOPIN  []byte // the security officer's PIN
}

// Create makes a folder for tokens in dir: softhsm2.conf, tokens/, pin and so-pin. Existing tokens and PINs stay. The
// caller must put Conf into SOFTHSM2_CONF (see Setenv) before the module is opened; hsm.Init makes the token.
func Create(dir string) (Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Folder{}, err
	}
	module, err := Module()
	if err != nil {
		return Folder{}, err
	}
	tokens := filepath.Join(dir, "tokens")
	if err := os.MkdirAll(tokens, 0o700); err != nil {
		return Folder{}, err
	}
	f := Folder{Module: module, Conf: filepath.Join(dir, ConfName), PIN: filepath.Join(dir, "pin")}
	// Written each time, because the folder may have been moved.
	if err := os.WriteFile(f.Conf, []byte(Conf(tokens)), 0o600); err != nil {
		return Folder{}, err
	}
	if _, err := keepSecret(f.PIN); err != nil {
		return Folder{}, err
	}
	f.SOPIN, err = keepSecret(filepath.Join(dir, "so-pin"))
	return f, err
}

// keepSecret returns the text of the file. If the file is missing or empty, keepSecret first writes 64 random bits to
// it.
func keepSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err == nil && len(text) > 0 {
		return bytes.TrimSuffix(text, []byte("\n")), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	secret := make([]byte, 8)
	rand.Read(secret) // never fails (Go 1.24)
	text = []byte(hex.EncodeToString(secret))
	return text, os.WriteFile(path, append(text, '\n'), 0o600)
}

// Setenv makes this process and its children use the folder.
func (f Folder) Setenv() error { return os.Setenv(ConfVariable, f.Conf) }

// URI names a token and a key in the folder.
func (f Folder) URI(token, object string) hsm.URI {
	return hsm.URI{Token: token, Object: object, ModulePath: f.Module, PINSource: "file:" + f.PIN}
}
