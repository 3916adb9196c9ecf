// Package hsmtest makes SoftHSM tokens to throw away: one for each test, and a folder of them for `attestd dev`.
// SoftHSM implements PKCS#11 v2.40 in files; it protects a key no better than its folder is protected.
package hsmtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/attestd/attestd/hsm"
)

// ConfVariable names the environment variable in which SoftHSM looks for its configuration at C_Initialize.
const ConfVariable = "SOFTHSM2_CONF"

const confName = "softhsm2.conf"

// Module returns the path of SoftHSM's library as Debian and Fedora install it.
func Module() (string, error) {
	candidates := []string{
		"/usr/lib/softhsm/libsofthsm2.so",
		"/usr/lib64/pkcs11/libsofthsm2.so",
		"/usr/lib64/softhsm/libsofthsm2.so",
		"/usr/lib64/libsofthsm2.so",
		"/usr/lib/pkcs11/libsofthsm2.so",
		"/usr/local/lib/softhsm/libsofthsm2.so",
	}
	multiarch, err := filepath.Glob("/usr/lib/*-linux-gnu/softhsm/libsofthsm2.so")
	if err != nil {
		return "", err
	}
	for _, path := range append(candidates, multiarch...) {
		if stat, err := os.Stat(path); err == nil && stat.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", errors.New("SoftHSM is not installed (no libsofthsm2.so): run `make deps`, or install the package softhsm2 (Debian) or softhsm (Fedora)")
}

// Folder is a SoftHSM installation of one's own in a folder: configuration, tokens and PINs.
type Folder struct {
	Module string // libsofthsm2.so
	Conf   string // softhsm2.conf, for SOFTHSM2_CONF
	PIN    string // file with the user PIN, mode 0600
	SOPIN  []byte // the security officer's PIN
}

// Setup makes a SoftHSM folder in dir: softhsm2.conf, tokens/, pin and so-pin. What exists is left as it is. The
// caller must put Conf into SOFTHSM2_CONF (see Setenv) before the module is opened.
func Setup(dir string) (Folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Folder{}, err
	}
	path, err := Module()
	if err != nil {
		return Folder{}, err
	}
	tokens := filepath.Join(dir, "tokens")
	if err := os.MkdirAll(tokens, 0o700); err != nil {
		return Folder{}, err
	}
	f := Folder{Module: path, Conf: filepath.Join(dir, confName), PIN: filepath.Join(dir, "pin")}
	conf := fmt.Sprintf("directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\nslots.removable = false\n", tokens)
	// Written anew each time, for the folder may have been moved.
	if err := os.WriteFile(f.Conf, []byte(conf), 0o600); err != nil {
		return Folder{}, err
	}
	if _, err := keepSecret(f.PIN); err != nil {
		return Folder{}, err
	}
	f.SOPIN, err = keepSecret(filepath.Join(dir, "so-pin"))
	return f, err
}

// keepSecret returns the text of the file, having made it of 64 random bits where there was none.
func keepSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err == nil && len(text) > 0 {
		return trimNewline(text), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	secret := make([]byte, 8)
	rand.Read(secret) // never fails (Go 1.24)
	text = []byte(hex.EncodeToString(secret))
	return text, os.WriteFile(path, append(text, '\n'), 0o600)
}

func trimNewline(text []byte) []byte {
	if n := len(text); n > 0 && text[n-1] == '\n' {
		return text[:n-1]
	}
	return text
}

// Setenv makes this process use the folder, and those that it starts.
func (f Folder) Setenv() error { return os.Setenv(ConfVariable, f.Conf) }

// URI names a token and a key in the folder.
func (f Folder) URI(token, object string) hsm.URI {
	return hsm.URI{Token: token, Object: object, ModulePath: f.Module, PINSource: "file:" + f.PIN}
}

// TB is what New needs of a *testing.T or *testing.B. It is here so that a program which uses this package does
// not link package testing.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Token is a test's own token with one secp256k1 key in it.
type Token struct {
	URI     hsm.URI // token, object, module-path and pin-source
	Key     hsm.KeyInfo
	PINFile string
	SOPIN   []byte
	Env     []string // NAME=value, for a process that the test starts and that opens URI, or this folder by SOFTHSM2_CONF
}

// New makes a token for the test, alone in a SoftHSM folder, and removes it at the test's end. Tests may run in
// parallel.
//
// A PKCS#11 module has one state for each process that loads it. So that tests cannot end each other's sessions,
// each has a copy of the library: the dynamic linker tells libraries apart by file, and every copy has
// variables, a C_Initialize and a C_Finalize of its own. The copies must not share a folder of tokens: SoftHSM locks
// files against other processes only, and one that finds two half-written tokens aborts the process. But they
// would all read SOFTHSM2_CONF; therefore each copy has another name, of the same length, in the place of that one.
func New(tb TB) *Token {
	tb.Helper()
	place, err := process.enter()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	tb.Cleanup(func() { process.leave(place) })
	token, err := place.makeToken()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	return token
}

// place is a folder and the variable that names its configuration. Places are used again.
type place struct {
	variable string
	dir      string
	uses     int // so that no two copies of the library ever have the same path
}

func (p *place) makeToken() (*Token, error) {
	folder, err := Setup(p.dir)
	if err != nil {
		return nil, err
	}
	u := folder.URI("attestd", "attestor")
	u.ModulePath = filepath.Join(p.dir, fmt.Sprintf("module-%d", p.uses), filepath.Base(folder.Module))
	if err := os.MkdirAll(filepath.Dir(u.ModulePath), 0o700); err != nil {
		return nil, err
	}
	if err := copyModule(folder.Module, u.ModulePath, p.variable); err != nil {
		return nil, err
	}
	made, err := hsm.Init(context.Background(), hsm.InitOptions{URI: u, SOPIN: folder.SOPIN})
	if err != nil {
		return nil, err
	}
	env := []string{ConfVariable + "=" + folder.Conf, p.variable + "=" + folder.Conf}
	return &Token{URI: u, Key: made.Key, PINFile: folder.PIN, SOPIN: folder.SOPIN, Env: env}, nil
}

// copyModule copies the library and lets the copy read its configuration's path from another variable.
func copyModule(from, to, variable string) error {
	library, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	name, other := []byte("\x00"+ConfVariable+"\x00"), []byte("\x00"+variable+"\x00")
	if n := bytes.Count(library, name); n != 1 || len(name) != len(other) {
		return fmt.Errorf("%s has %d mentions of %s, not 1: tokens for tests cannot be kept apart with this build of SoftHSM", from, n, ConfVariable)
	}
	return os.WriteFile(to, bytes.Replace(library, name, other, 1), 0o700)
}

// mostPlaces is how many tokens may exist at a time in one process.
const mostPlaces = 256

// process has the places of this process. It is the process's because the environment is.
var process places

type places struct {
	mu   sync.Mutex
	dir  string
	free []*place
}

func (p *places) enter() (*place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		if err := p.begin(); err != nil {
			return nil, err
		}
	}
	if len(p.free) == 0 {
		return nil, fmt.Errorf("%d tokens exist already in this process", mostPlaces)
	}
	one := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	one.uses++
	return one, nil
}

// begin names all places in the environment at once. No variable is set later, for a module in another thread may
// be reading the environment then, and the C library does not guard against that.
func (p *places) begin() error {
	dir, err := os.MkdirTemp("", "attestd-hsmtest-")
	if err != nil {
		return err
	}
	p.dir = dir
	for i := range mostPlaces {
		number := fmt.Sprintf("%04x", i)
		one := &place{variable: ConfVariable[:len(ConfVariable)-len(number)] + number, dir: filepath.Join(dir, number)}
		if err := os.Setenv(one.variable, filepath.Join(one.dir, confName)); err != nil {
			return err
		}
		p.free = append(p.free, one)
	}
	return nil
}

func (p *places) leave(one *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = os.RemoveAll(one.dir)
	p.free = append(p.free, one)
	if len(p.free) == mostPlaces {
		_ = os.Remove(p.dir)
	}
}
