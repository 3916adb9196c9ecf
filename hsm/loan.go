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

// Loan is a lease of a pool session to a loop in C, which signs with it without returning to Go for each signature.
// While the loop waits for a request, the Signer can revoke the lease.
type Loan struct {
	words      loanWords
	one        *session
	generation uint64
}

// loanWords is the part of a Loan that C sees: struct loan in hsm/worker/loop.h.
type loanWords struct {
	state atomic.Int32 // one of the constants below
	// 1: a caller waits for a session, and the loop must end as soon as it is outside a call
	wanted         atomic.Int32
	signInit, sign uintptr
	session, key   uint

	// Of a failed call:
	signing uint // 1: C_Sign failed, 0: C_SignInit failed
	rv      uint
	length  uint // of the signature
}

// LoanSize is the size of the words that Words returns, in bytes.
const LoanSize = unsafe.Sizeof(loanWords{})

const (
	loanFree  int32 = iota // the loop does not need the session now
	loanInUse              // the loop is inside a call, or a call failed
	loanEnded              // the loop no longer holds the session
)

// Words returns the words of the lease for C.
func (l *Loan) Words() unsafe.Pointer { return unsafe.Pointer(&l.words) }

// failure returns the error of the failed call.
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

// Lend leases a session from the pool to a loop in C. Return or GoOn ends the lease. Lend returns nil if no session is
// free and open, a caller waits for a session, the token is being repaired, or the module cannot be called directly.
// SignUnchecked then serves the request.
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

// fresh reports whether the session was known to be open since the last repair of the token.
func (s *Signer) fresh(one *session) bool { return one.open && one.generation == s.currentGeneration() }

// refresh checks the session with the token, so that no loop waits with a session that the token has closed.
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
	if s.waiting.Load() > 0 { // a waiting caller may have searched the leases before this one was added
		l.words.wanted.Store(1)
	}
	s.loans = append(s.loans, l)
	return l
}

// Return ends a lease after its loop has ended without a failure.
func (s *Signer) Return(l *Loan) {
	if s.endLoan(l, loanFree) {
		s.release(l.one)
	}
}

// endLoan ends a lease and reports whether the caller now owns the session. It does not if the lease was revoked while
// it was free.
func (s *Signer) endLoan(l *Loan, state int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loans = slices.DeleteFunc(s.loans, func(other *Loan) bool { return other == l })
	return l.words.state.CompareAndSwap(state, loanEnded)
}

// GoOn ends a lease with a failed call and repeats the signature. It repairs as SignUnchecked does.
func (s *Signer) GoOn(ctx context.Context, l *Loan, d appliance.Digest) (rs [64]byte, err error) {
	if !s.endLoan(l, loanInUse) {
		return rs, fmt.Errorf("the lease of a session has not failed: state %d", l.words.state.Load()) // cannot happen
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

// recall revokes a lease outside a call and returns its session, or nil. Leases inside a call end after the call.
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

// recallAll revokes all leases, because the token's handles may have changed.
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
