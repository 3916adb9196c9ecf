package hsmtest_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestTheFastModuleSignsRight(t *testing.T) {
	t.Parallel()
	token, fast := hsmtest.NewFast(t, hsmtest.FastOptions{})
	public, err := hex.DecodeString(token.Key.PublicKey[2:])
	if err != nil {
		t.Fatal(err)
	}
	u, half := open(t, token), new(big.Int).Rsh(crypto.S256().Params().N, 1)
	high := 0
	for range 200 {
		var d appliance.Digest
		rand.Read(d[:])
		if err := u.SignInit(u.session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)},
			u.key); err != nil {
			t.Fatal(err)
		}
		rs, err := u.Sign(u.session, d[:])
		if err != nil || len(rs) != 64 {
			t.Fatalf("%x, %v", rs, err)
		}
		if _, err := secp256k1.NewSignature(d, [64]byte(rs), public); err != nil {
			t.Errorf("%x of %x: %v", rs, d, err)
		}
		isHigh := new(big.Int).SetBytes(rs[32:]).Cmp(half) > 0
		if isHigh != (d[31]&1 == 1) {
			t.Errorf("s of digest %x is high: %t", d, isHigh)
		}
		if isHigh {
			high++
		}
	}
	if high < 50 || high > 150 {
		t.Errorf("%d of 200 signatures have a high s", high)
	}
	if n, cpu := fast.Spent(); n != 200 || cpu <= 0 {
		t.Errorf("counted %d signatures and %s", n, cpu)
	}
}

// The module must sleep: if it spun, it would take as much CPU time as elapsed time.
func TestTheFastModuleTakesTheLatencyThatWasAskedAndNoCPUForIt(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			token, fast := hsmtest.NewFast(t, hsmtest.FastOptions{Latency: latency})
			u := open(t, token)
			var took []time.Duration
			for range 30 {
				began := time.Now()
				if _, err := u.sign(); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			shortest := slices.Min(took)
			if shortest < latency || shortest > 2*latency+50*time.Millisecond {
				t.Errorf("the shortest call took %s", shortest)
			}
			n, cpu := fast.Spent()
			if latency == 50*time.Millisecond && cpu/time.Duration(n) > latency/2 {
				t.Errorf("%d calls took %s of CPU", n, cpu)
			}
			t.Logf("the shortest call took %s, %d calls %s of CPU", shortest, n, cpu)
		})
	}
}

func TestTheFastModuleSignsAtTheSameTimeOnAsManySessionsAsItHasEngines(t *testing.T) {
	t.Parallel()
	const sessions = 16
	for _, test := range []struct {
		engines         int
		latency         time.Duration
		least, lessThan time.Duration
	}{
		{0, time.Second, time.Second, sessions / 2 * time.Second}, // half of the sequential time
		{1, 50 * time.Millisecond, sessions * 50 * time.Millisecond, time.Minute},
		{4, 50 * time.Millisecond, sessions / 4 * 50 * time.Millisecond, time.Minute},
	} {
		t.Run(fmt.Sprint(test.engines, " engines"), func(t *testing.T) {
			t.Parallel()
			token, _ := hsmtest.NewFast(t, hsmtest.FastOptions{Latency: test.latency, Engines: test.engines})
			u := open(t, token)
			var signers sync.WaitGroup
			began := time.Now()
			for range sessions {
				session, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
				if err != nil {
					t.Fatal(err)
				}
				signers.Go(func() {
					if _, err := u.signOn(session); err != nil {
						t.Error(err)
					}
				})
			}
			signers.Wait()
			if took := time.Since(began); took < test.least || took >= test.lessThan {
				t.Errorf("%d signatures took %s, want at least %s and less than %s", sessions, took, test.least,
					test.lessThan)
			}
		})
	}
}

func TestTheFastModuleHasAMaximumOfSessions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		untold bool
		told   uint
	}{{false, 2}, {true, pkcs11.CK_EFFECTIVELY_INFINITE}} {
		t.Run(fmt.Sprint("untold ", test.untold), func(t *testing.T) {
			token, fast := hsmtest.NewFast(t, hsmtest.FastOptions{Sessions: 2, Untold: test.untold})
			u := open(t, token)
			if info, err := u.GetTokenInfo(u.slot); err != nil || info.MaxSessionCount != test.told {
				t.Errorf("told a maximum of %d, %v", info.MaxSessionCount, err)
			}
			second, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION); rvOf(err) != pkcs11.CKR_SESSION_COUNT {
				t.Errorf("the third: %v", err)
			}
			if err := u.CloseSession(second); err != nil {
				t.Fatal(err)
			}
			if _, err := u.signOn(second); rvOf(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
				t.Errorf("signed on a closed session: %v", err)
			}
			third, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
			if err != nil || third == second {
				t.Errorf("session %d after %d, %v", third, second, err)
			}
			fast.Set(hsmtest.FastOptions{})
			if _, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION); err != nil {
				t.Errorf("with a greater maximum: %v", err)
			}
		})
	}
}

func TestTheFastModuleIsAnHSMForPackageHSM(t *testing.T) {
	t.Parallel()
	const latency, atOnce = 200 * time.Millisecond, 64
	token, _ := hsmtest.NewFast(t, hsmtest.FastOptions{Latency: latency})
	status, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI})
	if err != nil {
		t.Fatal(err)
	}
	k := status.Key
	if !status.Ready || *k.Address != token.Key.Address || k.PublicKey != token.Key.PublicKey ||
		k.Label != token.Key.Label || k.ID != token.Key.ID {
		t.Errorf("%+v, want %+v", status, token.Key)
	}
	results, err := hsm.Bench(t.Context(), hsm.Options{URI: token.URI}, []int{atOnce}, 5*latency)
	// sequential signatures would reach half of this rate, concurrent ones 64 times the sequential rate
	if err != nil || results[0].P50 < latency || results[0].PerSecond < 2/latency.Seconds() {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestRawSignaturesAreThoseThatTheModuleMakes(t *testing.T) {
	t.Parallel()
	const sessions, latency = 8, 50 * time.Millisecond
	token, fast := hsmtest.NewFast(t, hsmtest.FastOptions{Latency: latency})
	alone := 1 / latency.Seconds() // the most that one session can sign in a second
	for try := 1; ; try++ {
		r := hsmtest.Raw(t, token, sessions, time.Second)
		n, cpu := fast.Spent()
		if r.PerSecond > 1.1*sessions*alone || n == 0 || r.CPU < cpu/time.Duration(n) {
			t.Errorf("%+v of %d signatures that took %s", r, n, cpu)
		}
		if r.PerSecond > 2*alone {
			break
		}
		if try == 10 { // a machine may stall for most of a second, but not every time
			t.Fatalf("%+v on %d sessions", r, sessions)
		}
	}
	if r := hsmtest.Raw(t, hsmtest.New(t), 2, 200*time.Millisecond); r.PerSecond <= 0 {
		t.Errorf("SoftHSM: %+v", r)
	}
}
