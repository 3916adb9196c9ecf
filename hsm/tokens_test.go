package hsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
)

// standIn is a token's signer that the test controls. The v of a signature is the number of its token.
type standIn struct {
	number  byte
	address appliance.Address

	ended   chan struct{} // closed by Close
	instant bool          // otherwise a signature takes own

	mu     sync.Mutex
	fault  error // of Sign, and of opening
	hangs  bool
	asked  int
	opened int
	closed bool
}

func (s *standIn) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *standIn) open(context.Context) (hsm.TokenSigner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	if s.fault != nil {
		return nil, s.fault
	}
	return s, nil
}

func (s *standIn) Sign(ctx context.Context, _ appliance.Digest) (appliance.Signature, error) {
	s.mu.Lock()
	s.asked++
	fault, hangs := s.fault, s.hangs
	s.mu.Unlock()
	if hangs {
		select {
		case <-ctx.Done():
			return appliance.Signature{}, hsm.TimedOut("the module", ctx.Err())
		case <-s.ended:
			return appliance.Signature{}, hsm.Unavailable(hsm.ErrClosed, 0)
		}
	}
	if fault != nil {
		return appliance.Signature{}, hsm.Unavailable(fault, time.Second)
	}
	if !s.instant {
		time.Sleep(own)
	}
	return appliance.Signature{V: s.number}, nil
}

func (s *standIn) PublicKey() []byte                          { return s.address[:] }
func (s *standIn) Address() appliance.Address                 { return s.address }
func (s *standIn) Ready(context.Context) error                { return nil }
func (s *standIn) Status(context.Context) (hsm.Status, error) { return hsm.Status{Ready: true}, nil }
func (s *standIn) Usage() hsm.Usage                           { return hsm.Usage{Ready: true, Sessions: 4} }
func (s *standIn) Close() error {
	s.set(func() {
		if !s.closed {
			close(s.ended)
		}
		s.closed = true
	})
	return nil
}

// count returns how often the token was asked to sign since the last call.
func (s *standIn) count() (n int) {
	s.set(func() { n, s.asked = s.asked, 0 })
	return n
}

func (s *standIn) openings() (n int) {
	s.set(func() { n = s.opened })
	return n
}

const standInTimeout = 800 * time.Millisecond // of a call: an eighth is 100 ms

// severalTokens is a Tokens of several stand-ins, in a synctest bubble.
type severalTokens struct {
	*testing.T
	*hsm.Tokens
	each []*standIn
	log  bytes.Buffer
}

func standIns(n int) (each []*standIn) {
	for i := range n {
		each = append(each, &standIn{number: byte(i + 1), address: appliance.Address{1}, ended: make(chan struct{})})
	}
	return each
}

func openStandIns(t *testing.T, each []*standIn, expected *appliance.Address) (*severalTokens, error) {
	t.Helper()
	s := &severalTokens{T: t, each: each}
	var places []hsm.TokenSlot
	for _, one := range each {
		places = append(places, hsm.TokenSlot{URI: hsm.URI{Token: fmt.Sprint("token", one.number)}, Open: one.open})
	}
	opened, err := hsm.OpenTokens(t.Context(), places, hsm.TokensOptions{
		Expected: expected, CallTimeout: standInTimeout, Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	})
	if err != nil {
		return nil, err
	}
	s.Tokens = opened
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
		for _, one := range each {
			one.set(func() {
				if !one.closed && one.fault == nil {
					t.Errorf("token %d was not closed", one.number)
				}
			})
		}
	})
	return s, nil
}

func mustOpenStandIns(t *testing.T, n int) *severalTokens {
	t.Helper()
	s, err := openStandIns(t, standIns(n), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantSignedBy signs once, with a deadline of 10 s, and checks which token signed and after how long.
func (s *severalTokens) wantSignedBy(number byte, after time.Duration) {
	s.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	signature, err := s.Sign(ctx, appliance.Digest{})
	if took := time.Since(began); err != nil || signature.V != number || took != after {
		s.Errorf("signed by %d after %s (%v), want by %d after %s", signature.V, took, err, number, after)
	}
}

func (s *severalTokens) wantStates(want ...string) {
	s.Helper()
	for i, standing := range s.Standings() {
		if standing.State != want[i] {
			s.Errorf("token %d: %s (%s), want %s", i+1, standing.State, standing.Reason, want[i])
		}
	}
}

func (s *severalTokens) wantLogged(n int, text string) {
	s.Helper()
	if got := strings.Count(s.log.String(), text); got != n {
		s.Errorf("%q is in the log %d times, want %d:\n%s", text, got, n, s.log.String())
	}
}

var errDevice = errors.New("CKR_DEVICE_ERROR")

const own = time.Millisecond // time of a stand-in's signature

func TestTheFirstTokenSignsWhileItIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 3)
		s.wantSignedBy(1, own)
		s.wantStates(hsm.TokenSigns, hsm.TokenReady, hsm.TokenReady)
		if s.each[1].count()+s.each[2].count() > 0 {
			t.Error("another was asked, too")
		}
	})
}

func TestASignatureThatFailsIsAskedOfTheNextToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 3)
		s.each[0].set(func() { s.each[0].fault = errDevice })
		s.wantSignedBy(2, own)
		s.each[1].set(func() { s.each[1].fault = errDevice })
		s.wantSignedBy(3, own)
		s.wantStates(hsm.TokenFailing, hsm.TokenFailing, hsm.TokenSigns)
		s.each[0].count()
		s.wantSignedBy(3, own)
		if s.each[0].count() > 0 {
			t.Error("a token that is out of use was asked by a client")
		}
		s.wantLogged(2, "HSM token out of use")
	})
}

func TestATokenThatHangsHoldsUpOneEighthOfACallOnceOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		s.each[0].set(func() { s.each[0].hangs = true })
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { s.wantSignedBy(2, standInTimeout/8+own) })
		}
		all.Wait()
		s.wantSignedBy(2, own)
		s.wantStates(hsm.TokenFailing, hsm.TokenSigns)
		s.wantLogged(1, "no signature within 100ms")
	})
}

func TestAHangNeverTakesTheWholeDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 3)
		s.each[0].set(func() { s.each[0].hangs = true })
		s.each[1].set(func() { s.each[1].hangs = true })
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		signature, err := s.Sign(ctx, appliance.Digest{})
		if took := time.Since(began); err != nil || signature.V != 3 || took > 25*time.Millisecond {
			t.Errorf("signed by %d after %s, %v", signature.V, took, err)
		}
	})
}

func TestATokenThatIsSlowButSignsStaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		go s.wantSignedBy(1, own) // answers after the call below has begun
		time.Sleep(own / 2)
		s.each[0].set(func() { s.each[0].hangs = true })
		s.wantSignedBy(2, standInTimeout/8+own)
		s.wantStates(hsm.TokenSigns, hsm.TokenReady)
		time.Sleep(time.Minute) // the call of the first token times out
		status, err := s.Status(t.Context())
		if err != nil || status.Tokens[0].HandedOver != 1 || status.Tokens[1].HandedOver != 0 {
			t.Errorf("handed over %d and %d, %v, want 1 and 0", status.Tokens[0].HandedOver,
				status.Tokens[1].HandedOver, err)
		}
	})
}

func TestTheFirstTokenIsUsedAgainWhenItHasSignedTrialsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		s.each[0].set(func() { s.each[0].fault = errDevice })
		s.wantSignedBy(2, own)
		time.Sleep(time.Minute)
		s.wantSignedBy(2, own)
		s.each[0].set(func() { s.each[0].fault = nil })
		time.Sleep(4 * time.Second) // a trial each second, for 5 s
		s.wantSignedBy(2, own)
		time.Sleep(3 * time.Second)
		s.wantSignedBy(1, own)
		s.wantLogged(1, "HSM token out of use")
		s.wantLogged(1, "HSM token in use again")
	})
}

// A token that repeatedly fails and returns must not fail clients' signatures each time.
func TestATokenThatComesAndGoesIsUsedEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		for round, calm := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
			s.each[0].set(func() { s.each[0].fault = errDevice })
			s.wantSignedBy(2, own)
			s.each[0].set(func() { s.each[0].fault = nil })
			time.Sleep(calm * time.Second)
			s.wantSignedBy(2, own)
			time.Sleep(3 * time.Second)
			s.wantSignedBy(1, own)
			s.wantLogged(round+1, "HSM token in use again")
		}
		time.Sleep(time.Hour)
		s.each[0].set(func() { s.each[0].fault = errDevice })
		s.wantSignedBy(2, own)
		s.each[0].set(func() { s.each[0].fault = nil })
		time.Sleep(8 * time.Second)
		s.wantSignedBy(1, own)
	})
}

func TestWhereNoTokenIsWellTheFirstThatSignsIsUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		for _, one := range s.each {
			one.set(func() { one.fault = errDevice })
		}
		_, err := s.Sign(t.Context(), appliance.Digest{})
		if appliance.CodeOf(err) != appliance.CodeHSMUnavailable || !errors.Is(err, errDevice) {
			t.Errorf("%v", err)
		}
		if err := s.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeHSMUnavailable || s.Usage().Ready {
			t.Errorf("ready: %v", err)
		}
		s.each[1].set(func() { s.each[1].fault = nil })
		s.wantSignedBy(2, own)
		s.wantStates(hsm.TokenFailing, hsm.TokenSigns)
		if err := s.Ready(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestAnIdleTokenIsLookedAtBeforeItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpenStandIns(t, 2)
		time.Sleep(time.Minute)
		if n := s.each[1].count(); n < 3 || n > 5 {
			t.Errorf("%d trials in a minute, want one each 15 s", n)
		}
		s.each[1].set(func() { s.each[1].fault = errDevice })
		time.Sleep(17 * time.Second)
		s.wantStates(hsm.TokenSigns, hsm.TokenFailing)
	})
}

func TestATokenThatIsAwayAtTheStartIsUsedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		each := standIns(2)
		each[0].fault = errDevice
		s, err := openStandIns(t, each, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.wantSignedBy(2, own)
		s.wantStates(hsm.TokenFailing, hsm.TokenSigns)
		time.Sleep(time.Hour)
		if n := each[0].openings(); n < 50 || n > 140 {
			t.Errorf("opened %d times in an hour, want about one each minute", n)
		}
		each[0].set(func() { each[0].fault = nil })
		time.Sleep(time.Minute + 10*time.Second)
		s.wantSignedBy(1, own)
		s.wantLogged(1, "could not be opened")
	})
}

func TestATokenThatRefusesThePINIsNotOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		each := standIns(2)
		each[0].fault = hsm.ErrPIN
		s, err := openStandIns(t, each, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		s.wantSignedBy(2, own)
		s.wantStates(hsm.TokenRefused, hsm.TokenSigns)
		s.wantLogged(1, "level=ERROR")
		if n := each[0].openings(); n != 1 {
			t.Errorf("opened %d times", n)
		}
	})
}

func TestTokensOfDifferentKeys(t *testing.T) {
	one, other := appliance.Address{1}, appliance.Address{2}
	for name, test := range map[string]struct {
		keys     []appliance.Address
		expected *appliance.Address
		states   []string // nil if the start fails
		err      string
	}{
		"the second has another, the key is pinned": {
			[]appliance.Address{one, other}, &one, []string{hsm.TokenSigns, hsm.TokenRefused}, "",
		},
		"the first has another, the key is pinned": {
			[]appliance.Address{one, other}, &other, []string{hsm.TokenRefused, hsm.TokenSigns}, "",
		},
		"nothing says which is meant": {[]appliance.Address{one, other}, nil, nil, "hsm.address"},
		"neither has the pinned one":  {[]appliance.Address{one, one}, &other, nil, other.String()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				each := standIns(len(test.keys))
				for i, key := range test.keys {
					each[i].address = key
				}
				s, err := openStandIns(t, each, test.expected)
				if test.states == nil {
					if !errors.Is(err, hsm.ErrOtherKey) || !strings.Contains(err.Error(), test.err) {
						t.Errorf("%v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour) // opening is retried throughout, and logged once
				s.wantStates(test.states...)
				s.wantLogged(1, "HSM token refused")
				for i, state := range test.states {
					var closed bool
					each[i].set(func() { closed = each[i].closed })
					if refused := state == hsm.TokenRefused; refused != closed || refused && each[i].count() > 0 {
						t.Errorf("token %d: closed %t, or asked", i+1, closed)
					}
				}
			})
		})
	}
}

func TestWithoutAnyTokenTheStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		each := standIns(2)
		each[0].fault, each[1].fault = errDevice, hsm.ErrPIN
		if _, err := openStandIns(t, each, nil); !errors.Is(err, errDevice) || !errors.Is(err, hsm.ErrPIN) ||
			!strings.Contains(err.Error(), "token 2") {
			t.Errorf("%v", err)
		}
	})
}

// The cost of choosing among tokens, per signature.
func BenchmarkTokens(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var places []hsm.TokenSlot
			for _, one := range standIns(n) {
				one.instant = true
				places = append(places, hsm.TokenSlot{Open: one.open})
			}
			tokens, err := hsm.OpenTokens(b.Context(), places, hsm.TokensOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer tokens.Close()
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			for b.Loop() {
				if _, err := tokens.Sign(ctx, appliance.Digest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
