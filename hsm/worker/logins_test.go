package worker_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/worker"
)

// Two keys of one token have a worker each, and share the PIN. A PIN that was refused for one key is not tried for the
// other. A changed PIN is.
func TestTheKeysOfATokenTryAWrongPINOnce(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	if _, err := hsm.Keygen(t.Context(), hsm.Options{URI: token.URI}, "other"); err != nil {
		t.Fatal(err)
	}
	other := token.URI
	other.Object, other.ID = "other", nil
	right, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	logins := new(worker.Logins)
	options := func(u hsm.URI) worker.Options {
		return worker.Options{HSM: hsm.Options{URI: u, Sessions: 1}, CallTimeout: callTimeout, Logins: logins,
			Sandbox: testFiles()}
	}
	setPIN := func(pin []byte) {
		t.Helper()
		if err := os.WriteFile(token.PINFile, pin, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	setPIN([]byte("000000"))
	before := faults.Calls("C_Login")
	var both sync.WaitGroup
	for _, u := range []hsm.URI{token.URI, other} {
		both.Go(func() {
			if s, err := worker.Open(t.Context(), options(u)); !errors.Is(err, hsm.ErrPIN) {
				t.Errorf("%s: %v, %v", u.Object, s, err)
			}
		})
	}
	both.Wait()
	if _, err := worker.Open(t.Context(), options(other)); !errors.Is(err, hsm.ErrPIN) {
		t.Error(err)
	}
	if n := faults.Calls("C_Login") - before; n != 1 {
		t.Errorf("the wrong PIN was tried %d times", n)
	}
	setPIN(right)
	for _, u := range []hsm.URI{token.URI, other} {
		both.Go(func() {
			s, err := worker.Open(t.Context(), options(u))
			if err != nil {
				t.Errorf("with the right PIN, %s: %v", u.Object, err)
				return
			}
			mustSign(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
}

// A worker that fails after each login is restarted rarely, because tokens log and count logins.
func TestLoginsThatComeToNothingAreFew(t *testing.T) {
	t.Parallel()
	token, faults := hsmtest.FaultModule(t)
	s, _ := open(t, sessions(2, token.URI))
	logins := faults.Calls("C_Login")
	faults.Set("C_SignInit", hsmtest.Fault{Crash: true}) // the trial signature of each start
	began := time.Now()
	limited, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if _, err := s.Sign(limited, randomDigest()); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("got %v, want a timeout", err)
	}
	n := faults.Calls("C_Login") - logins
	if took := time.Since(began); float64(n) > 2*took.Seconds() {
		t.Errorf("%d logins in %s, want no more than 2 in a second", n, took)
	}
	eventually(t, "logged in", func() bool { return faults.Calls("C_Login") > logins })
	faults.Clear()
	mustSign(t, s)
}
