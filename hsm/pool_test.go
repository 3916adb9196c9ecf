package hsm_test

import (
	"context"
	"errors"
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

func TestOneLoginForAllSessions(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 8})
	for range 32 {
		mustSign(t, s)
	}
	if f.count("C_Login") != 1 || f.count("C_OpenSession") != 8 {
		t.Errorf("%d logins and %d sessions, want 1 and 8", f.count("C_Login"), f.count("C_OpenSession"))
	}
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked   int
		maximum uint
		refused bool // C_OpenSession gives CKR_SESSION_COUNT after three
		want    int
	}{
		"by configuration":        {3, 0, false, 3},
		"by the token's maximum":  {8, 2, false, 2},
		"by what the token gives": {8, 0, true, 3},
		"to one":                  {1, 0, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			f.tokenInfo = func(info *pkcs11.TokenInfo) error { info.MaxSessionCount = test.maximum; return nil }
			var opened atomic.Int32
			f.before = func(function string) error {
				if function == "C_OpenSession" && opened.Add(1) > 3 && test.refused {
					return pkcs11.Error(pkcs11.CKR_SESSION_COUNT)
				}
				return nil
			}
			s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: test.asked})
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					for range 10 {
						mustSign(t, s)
					}
				})
			}
			all.Wait()
			status, err := s.Status(t.Context())
			if err != nil || status.Session.Open != test.want || f.most > test.want {
				t.Errorf("%d sessions, %d concurrent, want %d; %v", status.Session.Open, f.most, test.want, err)
			}
			if status.Session.InUse != 0 || status.Signatures != 160 || status.Session.Max != test.maximum {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// A token may reduce its session limit during use. The remaining sessions are used, and the others are retried later.
func TestAShrinkingSessionLimitCostsOnlyTheSessions(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 16})
	before := stepsOf(f)
	limit, given := 3, 0
	f.set(func() {
		f.before = func(function string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if function != "C_OpenSession" {
				return nil
			}
			if given >= limit {
				return pkcs11.Error(pkcs11.CKR_SESSION_COUNT)
			}
			given++
			return nil
		}
	})
	f.staleSessions()
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 5 {
				mustSign(t, s)
			}
		})
	}
	all.Wait()
	if n := s.Usage().Sessions; n != limit {
		t.Errorf("%d sessions, want %d", n, limit)
	}
	if got := stepsOf(f).since(before); got.logins != 1 || got.resets != 0 {
		t.Errorf("took %+v", got)
	}
	f.set(func() { limit = 100 })
	for deadline := time.Now().Add(20 * time.Second); s.Usage().Sessions < 16; mustSign(t, s) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions again, want 16", s.Usage().Sessions)
		}
	}
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 1})
	entered, let := hang(t, f)

	inside, cancelInside := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { _, err := s.Sign(inside, randomDigest()); hung <- err }()
	<-entered

	// One call waits for the session that the hung call holds.
	waiting, cancelWaiting := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { _, err := s.Sign(waiting, randomDigest()); waited <- err }()
	cancelWaiting()
	wantCode(t, <-waited, appliance.CodeTimeout)

	// The other is inside the module, which does not know of contexts.
	cancelInside()
	wantCode(t, <-hung, appliance.CodeTimeout)
	if status, _ := s.Status(waiting); status.Session.InUse != 1 {
		t.Errorf("%d sessions in use, want the one of the call that hangs", status.Session.InUse)
	}
	if err := s.Ready(waiting); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("Ready says %v, want a timeout", err)
	}
	let()
	mustSign(t, s)
}

func TestContextWithoutDeadlineIsBounded(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 1}.Through(f.wrap).Within(10*time.Millisecond,
		time.Second, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	_, let := hang(t, f)
	_, err = s.Sign(context.Background(), randomDigest())
	wantCode(t, err, appliance.CodeTimeout)
	let()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseNamesACallThatHangs(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2}.Through(f.wrap).Within(time.Second,
		10*time.Millisecond, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	entered, let := hang(t, f)
	done := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); done <- err }()
	<-entered
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "1 of 2 sessions") {
		t.Errorf("Close says %v", err)
	}
	if f.count("C_Finalize") != 0 {
		t.Error("C_Finalize was called under a call")
	}
	let()
	<-done
}

func TestCloseLetsSignaturesFinish(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 3})
	var signed atomic.Int32
	var all sync.WaitGroup
	started := make(chan struct{}, 1)
	for range 16 {
		all.Go(func() {
			for {
				d := randomDigest()
				signature, err := s.Sign(t.Context(), d)
				if err != nil {
					if !errors.Is(err, hsm.ErrClosed) {
						t.Errorf("got %v, want ErrClosed", err)
					}
					return
				}
				checkSignature(t, s, d, signature)
				if signed.Add(1) == 20 {
					started <- struct{}{}
				}
			}
		})
	}
	<-started
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrClosed) {
		t.Errorf("Ready says %v, want ErrClosed", err)
	}
}
