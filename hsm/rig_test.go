package hsm_test

import (
	"crypto/rand"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func randomDigest() (d appliance.Digest) {
	rand.Read(d[:])
	return d
}

// open returns a signer with faults injected before the token. It is closed when the test ends.
func open(t testing.TB, f *faulty, options hsm.Options) *hsm.Signer {
	t.Helper()
	s, err := tryOpen(t, f, options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t testing.TB, f *faulty, options hsm.Options) (*hsm.Signer, error) {
	s, err := hsm.Open(t.Context(), options.Through(f.wrap).Within(20*time.Second, 2*time.Second, time.Millisecond))
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil && !t.Failed() {
				t.Errorf("Close: %v", err)
			}
		})
	}
	return s, err
}

func mustSign(t testing.TB, s *hsm.Signer) {
	t.Helper()
	d := randomDigest()
	signature, err := s.Sign(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	checkSignature(t, s, d, signature)
}

// mustSignAfterRepair is mustSign right after a fault has ended. A repair that was running may have signed before and
// fail, together with the call that waits for it. The next attempt must succeed, or a new signer if the module was
// given up.
func mustSignAfterRepair(t testing.TB, f *faulty, s *hsm.Signer, options hsm.Options) {
	t.Helper()
	d := randomDigest()
	signature, err := s.Sign(t.Context(), d)
	if errors.Is(err, hsm.ErrWrongKey) && !errors.Is(err, hsm.ErrLost) {
		signature, err = s.Sign(t.Context(), d)
	}
	if errors.Is(err, hsm.ErrLost) {
		mustSign(t, reopen(t, f, s, options))
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	checkSignature(t, s, d, signature)
}

// reopen finalises and initialises the module, as the end of a worker and the start of the next do.
func reopen(t testing.TB, f *faulty, s *hsm.Signer, options hsm.Options) *hsm.Signer {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, f, options)
}

// checkSignature checks with go-ethereum as a contract would: ecrecover of the digest returns the address.
func checkSignature(t testing.TB, s *hsm.Signer, d appliance.Digest, signature appliance.Signature) {
	t.Helper()
	rsv := append(append(append([]byte(nil), signature.R[:]...), signature.S[:]...), signature.V-27)
	key, err := crypto.SigToPub(d[:], rsv)
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	if got := appliance.Address(crypto.PubkeyToAddress(*key)); got != s.Address() {
		t.Fatalf("the signature is by %s, not %s", got, s.Address())
	}
	half := new(big.Int).Rsh(crypto.S256().Params().N, 1)
	if new(big.Int).SetBytes(signature.S[:]).Cmp(half) > 0 {
		t.Fatalf("s is in the upper half")
	}
}

func wantCode(t testing.TB, err error, code appliance.Code) {
	t.Helper()
	if appliance.CodeOf(err) != code {
		t.Fatalf("code %q of %v, want %q", appliance.CodeOf(err), err, code)
	}
}

func secretFile(t testing.TB, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// makeToken makes another token in the store of the test's token.
func makeToken(t testing.TB, beside *hsmtest.Token, label string) {
	t.Helper()
	u := beside.URI
	u.Token = label
	made, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: beside.SOPIN})
	if err != nil || !made.TokenCreated || !made.Created {
		t.Fatalf("make token %s: %+v, %v", label, made, err)
	}
}

// hang makes C_Sign wait until the test releases it.
func hang(t testing.TB, f *faulty) (entered chan struct{}, let func()) {
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	let = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(let)
	f.set(func() {
		f.before = func(function string) error {
			if function == "C_Sign" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		}
	})
	return entered, let
}
