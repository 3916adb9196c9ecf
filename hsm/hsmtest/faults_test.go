package hsmtest_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// user uses a module as a Signer does, without any repair.
type user struct {
	*pkcs11.Ctx
	pin     string
	slot    uint
	session pkcs11.SessionHandle
	key     pkcs11.ObjectHandle
}

func open(t testing.TB, token *hsmtest.Token) *user {
	t.Helper()
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	u := &user{Ctx: pkcs11.New(token.URI.ModulePath), pin: strings.TrimSpace(string(pin))}
	if u.Ctx == nil {
		t.Fatal("the module does not load")
	}
	if err := u.Initialize(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Finalize() })
	if err := u.logIn(); err != nil {
		t.Fatal(err)
	}
	return u
}

// logIn logs in and finds the key.
func (u *user) logIn() error {
	slots, err := u.GetSlotList(true)
	if err != nil {
		return err
	}
	u.slot = slots[0]
	if u.session, err = u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION); err != nil {
		return err
	}
	if err := u.Login(u.session, pkcs11.CKU_USER, u.pin); err != nil {
		return err
	}
	if err := u.FindObjectsInit(u.session,
		[]*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY)}); err != nil {
		return err
	}
	keys, _, err := u.FindObjects(u.session, 2)
	if err != nil || len(keys) != 1 {
		return errors.Join(errors.New("not one key"), err)
	}
	u.key = keys[0]
	return u.FindObjectsFinal(u.session)
}

func (u *user) sign() ([]byte, error) { return u.signOn(u.session) }

func (u *user) signOn(session pkcs11.SessionHandle) ([]byte, error) {
	if err := u.SignInit(session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, u.key); err != nil {
		return nil, err
	}
	return u.Sign(session, digest)
}

var digest = make([]byte, 32)

func TestFaultsOfAFunction(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	const deviceError, generalError = pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_GENERAL_ERROR
	for name, test := range map[string]struct {
		faults []hsmtest.Fault
		want   []uint // the result of each call of C_Sign
	}{
		"none":            {nil, []uint{0, 0}},
		"always":          {[]hsmtest.Fault{{Error: deviceError}}, []uint{deviceError, deviceError, deviceError}},
		"once":            {[]hsmtest.Fault{{Error: deviceError, Times: 1}}, []uint{deviceError, 0, 0}},
		"after two, once": {[]hsmtest.Fault{{Error: deviceError, After: 2, Times: 1}}, []uint{0, 0, deviceError, 0}},
		"one, then another": {
			[]hsmtest.Fault{{Error: deviceError, Times: 1}, {Error: generalError, Times: 2}},
			[]uint{deviceError, generalError, generalError, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			faults.Set("C_Sign", test.faults...)
			before := faults.Calls("C_Sign")
			for i, want := range test.want {
				if _, err := u.sign(); rvOf(err) != want {
					t.Errorf("call %d: %v, want %#x", i, err, want)
				}
				if err := u.renew(); err != nil { // C_SignInit has left an operation active
					t.Fatal(err)
				}
			}
			if n := faults.Calls("C_Sign") - before; n != len(test.want) {
				t.Errorf("counted %d calls, want %d", n, len(test.want))
			}
		})
	}
}

// renew replaces the session, which has an active operation, and keeps the login.
func (u *user) renew() error {
	next, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		return err
	}
	defer func() { u.session = next }()
	return u.CloseSession(u.session)
}

func rvOf(err error) uint {
	rv, _ := errors.AsType[pkcs11.Error](err)
	return uint(rv)
}

func TestFaultWithAChanceConcernsSomeCalls(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	faults.Set("C_GetSessionInfo", hsmtest.Fault{Chance: 0.25, Error: pkcs11.CKR_DEVICE_ERROR})
	failed := 0
	for range 1000 {
		if _, err := u.GetSessionInfo(u.session); err != nil {
			failed++
		}
	}
	if failed < 150 || failed > 350 {
		t.Errorf("%d of 1000 failed, want about 250", failed)
	}
}

func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	right := func(signature []byte) bool {
		public := u.publicKey(t)
		if err := u.VerifyInit(u.session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)},
			public); err != nil {
			t.Fatal(err)
		}
		return u.Verify(u.session, digest, signature) == nil
	}
	for name, test := range map[string]struct {
		answer hsmtest.Answer
		length int
		right  bool
	}{
		"right":        {hsmtest.Right, 64, true},
		"bit flipped":  {hsmtest.BitFlipped, 64, false},
		"other digest": {hsmtest.OtherDigest, 64, false},
		"too short":    {hsmtest.TooShort, 63, false},
	} {
		t.Run(name, func(t *testing.T) {
			faults.Set("C_Sign", hsmtest.Fault{Answer: test.answer})
			signature, err := u.sign()
			if err != nil || len(signature) != test.length || right(signature) != test.right {
				t.Errorf("%d bytes, right %t, %v", len(signature), right(signature), err)
			}
		})
	}
}

func (u *user) publicKey(t *testing.T) pkcs11.ObjectHandle {
	t.Helper()
	if err := u.FindObjectsInit(u.session,
		[]*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY)}); err != nil {
		t.Fatal(err)
	}
	keys, _, err := u.FindObjects(u.session, 1)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%v, %v", keys, err)
	}
	if err := u.FindObjectsFinal(u.session); err != nil {
		t.Fatal(err)
	}
	return keys[0]
}

func TestHangingCallsGoOnWhenReleased(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	other, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		t.Fatal(err)
	}
	faults.Set("C_Sign", hsmtest.Fault{Hang: true, Times: 1})
	done := make(chan error, 1)
	go func() { _, err := u.sign(); done <- err }()
	waitFor(t, func() bool { return faults.Hung() == 1 })
	if _, err := u.signOn(other); err != nil {
		t.Errorf("another session: %v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("it returned %v", err)
	default:
	}
	faults.Release()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 20 s")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestDelayIsAsLongAsAsked(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	faults.Set("C_SignInit", hsmtest.Fault{Delay: 30 * time.Millisecond})
	began := time.Now()
	if _, err := u.sign(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 30*time.Millisecond {
		t.Errorf("took %s", took)
	}
}

func TestRestartVoidsEveryHandle(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	oldSession, oldKey := u.session, u.key
	faults.Restart()
	if _, err := u.sign(); rvOf(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
		t.Errorf("the session: %v", err)
	}
	next, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil || next == oldSession {
		t.Fatalf("session %d after %d, %v", next, oldSession, err)
	}
	if _, err := u.signOn(next); rvOf(err) != pkcs11.CKR_KEY_HANDLE_INVALID {
		t.Errorf("the key: %v", err)
	}
	info, err := u.GetSessionInfo(next)
	if err != nil || info.State != pkcs11.CKS_RO_PUBLIC_SESSION {
		t.Errorf("state %d, %v; want no login", info.State, err)
	}
	if err := u.logIn(); err != nil {
		t.Fatal(err)
	}
	if u.key == oldKey {
		t.Error("the key has the same handle as before")
	}
	if _, err := u.sign(); err != nil {
		t.Error(err)
	}
}

func TestLimitOfSessionsEndsTheNewest(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	opened := []pkcs11.SessionHandle{u.session}
	for range 3 {
		next, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
		if err != nil {
			t.Fatal(err)
		}
		opened = append(opened, next)
	}
	faults.LimitSessions(2)
	for i, session := range opened {
		_, err := u.signOn(session)
		if lost := rvOf(err) == pkcs11.CKR_SESSION_HANDLE_INVALID; lost != (i >= 2) || (err != nil && !lost) {
			t.Errorf("session %d: %v", i, err)
		}
	}
	if _, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION); rvOf(err) != pkcs11.CKR_SESSION_COUNT {
		t.Errorf("one more: %v", err)
	}
	if n := faults.Sessions(); n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
	faults.LimitSessions(-1)
	if _, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION); err != nil {
		t.Error(err)
	}
}

func TestDownIsAllFunctions(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	faults.Down(pkcs11.CKR_DEVICE_REMOVED)
	_, inSlots := u.GetSlotList(true)
	_, inSign := u.sign()
	if rvOf(inSlots) != pkcs11.CKR_DEVICE_REMOVED || rvOf(inSign) != pkcs11.CKR_DEVICE_REMOVED {
		t.Errorf("got %v, %v", inSlots, inSign)
	}
	if err := u.Finalize(); err != nil {
		t.Error(err)
	}
	if err := u.Initialize(); rvOf(err) != pkcs11.CKR_DEVICE_REMOVED {
		t.Errorf("C_Initialize: %v", err)
	}
	faults.Up()
	if err := errors.Join(u.Initialize(), u.logIn()); err != nil {
		t.Error(err)
	}
}

// childVariable makes the test's binary a process that signs until a fault crashes it.
const childVariable = "HSMTEST_CHILD_PIN"

func TestFaultsReachAnotherProcess(t *testing.T) {
	if pin := os.Getenv(childVariable); pin != "" {
		u := open(t, &hsmtest.Token{URI: hsm.URI{ModulePath: os.Getenv("HSMTEST_CHILD_MODULE")}, PINFile: pin})
		for {
			_, _ = u.sign()
		}
	}
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(),
		append(token.Env, childVariable+"="+token.PINFile, "HSMTEST_CHILD_MODULE="+token.URI.ModulePath)...)
	var log strings.Builder
	child.Stderr = &log
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return faults.Calls("C_Sign") > 100 })
	faults.Set("C_Sign", hsmtest.Fault{Crash: true, Times: 1})
	if err := child.Wait(); err == nil || !strings.Contains(log.String(), "SIGSEGV") {
		t.Errorf("the child ended with %v: %s", err, log.String())
	}
}

func TestManySessionsSignAtTheSameTime(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	u := open(t, token)
	var signers sync.WaitGroup
	for range 16 {
		session, err := u.OpenSession(u.slot, pkcs11.CKF_SERIAL_SESSION)
		if err != nil {
			t.Fatal(err)
		}
		signers.Go(func() {
			for range 50 {
				if _, err := u.signOn(session); err != nil && rvOf(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
					t.Errorf("sign: %v", err)
				}
			}
		})
	}
	waitFor(t, func() bool { return faults.Calls("C_Sign") > 100 })
	faults.Restart() // under load: it waits for calls inside the real module
	signers.Wait()
}

func BenchmarkForwarding(b *testing.B) {
	token, _ := hsmtest.FaultModule(b)
	u := open(b, token)
	for b.Loop() {
		if _, err := u.GetSessionInfo(u.session); err != nil {
			b.Fatal(err)
		}
	}
}
