package hsm

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/miekg/pkcs11"
)

// session belongs to the goroutine that took it from the pool. It is opened by its first use.
type session struct {
	handle pkcs11.SessionHandle
	slot   uint
	open   bool
}

func (s *Signer) openPool() error {
	first := &session{}
	t, err := s.connect(first, stepKey)
	if err != nil {
		return err
	}
	sessions := []*session{first}
	for range poolSize(s.options, t.info.MaxSessionCount) - 1 {
		next := &session{}
		err := s.openSession(next, t.slot)
		if rvOf(err) == pkcs11.CKR_SESSION_COUNT {
			s.options.Logger.Warn("the token has no more sessions to give", "sessions", len(sessions), "wanted", poolSize(s.options, t.info.MaxSessionCount))
			break
		}
		if err != nil {
			return err
		}
		sessions = append(sessions, next)
	}
	s.idle = make(chan *session, len(sessions))
	for _, one := range sessions {
		s.idle <- one
	}
	return nil
}

func poolSize(o Options, tokenMaximum uint) int {
	n := o.Sessions
	if n <= 0 {
		n = max(4, 2*runtime.GOMAXPROCS(0))
	}
	if tokenMaximum != pkcs11.CK_EFFECTIVELY_INFINITE && tokenMaximum != pkcs11.CK_UNAVAILABLE_INFORMATION && uint(n) > tokenMaximum {
		o.Logger.Warn("fewer sessions than asked for: the token's maximum", "asked", n, "maximum", tokenMaximum)
		n = int(tokenMaximum)
	}
	return n
}

// take takes a session from the pool. It waits until one is free, ctx ends, or the Signer is closed.
func (s *Signer) take(ctx context.Context) (*session, error) {
	if s.closing.Err() != nil {
		return nil, unavailable(ErrClosed, 0)
	}
	select {
	case one := <-s.idle:
		return one, nil
	case <-ctx.Done():
		return nil, timedOut("a free session", ctx.Err())
	case <-s.closing.Done():
		return nil, unavailable(ErrClosed, 0)
	}
}

// drain takes all sessions from the pool, so that no call is inside the module. It fails when ctx ends or a call has not
// returned within limits.drain.
func (s *Signer) drain(ctx context.Context) ([]*session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.limits.drain)
	defer cancel()
	var all []*session
	for len(all) < cap(s.idle) {
		select {
		case one := <-s.idle:
			all = append(all, one)
		case <-ctx.Done():
			s.release(all...)
			return nil, fmt.Errorf("%d of %d sessions are still inside a call", cap(s.idle)-len(all), cap(s.idle))
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
	one, err := s.take(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return await(ctx, func() (T, error) {
		defer s.release(one)
		result, err := f(one)
		if err != nil {
			s.discard(one, err)
		}
		return result, err
	}, nil)
}

// await calls f, which may hang inside the module, and returns when ctx ends even if f does not. If abandoned is not nil,
// it gets the value that f returns after that.
func await[T any](ctx context.Context, f func() (T, error), abandoned func(T)) (T, error) {
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
	return none, timedOut("the PKCS#11 module to return", ctx.Err())
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

// discard closes a session after an error that its next use would get again.
func (s *Signer) discard(one *session, err error) {
	if !one.open || keepsSession(err) {
		return
	}
	one.open = false
	if !losesSession(err) {
		_ = s.module.CloseSession(one.handle)
	}
}

// keepsSession reports whether the session can still be used after the error.
func keepsSession(err error) bool {
	switch rvOf(err) {
	case pkcs11.CKR_OK, pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID:
		return true
	}
	return errors.Is(err, ErrPIN)
}

// losesSession reports whether the token has closed the session itself. To close it again could close another session
// that got the same number since.
func losesSession(err error) bool {
	switch rvOf(err) {
	case pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_DEVICE_REMOVED,
		pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:
		return true
	}
	return false
}
