// Package hsmtest gives each test a SoftHSM token of its own.
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

// place is a folder and the variable that names its configuration. Places are used again.
type place struct {
	variable string
	dir      string
	uses     int // so that no two copies of the library ever have the same path
}

func (p *place) makeToken() (*Token, error) {
	folder, err := softhsm.Create(p.dir)
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
	env := []string{softhsm.ConfVariable + "=" + folder.Conf, p.variable + "=" + folder.Conf}
	return &Token{URI: u, Key: made.Key, PINFile: folder.PIN, SOPIN: folder.SOPIN, Env: env}, nil
}

// copyModule copies the library and lets the copy read its configuration's path from another variable.
func copyModule(from, to, variable string) error {
	library, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	name, other := []byte("\x00"+softhsm.ConfVariable+"\x00"), []byte("\x00"+variable+"\x00")
	if n := bytes.Count(library, name); n != 1 || len(name) != len(other) {
		return fmt.Errorf("%s has %d mentions of %s, not 1: tokens for tests cannot be kept apart with this build of SoftHSM", from, n, softhsm.ConfVariable)
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
		one := &place{variable: softhsm.ConfVariable[:len(softhsm.ConfVariable)-len(number)] + number, dir: filepath.Join(dir, number)}
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
