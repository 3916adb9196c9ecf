package hsmtest

import (
	"context"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
)

// Fast is a PKCS#11 module in C that signs like a fast network HSM: little CPU, a latency, many sessions. It shows the
// cost of the code around C_Sign, which SoftHSM's own CPU time hides. Fast and the module share a mapped file, so any
// process may load the module.
type Fast struct {
	Module string // path of the module; the URI of Token names it

	control *fastControl
}

// FastOptions are the properties of the HSM.
type FastOptions struct {
	Latency  time.Duration // duration of C_Sign, spent asleep except for some 30 us; 0 means no sleep
	Sessions int           // open sessions per process before C_OpenSession returns CKR_SESSION_COUNT; 0 means 4096
	Untold   bool          // C_GetTokenInfo does not report the maximum of sessions
	Engines  int           // concurrent signatures, regardless of the number of sessions; 0 means one for each session
}

// fastControl mirrors struct control of the module.
type fastControl struct{ latency, most, untold, engines, signs, cpu atomic.Uint64 }

// Constants of the module.
const (
	fastPIN      = "1234"
	fastKey      = "attestd: the key of a fast HSM!!"
	fastSessions = 4096
)

// NewFast makes a module, and with it a token with one secp256k1 key. Each module has separate variables.
func NewFast(tb testing.TB, o FastOptions) (*Token, *Fast) {
	tb.Helper()
	library, err := compiledFast()
	if err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	dir := tb.TempDir()
	f := &Fast{Module: filepath.Join(dir, "fast.so")}
	if err := f.place(library); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	f.Set(o)
	key, err := crypto.ToECDSA([]byte(fastKey))
	if err != nil {
		tb.Fatal(err)
	}
	pinFile := filepath.Join(dir, "pin")
	if err := os.WriteFile(pinFile, []byte(fastPIN+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return &Token{
		URI: hsm.URI{Token: "attestd", Object: "attestor", ModulePath: f.Module, PINSource: "file:" + pinFile},
		Key: hsm.KeyInfo{
			Label: "attestor", ID: "01", Address: appliance.Address(crypto.PubkeyToAddress(key.PublicKey)),
			PublicKey: "0x" + hex.EncodeToString(crypto.FromECDSAPub(&key.PublicKey)),
		},
		PINFile: pinFile,
	}, f
}

// place copies the library, because only a copy has separate variables, and creates the control file next to it.
func (f *Fast) place(library []byte) error {
	if err := os.WriteFile(f.Module, library, 0o700); err != nil {
		return err
	}
	mapped, err := mapFile(f.Module+".control", unsafe.Sizeof(fastControl{}))
	if err != nil {
		return err
	}
	f.control = (*fastControl)(mapped) // stays mapped: a call may outlive the test
	return nil
}

// Set changes the HSM's properties. Open sessions stay open.
func (f *Fast) Set(o FastOptions) {
	if o.Sessions == 0 {
		o.Sessions = fastSessions
	}
	f.control.latency.Store(uint64(o.Latency))
	f.control.most.Store(uint64(o.Sessions))
	f.control.engines.Store(uint64(o.Engines))
	f.control.untold.Store(0)
	if o.Untold {
		f.control.untold.Store(1)
	}
}

// Spent returns the number of signatures of all processes so far, and their CPU time in C_Sign.
func (f *Fast) Spent() (signatures int, cpu time.Duration) {
	return int(f.control.signs.Load()), time.Duration(f.control.cpu.Load())
}

//go:embed testdata/fastmodule/module.c
var fastSource []byte

// compiledFast returns the library, compiled with the C sources of two Go dependencies.
var compiledFast = sync.OnceValues(func() ([]byte, error) {
	secp256k1, err := moduleDir("github.com/ethereum/go-ethereum")
	if err != nil {
		return nil, err
	}
	headers, err := moduleDir("github.com/miekg/pkcs11")
	if err != nil {
		return nil, err
	}
	return compile(fastSource, append(slices.Clone(shared), "-I",
		filepath.Join(secp256k1, "crypto", "secp256k1", "libsecp256k1"), "-I", headers)...)
})

// moduleDir returns the folder of a Go module's sources.
func moduleDir(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), toolTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path).Output()
	if dir := string(out[:max(0, len(out)-1)]); err == nil && dir != "" {
		return dir, nil
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	return "", fmt.Errorf("find the sources of %s: %w; `go mod download` fetches them", path, err)
}
