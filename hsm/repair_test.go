package hsm_test

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// repairSteps counts the steps that repairs took, or may take.
type repairSteps struct{ sessions, logins, resets int }

func stepsOf(f *faulty) repairSteps {
	return repairSteps{f.count("C_OpenSession"), f.count("C_Login"), f.count("C_Initialize")}
}

func (s repairSteps) since(before repairSteps) repairSteps {
	return repairSteps{s.sessions - before.sessions, s.logins - before.logins, s.resets - before.resets}
}

// once makes the next call of the function fail.
func once(function string, rv uint) func(*faulty) {
	return func(f *faulty) { f.set(func() { f.before = times(1, function, rv) }) }
}

// deadUntilInitialize makes every call fail until the module is initialised again.
func deadUntilInitialize(f *faulty) {
	var back bool
	f.set(func() {
		f.before = func(function string) error {
			back = back || function == "C_Initialize"
			if !back && function != "C_Finalize" {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		}
	})
}

func TestFaultsAreMendedByTheStepTheyNeed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damage func(*faulty)
		want   repairSteps // in addition to the start
	}{
		"CKR_SESSION_HANDLE_INVALID": {once("C_SignInit", pkcs11.CKR_SESSION_HANDLE_INVALID),
			repairSteps{1, 0, 0}},
		"CKR_SESSION_CLOSED":     {once("C_Sign", pkcs11.CKR_SESSION_CLOSED), repairSteps{1, 0, 0}},
		"CKR_OPERATION_ACTIVE":   {once("C_SignInit", pkcs11.CKR_OPERATION_ACTIVE), repairSteps{1, 0, 0}},
		"CKR_GENERAL_ERROR":      {once("C_Sign", pkcs11.CKR_GENERAL_ERROR), repairSteps{1, 0, 0}},
		"CKR_FUNCTION_FAILED":    {once("C_Sign", pkcs11.CKR_FUNCTION_FAILED), repairSteps{1, 0, 0}},
		"CKR_HOST_MEMORY":        {once("C_Sign", pkcs11.CKR_HOST_MEMORY), repairSteps{1, 0, 0}},
		"a vendor's own":         {once("C_Sign", pkcs11.CKR_VENDOR_DEFINED+7), repairSteps{1, 0, 0}},
		"CKR_KEY_HANDLE_INVALID": {once("C_SignInit", pkcs11.CKR_KEY_HANDLE_INVALID), repairSteps{0, 0, 0}},
		"CKR_OBJECT_HANDLE_INVALID": {once("C_SignInit", pkcs11.CKR_OBJECT_HANDLE_INVALID),
			repairSteps{0, 0, 0}},
		"CKR_USER_NOT_LOGGED_IN":           {once("C_SignInit", pkcs11.CKR_USER_NOT_LOGGED_IN), repairSteps{0, 1, 0}},
		"CKR_DEVICE_REMOVED":               {once("C_Sign", pkcs11.CKR_DEVICE_REMOVED), repairSteps{1, 0, 0}},
		"CKR_TOKEN_NOT_PRESENT":            {once("C_SignInit", pkcs11.CKR_TOKEN_NOT_PRESENT), repairSteps{1, 0, 0}},
		"CKR_DEVICE_ERROR":                 {once("C_Sign", pkcs11.CKR_DEVICE_ERROR), repairSteps{1, 0, 0}},
		"an unknown code of C_SignInit":    {once("C_SignInit", pkcs11.CKR_MECHANISM_INVALID), repairSteps{1, 0, 0}},
		"stale key handle":                 {(*faulty).staleObjects, repairSteps{0, 0, 0}},
		"all sessions gone, so logged out": {(*faulty).staleSessions, repairSteps{2, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2})
			before := stepsOf(f)
			test.damage(f)
			for range 4 { // each session is reopened when it is used next
				mustSign(t, s)
			}
			if got := stepsOf(f).since(before); got != test.want {
				t.Errorf("took %+v, want %+v", got, test.want)
			}
			status, err := s.Status(t.Context())
			if err != nil || !status.Ready || status.Repairs == 0 || status.LastError == "" {
				t.Errorf("status %+v, %v", status, err)
			}
		})
	}
}

func TestFaultThatNothingMendsIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	f.set(func() { f.before = times(1, "C_Sign", pkcs11.CKR_MECHANISM_INVALID) })
	_, err := s.Sign(t.Context(), randomDigest())
	wantCode(t, err, appliance.CodeHSMUnavailable)
	if !strings.Contains(err.Error(), "C_Sign: CKR_MECHANISM_INVALID") {
		t.Errorf("the operator sees %v", err)
	}
	if e, ok := errors.AsType[*appliance.Error](err); !ok || strings.Contains(e.Detail, "CKR") || e.RetryAfter == 0 {
		t.Errorf("the client sees %+v", e)
	}
	mustSign(t, s)
}

// A token may return any code for a stale handle. If finding the key again does not help, the code is the answer.
func TestAnUnknownCodeOfSignInitHasTheKeyFoundAgainOnce(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	searches, signatures := f.count("C_FindObjectsInit"), f.count("C_SignInit")
	trial := func() bool { return f.calls["C_SignInit"] == signatures+2 } // of the repair
	f.set(func() {
		f.before = func(function string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if function == "C_SignInit" && !trial() {
				return pkcs11.Error(pkcs11.CKR_KEY_TYPE_INCONSISTENT)
			}
			return nil
		}
	})
	_, err := s.Sign(t.Context(), randomDigest())
	wantCode(t, err, appliance.CodeHSMUnavailable)
	if !strings.Contains(err.Error(), "C_SignInit: CKR_KEY_TYPE_INCONSISTENT") {
		t.Errorf("the operator sees %v", err)
	}
	if n := f.count("C_FindObjectsInit") - searches; n != 1 {
		t.Errorf("%d searches, want 1", n)
	}
	f.set(func() { f.before = nil })
	mustSign(t, s)
}

// C_Finalize and C_Initialize are left to another process, because both can hang or crash and calls may be inside the
// module.
func TestWhatOnlyLoadingTheModuleAgainRepairsIsLost(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*faulty){
		"CKR_CRYPTOKI_NOT_INITIALIZED":         once("C_SignInit", pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED),
		"a device in error until C_Initialize": deadUntilInitialize,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2}
			s := open(t, f, options)
			damage(f)
			for range 3 {
				_, err := s.Sign(t.Context(), randomDigest())
				wantCode(t, err, appliance.CodeHSMUnavailable)
				if !errors.Is(err, hsm.ErrLost) || !strings.Contains(err.Error(), "CKR_") {
					t.Errorf("got %v, want ErrLost with the cause", err)
				}
			}
			if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrLost) {
				t.Errorf("Ready says %v, want ErrLost", err)
			}
			if n := f.count("C_Initialize"); n != 1 {
				t.Errorf("C_Initialize was called %d times", n)
			}
			mustSign(t, reopen(t, f, s, options))
		})
	}
}

// A restart of the token closes each session of the pool. Reopening them and one login are enough. No call fails as
// often as there are sessions.
func TestATokenRestartTakesOneLogin(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 16})
	before := stepsOf(f)
	f.staleSessions()
	f.staleObjects()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 4 {
				mustSign(t, s)
			}
		})
	}
	all.Wait()
	if got := stepsOf(f).since(before); got.logins != 1 || got.resets != 0 || got.sessions > 16+1 {
		t.Errorf("took %+v", got)
	}
}

func TestReadyFindsADeadSessionAndMendsIt(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2})
	f.staleSessions()
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if f.count("C_Login") != 2 {
		t.Errorf("%d logins, want 2", f.count("C_Login"))
	}
}

func TestAnotherKeyAfterARepairIsRefused(t *testing.T) {
	t.Parallel()
	// opened first, so that it is closed last
	otherSigner := open(t, newFaulty(t), hsm.Options{URI: hsmtest.New(t).URI})
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	// From now on the token holds another key under the same name: its signatures come from another token.
	f.set(func() {
		f.signature = func([]byte) []byte {
			raw, err := otherSigner.Sign(context.Background(), randomDigest())
			if err != nil {
				t.Error(err)
			}
			return append(raw.R[:], raw.S[:]...)
		}
	})
	f.staleObjects()
	_, err := s.Sign(t.Context(), randomDigest())
	wantCode(t, err, appliance.CodeHSMUnavailable)
	if !errors.Is(err, hsm.ErrWrongKey) {
		t.Errorf("got %v, want ErrWrongKey", err)
	}
	if err := s.Ready(t.Context()); err == nil {
		t.Error("it is ready")
	}
}

func TestHangingCallDoesNotStopTheRepairOfOtherSessions(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2}.Through(f.wrap).Within(10*time.Second,
		20*time.Millisecond, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	entered, let := hang(t, f)
	done := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); done <- err }()
	<-entered
	f.set(func() { f.before = times(1, "C_SignInit", pkcs11.CKR_KEY_HANDLE_INVALID) })
	mustSign(t, s)
	if n := f.count("C_Initialize"); n != 1 {
		t.Errorf("C_Initialize was called %d times under a call", n)
	}
	let()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// failNowAndThen makes 2 in 100 calls fail, with any repairable fault, and 1 in 200 signatures wrong.
func failNowAndThen(f *faulty, injected *atomic.Int32) {
	faults := []uint{
		pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_USER_NOT_LOGGED_IN,
		pkcs11.CKR_KEY_HANDLE_INVALID,
		pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_GENERAL_ERROR,
	}
	f.set(func() {
		f.before = func(function string) error {
			if mathrand.N(100) < 2 && function != "C_Finalize" && function != "C_Initialize" {
				injected.Add(1)
				if function == "C_Login" {
					// most other codes could mean a wrong PIN, and are final
					return pkcs11.Error(pkcs11.CKR_DEVICE_REMOVED)
				}
				return pkcs11.Error(faults[mathrand.N(len(faults))])
			}
			return nil
		}
		f.signature = func(signature []byte) []byte {
			if mathrand.N(200) == 0 {
				injected.Add(1)
				signature[mathrand.N(64)] ^= 0x10
			}
			return signature
		}
	})
}

// Every call of the module fails now and then, and handles go stale. Every returned signature must still be right.
// Package worker also tests reloading the module.
func TestEverySignatureIsRightUnderContinuousFaults(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 4}
	s := open(t, f, options)
	var injected atomic.Int32
	failNowAndThen(f, &injected)
	const goroutines, each = 64, 15
	var all sync.WaitGroup
	var wrongTwice, lost atomic.Int32
	for i := range goroutines {
		all.Go(func() {
			for j := range each {
				switch {
				case i == 0 && j%5 == 2:
					f.staleObjects()
				case i == 1 && j%5 == 2:
					f.staleSessions()
				}
				d := randomDigest()
				signature, err := s.Sign(t.Context(), d)
				if errors.Is(err, hsm.ErrWrongKey) {
					wrongTwice.Add(1) // must be refused if the token is wrong twice in a row
					continue
				}
				if errors.Is(err, hsm.ErrLost) {
					lost.Add(1) // four repairs in a row have failed; a worker would end
					return
				}
				if err != nil {
					t.Errorf("signature %d of %d: %v", j, i, err)
					return
				}
				checkSignature(t, s, d, signature)
			}
		})
	}
	all.Wait()
	f.set(func() { f.before, f.signature = nil, nil })
	if lost.Load() > 0 {
		t.Logf("%d faults; lost", injected.Load())
		mustSign(t, reopen(t, f, s, options))
		return
	}
	mustSignAfterRepair(t, f, s, options)
	status, err := s.Status(t.Context())
	if err != nil || status.Signatures+uint64(wrongTwice.Load()) != goroutines*each+1 || injected.Load() == 0 {
		t.Errorf("%d faults; status %+v, %v", injected.Load(), status, err)
	}
	t.Logf(
		"%d faults, %d repairs, %d times C_Initialize, %d logins, %d wrong signatures withheld, %d requests refused for them",
		injected.Load(), status.Repairs, f.count("C_Initialize"), f.count("C_Login"), status.WrongSignatures,
		wrongTwice.Load())
}
