package hsm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/miekg/pkcs11"
)

// The sizes of a pool without Options.Sessions.
const (
	fewSessions  = 2   // initial size: one session signs while the answer of the other is on its way
	mostSessions = 128 // no HSM is known to benefit from more
)

// session belongs to the goroutine that took it from the pool. Its first use opens it.
type session struct {
	handle pkcs11.SessionHandle
	slot   uint
	open   bool
}

// openPool opens all sessions. Sessions that the token refuses to open are retired and retried later.
func (s *Signer) openPool() error {
	first := &session{}
	t, err := s.connect(first, stepKey)
	if err != nil {
		return err
	}
	size, most := poolSize(s.options, t.info.MaxSessionCount)
	s.idle = make(chan *session, most)
	s.idle <- first
	s.size.Store(int32(size))
	for range size - 1 {
		next := &session{}
		err := s.openSession(next, t.slot)
		if rvOf(err) == pkcs11.CKR_SESSION_COUNT {
			s.retire(next)
			continue
		}
		if err != nil {
			return err
		}
		s.idle <- next
	}
	if given := s.sessions(); given < size {
		s.options.Logger.Warn("the token opens fewer sessions than requested", "sessions", given, "wanted", size)
	}
	return nil
}

// poolSize returns the initial and the largest size of the pool. With Options.Sessions both are this number. Without
// it, the pool starts small and may grow as far as the token allows.
func poolSize(o Options, tokenMaximum uint) (size, most int) {
	size, most = o.Sessions, o.Sessions
	if o.Sessions <= 0 {
		size, most = fewSessions, mostSessions
	}
	if tokenMaximum == pkcs11.CK_EFFECTIVELY_INFINITE || tokenMaximum == pkcs11.CK_UNAVAILABLE_INFORMATION ||
		uint(most) <= tokenMaximum {
		return size, most
	}
	if o.Sessions > 0 {
		o.Logger.Warn("fewer sessions than configured: the token's maximum", "asked", size, "maximum", tokenMaximum)
	}
	return min(size, int(tokenMaximum)), int(tokenMaximum)
}

// Resize opens or closes sessions, one after the other, until there are n: at least one, at most Usage.MostSessions,
// and as many as the token gives. It returns the number of sessions. Without Options.Sessions, callers use it to adapt
// the pool.
func (s *Signer) Resize(ctx context.Context, n int) (int, error) {
	s.mu.Lock()
	if s.closing.Err() != nil || s.refusal != nil {
		s.mu.Unlock()
		return s.sessions(), Unavailable(ErrClosed, 0)
	}
	s.repairs.Add(1) // so that Close waits for it
	slot := s.handles.slot
	s.mu.Unlock()
	defer s.repairs.Done()
	for int(s.size.Load()) < min(n, cap(s.idle)) {
		one := &session{}
		if err := s.openSession(one, slot); err != nil {
			return s.sessions(), err
		}
		s.size.Add(1)
		s.release(one)
	}
	for s.sessions() > max(n, 1) {
		one, err := s.acquire(ctx)
		if err != nil {
			return s.sessions(), err
		}
		s.size.Add(-1)
		if one.open {
			_ = s.module.CloseSession(one.handle) // an error means that the token has closed it
		}
	}
	return s.sessions(), nil
}

// acquire takes a session from the pool. It waits until one is free, ctx ends, or the Signer is closed.
func (s *Signer) acquire(ctx context.Context) (*session, error) {
	if s.closing.Err() != nil {
		return nil, Unavailable(ErrClosed, 0)
	}
	select {
	case one := <-s.idle:
		return one, nil
	case <-ctx.Done():
		return nil, TimedOut("a free session", ctx.Err())
	case <-s.closing.Done():
		return nil, Unavailable(ErrClosed, 0)
	}
}

// drain takes all sessions from the pool, so that no call is inside the module. It fails if ctx ends or a call has not
// returned within limits.drain.
func (s *Signer) drain(ctx context.Context) ([]*session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.limits.drain)
	defer cancel()
	var all []*session
	for len(all) < s.sessions() { // retired sessions are not open
		select {
		case one := <-s.idle:
			all = append(all, one)
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d sessions are still inside a call", s.sessions()-len(all), s.size.Load())
		}
	}
	return all, nil
}

func (s *Signer) release(sessions ...*session) {
	for _, one := range sessions {
		s.idle <- one
	}
}

// use calls f with a session from the pool.
func use[T any](ctx context.Context, s *Signer, f func(*session) (T, error)) (T, error) {
	one, err := s.acquire(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return await(ctx, func() (T, error) { return withSession(s, one, f) }, nil)
}

// withSession calls f with the session, and returns the session to the pool. If the token has closed the session in the
// meantime, withSession reopens it and calls f again. After a restart of the token this concerns every session of the
// pool.
func withSession[T any](s *Signer, one *session, f func(*session) (T, error)) (T, error) {
	old := one.open
	result, err := f(one)
	if err != nil {
		s.discard(one, err)
	}
	if rv := rvOf(err); old && (rv == pkcs11.CKR_SESSION_HANDLE_INVALID || rv == pkcs11.CKR_SESSION_CLOSED) {
		s.note(err)
		s.repaired.Add(1)
		if result, err = f(one); err != nil {
			s.discard(one, err)
		}
	}
	if rvOf(err) == pkcs11.CKR_SESSION_COUNT && s.retire(one) {
		return result, fmt.Errorf("%w: %w", errRetired, err)
	}
	s.release(one)
	return result, err
}

// errRetired is wrapped if the token refused to open a session while others are left.
var errRetired = errors.New("the token opens fewer sessions than before")

// retire keeps a session out of the pool until the token opens it. It refuses to retire the last one.
func (s *Signer) retire(one *session) bool {
	for {
		n := s.retired.Load()
		if n >= s.size.Load()-1 {
			return false
		}
		if s.retired.CompareAndSwap(n, n+1) {
			break
		}
	}
	s.tryLater(one)
	return true
}

// tryLater reopens a retired session after a while, and then returns it to the pool.
func (s *Signer) tryLater(one *session) {
	time.AfterFunc(jitter(s.options.limits.retire), func() {
		s.mu.Lock()
		if s.closing.Err() != nil || s.refusal != nil {
			s.mu.Unlock()
			return
		}
		s.repairs.Add(1) // so that Close waits for it
		slot := s.handles.slot
		s.mu.Unlock()
		defer s.repairs.Done()
		if rvOf(s.openSession(one, slot)) == pkcs11.CKR_SESSION_COUNT {
			s.tryLater(one)
			return
		}
		s.retired.Add(-1)
		s.release(one)
	})
}

// sessions returns how many signatures can be made concurrently now.
func (s *Signer) sessions() int { return int(s.size.Load() - s.retired.Load()) }

// await calls f, which may hang inside the module. It returns when ctx ends even if f does not. If abandoned is not
// nil, it gets the value that f returns afterwards.
func await[T any](ctx context.Context, f func() (T, error), abandoned func(T)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := f()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
	}
	if abandoned != nil {
		go func() {
			if o := <-done; o.err == nil {
				abandoned(o.value)
			}
		}()
	}
	var none T
	return none, TimedOut("the PKCS#11 module to return", ctx.Err())
}

// openSession opens the session, unless it is open in that slot. Sessions are read-only, which is enough to sign.
func (s *Signer) openSession(one *session, slot uint) error {
	if one.open && one.slot == slot {
		return nil
	}
	h, err := s.module.OpenSession(slot, pkcs11.CKF_SERIAL_SESSION)
	if err != nil {
		return failed("C_OpenSession", err)
	}
	*one = session{handle: h, slot: slot, open: true}
	return nil
}

// discard closes a session after an error that would recur on its next use.
func (s *Signer) discard(one *session, err error) {
	if !one.open || keepsSession(err) {
		return
	}
	one.open = false
	if !losesSession(err) {
		_ = s.module.CloseSession(one.handle)
	}
}

// keepsSession reports whether the session is usable after the error.
func keepsSession(err error) bool {
	switch rvOf(err) {
	case pkcs11.CKR_OK, pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID:
		return true
	}
	return errors.Is(err, ErrPIN)
}

// losesSession reports whether the token has closed the session itself. Closing it again could close a different
// session that has since got the same handle.
func losesSession(err error) bool {
	switch rvOf(err) {
	case pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_DEVICE_REMOVED,
		pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:
		return true
	}
	return false
}
