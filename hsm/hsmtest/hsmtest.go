// Package hsmtest gives each test a separate SoftHSM token, and makes it fail on demand.
package hsmtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
)

// Token is the token of one test, with one secp256k1 key in it.
type Token struct {
	URI     hsm.URI // token, object, module-path and pin-source
	Key     hsm.KeyInfo
	PINFile string
	SOPIN   []byte
	// NAME=value: the environment of a child process that opens URI, or finds the token by SOFTHSM2_CONF
	Env []string
}

// New makes a token in a separate folder and removes the folder when the test ends. Tests may run in parallel.
//
// A PKCS#11 module has one state per process. So that tests cannot end the sessions of other tests, each test loads a
// copy of the library: the dynamic linker distinguishes libraries by file, and every copy has separate variables,
// C_Initialize and C_Finalize. The copies must not share a folder of tokens: SoftHSM locks files only against other
// processes, and aborts the process when it reads a half-written token. Since every copy would read the path of its
// folder from SOFTHSM2_CONF, the name of that variable is replaced in each copy by another of the same length.
func New(tb testing.TB) *Token {
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

// place is a folder, and the variable that names the configuration in it. Places are reused.
type place struct {
	variable string
	dir      string
	uses     int // makes the path of each copy of the library unique
}

func (p *place) makeToken() (*Token, error) {
	folder, err := softhsm.Create(p.dir)
	if err != nil {
		return nil, err
	}
	u := folder.URI("attestd", "attestor")
	if u.ModulePath, err = p.copyOfModule(folder.Module); err != nil {
		return nil, err
	}
	made, err := hsm.Init(context.Background(), hsm.InitOptions{URI: u, SOPIN: folder.SOPIN})
	if err != nil {
		return nil, err
	}
	return &Token{URI: u, Key: made.Key, PINFile: folder.PIN, SOPIN: folder.SOPIN, Env: p.env(folder.Conf)}, nil
}

func (p *place) env(conf string) []string {
	return []string{softhsm.ConfVariable + "=" + conf, p.variable + "=" + conf}
}

// copyOfModule returns the path of a copy of the library for this place.
func (p *place) copyOfModule(library string) (string, error) {
	path := filepath.Join(p.dir, fmt.Sprintf("module-%d", p.uses), filepath.Base(library))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, copyModule(library, path, p.variable)
}

// copyModule copies the library. The copy reads the path of its configuration from a different variable.
func copyModule(from, to, variable string) error {
	library, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	name, other := []byte("\x00"+softhsm.ConfVariable+"\x00"), []byte("\x00"+variable+"\x00")
	if n := bytes.Count(library, name); n != 1 || len(name) != len(other) {
		return fmt.Errorf(
			"%s mentions %[3]s %[2]d times, not once: this build of SoftHSM cannot separate the tokens of tests", from,
			n, softhsm.ConfVariable)
	}
	return os.WriteFile(to, bytes.Replace(library, name, other, 1), 0o700)
}

// mostPlaces is the number of tokens that a process can have at the same time.
const mostPlaces = 256

// process has the places of this process. It is global because the environment is.
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
		return nil, fmt.Errorf("this process already has %d tokens", mostPlaces)
	}
	one := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	one.uses++
	return one, nil
}

// begin sets the variables of all places before the first token is made. Later, a module in another thread may be
// reading the environment, and the C library does not guard against that.
func (p *places) begin() error {
	dir, err := os.MkdirTemp("", "attestd-hsmtest-")
	if err != nil {
		return err
	}
	p.dir = dir
	for i := range mostPlaces {
		number := fmt.Sprintf("%04x", i)
		one := &place{variable: softhsm.ConfVariable[:len(softhsm.ConfVariable)-len(number)] + number,
			dir: filepath.Join(dir, number)}
		if err := os.Setenv(one.variable, filepath.Join(one.dir, softhsm.ConfName)); err != nil {
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
