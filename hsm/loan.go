package hsm

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// Loan is a session of the pool that is lent to a loop in C, which signs with it without coming back to Go for each signature.
// While the loop waits for something to sign, the session can be taken back.
type Loan struct {
	words      loanWords
	one        *session
	generation uint64
}

// loanWords are what C sees of a Loan: struct loan in hsm/worker/loop.h.
type loanWords struct {
	state          atomic.Int32 // one of those below
	wanted         atomic.Int32 // 1: somebody waits for a session, and the loop shall end as soon as it is outside a call
	signInit, sign uintptr
	session, key   uint

	// Of a call that failed:
	signing uint // 1: it was C_Sign, 0: C_SignInit
	rv      uint
	length  uint // of the signature
}

// LoanSize is the size of what Words returns.
const LoanSize = unsafe.Sizeof(loanWords{})

const (
	loanFree  int32 = iota // the loop has no use for the session now
	loanInUse              // it is inside a call, or one failed
	loanEnded              // the session is not the loop's any more
)

// Words returns what C gets of the loan.
func (l *Loan) Words() unsafe.Pointer { return unsafe.Pointer(&l.words) }

// failure returns the error of the call that failed.
func (l *Loan) failure() error {
	switch w := &l.words; {
	case w.rv == pkcs11.CKR_OK:
		return wrongLength(int(w.length))
	case w.signing == 1:
		return failed("C_Sign", pkcs11.Error(w.rv))
	default:
		return failed("C_SignInit", pkcs11.Error(w.rv))
	}
}

// Lend takes a session from the pool for a loop in C, for Return or GoOn to give back. It returns nil where there is none to lend:
// none that is open is free, the token is being repaired, or the module is not to be called directly. SignUnchecked then does
// what there is to do.
func (s *Signer) Lend() *Loan {
	for s.direct != (direct{}) && s.waiting.Load() == 0 {
		var one *session
		select {
		case one = <-s.idle:
		default:
			return nil
		}
		if s.fresh(one) {
			return s.lend(one)
		}
		if _, err := withSession(s, one, s.refresh); err != nil {
			return nil
		}
	}
	return nil
}

// fresh reports whether the session was seen to be open since the token was last repaired.
func (s *Signer) fresh(one *session) bool { return one.open && one.generation == s.currentGeneration() }

// refresh asks the token for the session, so that no loop waits with one that is gone.
func (s *Signer) refresh(one *session) (struct{}, error) {
	generation := s.currentGeneration()
	if err := s.openSession(one, s.current().slot); err != nil {
		return struct{}{}, err
	}
	if _, err := s.module.GetSessionInfo(one.handle); err != nil {
		return struct{}{}, failed("C_GetSessionInfo", err)
	}
	one.generation = generation
	return struct{}{}, nil
}

func (s *Signer) lend(one *session) *Loan {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one.slot != s.handles.slot || s.attempt != nil || s.refusal != nil || s.closing.Err() != nil {
		s.release(one)
		return nil
	}
	l := &Loan{one: one, generation: s.generation}
	l.words.signInit, l.words.sign = s.direct.signInit, s.direct.sign
	l.words.session, l.words.key = uint(one.handle), uint(s.handles.key)
	if s.waiting.Load() > 0 { // who waits may have looked for loans before this one is there
		l.words.wanted.Store(1)
	}
	s.loans = append(s.loans, l)
	return l
}

// Return ends a loan whose loop has ended without a failure.
func (s *Signer) Return(l *Loan) {
	if s.endLoan(l, loanFree) {
		s.release(l.one)
	}
}

// endLoan reports whether the session is the caller's from now on: it may have been taken back, if the loan was free.
func (s *Signer) endLoan(l *Loan, state int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loans = slices.DeleteFunc(s.loans, func(other *Loan) bool { return other == l })
	return l.words.state.CompareAndSwap(state, loanEnded)
}

// GoOn ends a loan with which a call failed, and makes that signature all the same: it repairs as SignUnchecked does.
func (s *Signer) GoOn(ctx context.Context, l *Loan, d appliance.Digest) (rs [64]byte, err error) {
	if !s.endLoan(l, loanInUse) {
		return rs, fmt.Errorf("the loan of a session has not failed: state %d", l.words.state.Load()) // never
	}
	failure := l.failure()
	rs, err = withSession(s, l.one, func(one *session) ([64]byte, error) {
		if first := failure; first != nil {
			failure = nil
			return rs, first
		}
		return s.signOn(one, d)
	})
	if err == nil {
		return rs, nil
	}
	err = s.persistAfter(ctx, err, l.generation, func(ctx context.Context) error {
		rs, err = use(ctx, s, func(one *session) ([64]byte, error) { return s.signOn(one, d) })
		return err
	})
	return rs, err
}

// recall takes back a session that is lent and not inside a call, nil if there is none. The others come back after their calls.
func (s *Signer) recall() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, l := range s.loans {
		l.words.wanted.Store(1)
		if l.words.state.CompareAndSwap(loanFree, loanEnded) {
			s.loans = slices.Delete(s.loans, i, i+1)
			return l.one
		}
	}
	return nil
}

// recallAll has all that is lent come back, as it knows handles of which the token may have other ones now.
func (s *Signer) recallAll() {
	for one := s.recall(); one != nil; one = s.recall() {
		s.release(one)
	}
}

// unused returns how many sessions are not inside a call.
func (s *Signer) unused() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle)
	for _, l := range s.loans {
		if l.words.state.Load() == loanFree {
			n++
		}
	}
	return n
}
