package hsm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// step is a repair of a fault, from the cheapest to the most expensive. Each step includes those before it.
type step int

const (
	stepNone    step = iota // no step is known to help
	stepSession             // open another session
	stepKey                 // find the token and the key again; log in if the token has logged us out
	stepLogin               // log in, even if the token reports that we are logged in
	stepModule              // load the module again, in another process; a Signer gives up instead
)

func (s step) String() string {
	return [...]string{"none", "open a new session", "find the key again", "log in again", "load the module again"}[s]
}

// stepFor returns the cheapest step that can repair the fault (PKCS#11 v2.40 base, section 5.1).
func stepFor(err error) step {
	if errors.Is(err, ErrPIN) {
		return stepNone
	}
	if errors.Is(err, ErrWrongKey) {
		return stepKey // the handle may now refer to a different key
	}
	switch rvOf(err) {
	case pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_SESSION_COUNT,
		pkcs11.CKR_OPERATION_ACTIVE, pkcs11.CKR_OPERATION_NOT_INITIALIZED, pkcs11.CKR_FUNCTION_CANCELED,
		pkcs11.CKR_CANCEL,
		pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_HOST_MEMORY, pkcs11.CKR_DEVICE_MEMORY:
		return stepSession
	case pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID, pkcs11.CKR_SLOT_ID_INVALID,
		pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED,
		pkcs11.CKR_DEVICE_ERROR:
		return stepKey
	case pkcs11.CKR_USER_NOT_LOGGED_IN:
		return stepLogin
	case pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:
		return stepModule
	}
	if rvOf(err) >= pkcs11.CKR_VENDOR_DEFINED {
		return stepSession // most network HSMs report a lost connection with one of these
	}
	return stepNone
}

// nextStep returns the next step for a call that failed after the steps taken: the cheapest that can repair the fault,
// and a more expensive one each time. If C_SignInit returns a code without a known repair, the key is found again once,
// because tokens report a stale key handle with many codes.
func nextStep(err error, taken step) step {
	needed := stepFor(err)
	if call, ok := errors.AsType[*callError](err); ok && needed == stepNone && taken < stepKey &&
		call.function == "C_SignInit" {
		needed = stepKey
	}
	if needed == stepNone || errors.Is(err, ErrWrongKey) && taken >= stepKey {
		return stepNone
	}
	return max(needed, min(taken+1, stepModule))
}

// attempt is one attempt at a repair. Callers that need the token wait until it is done.
type attempt struct {
	fault error         // the fault to repair: the error of a call, or of the previous attempt
	done  chan struct{} // closed at the end
	err   error         // the result; valid once done is closed
}

// mostTries bounds how often one call is repeated: once for every step, and some more for simultaneous faults.
const mostTries = 12

// persist repeats call until it succeeds, ctx ends, or no step can repair the fault. Between two tries it takes the
// step for the fault, and a more expensive one each time the call fails again.
func (s *Signer) persist(ctx context.Context, call func(context.Context) error) error {
	taken := stepNone
	for try := 1; ; {
		if err := s.healthy(ctx); err != nil {
			return err
		}
		generation := s.currentGeneration()
		err := call(ctx)
		if err == nil {
			return nil
		}
		if _, final := errors.AsType[*appliance.Error](err); final {
			return err // ctx ended, or the Signer is closed
		}
		s.note(err)
		if errors.Is(err, errRetired) {
			continue // one session fewer is left, so the loop ends
		}
		next := nextStep(err, taken)
		if next == stepNone || try == mostTries {
			return Unavailable(err, time.Second)
		}
		taken = next
		if err := s.repairFor(ctx, taken, generation, err); err != nil {
			return err
		}
		if try > 1 && !sleep(ctx, s.closing, jitter(s.options.limits.pause<<min(try-2, 5))) {
			return TimedOut("a retry after a fault", errors.Join(ctx.Err(), err))
		}
		try++
	}
}

// bounded gives a context without a deadline the deadline of limits.call.
func (s *Signer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.options.limits.call)
}

// note records the fault for Status.
func (s *Signer) note(err error) {
	if errors.Is(err, ErrWrongKey) {
		s.wrong.Add(1)
		s.options.Logger.Error("the token returned a wrong signature; it was withheld", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError, s.lastFault = err, time.Now()
}

func (s *Signer) currentGeneration() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// fault returns the reason why Sign would wait or fail now, or nil.
func (s *Signer) fault() error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.refusal != nil:
		return s.refusal
	case s.attempt != nil:
		return s.attempt.fault
	}
	return nil
}

// healthy waits until no repair is running. It does not wait for faults that need an operator: a refused PIN, or a
// different key in the place of ours.
func (s *Signer) healthy(ctx context.Context) error {
	for {
		s.mu.Lock()
		running, refusal := s.attempt, s.refusal
		s.mu.Unlock()
		if refusal != nil {
			return Unavailable(refusal, 0)
		}
		if running == nil {
			return nil
		}
		select {
		case <-running.done:
			if errors.Is(running.err, ErrWrongKey) {
				return Unavailable(running.err, time.Minute)
			}
		case <-ctx.Done():
			return TimedOut("the HSM to be repaired", errors.Join(ctx.Err(), running.fault))
		case <-s.closing.Done():
			return Unavailable(ErrClosed, 0)
		}
	}
}

// repairFor starts a repair with that step and waits for it, unless another repair has ended since the failed call
// began. stepSession needs no repair, since discard has closed the session of the call. The other steps concern all
// callers, so one goroutine takes them, and continues after the ctx of its caller has ended.
func (s *Signer) repairFor(ctx context.Context, needed step, generation uint64, fault error) error {
	if needed == stepSession {
		s.repaired.Add(1)
		return nil
	}
	s.mu.Lock()
	if s.generation == generation && s.attempt == nil && s.refusal == nil && s.closing.Err() == nil {
		s.attempt = &attempt{fault: fault, done: make(chan struct{})}
		s.repairs.Go(func() { s.repair(needed, fault) })
	}
	s.mu.Unlock()
	return s.healthy(ctx)
}

// mostRepairs bounds how often a repair is tried before the module counts as lost. These attempts, within half a
// second, suffice for a token that restarts. Any other fault needs the module reloaded, and waiting longer would not
// help.
const mostRepairs = 4

// repair takes one step after another, starting with next. It ends when one succeeds, the PIN is refused, only
// reloading the module is left, or the Signer is closed.
func (s *Signer) repair(next step, fault error) {
	log := s.options.Logger
	for try := 0; ; try++ {
		if next == stepModule || try == mostRepairs {
			err := fmt.Errorf("%w: %w", ErrLost, fault)
			log.Warn("HSM fault that needs another worker process", "err", fault.Error())
			s.endAttempt(err)
			return
		}
		log.Warn("HSM fault", "err", fault.Error(), "repair", next.String(), "try", try+1)
		began := time.Now()
		err := s.reconnect(next)
		if s.endAttempt(err) {
			if err == nil {
				log.Info("HSM repaired", "repair", next.String(),
					"took", time.Since(began).Round(time.Millisecond).String())
			} else {
				log.Error("HSM repair stopped until restart", "err", err.Error())
			}
			return
		}
		fault, next = err, max(stepLogin, stepFor(err))
		if call, ok := errors.AsType[*callError](err); ok && try > 0 && call.function == "C_GetSlotList" {
			next = stepModule // a module that cannot list its slots has lost more than one token
		}
		if !sleep(s.closing, s.closing, jitter(s.options.limits.pause<<try)) {
			s.endAttempt(ErrClosed)
			return
		}
	}
}

// endAttempt reports the result of the attempt to waiting callers. Unless it was the last, it begins the next attempt.
func (s *Signer) endAttempt(err error) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.attempt
	ended.err = err
	switch {
	case err == nil:
		s.attempt = nil
		s.generation++
		s.repaired.Add(1)
	case errors.Is(err, ErrPIN), errors.Is(err, ErrClosed), errors.Is(err, ErrLost):
		s.attempt, s.refusal = nil, err
	default:
		s.attempt = &attempt{fault: err, done: make(chan struct{})}
	}
	if err != nil {
		s.lastError, s.lastFault = err, time.Now()
	}
	close(ended.done)
	return s.attempt == nil
}

// reconnect takes the step with a session of the pool.
func (s *Signer) reconnect(next step) error {
	limit, cancel := context.WithTimeout(s.closing, s.options.limits.drain)
	defer cancel()
	for {
		one, err := s.acquire(limit)
		if err != nil {
			return err
		}
		_, err = withSession(s, one, func(one *session) (token, error) { return s.connect(one, next) })
		if !errors.Is(err, errRetired) {
			return err
		}
	}
}

// connect finds the token, logs in if necessary, and finds the key. The first time, it reads the public key and checks
// it with a trial signature. Later it checks with a trial signature that the key is still the same.
func (s *Signer) connect(one *session, reason step) (t token, err error) {
	u := s.options.URI
	if t, err = findToken(s.module, u); err != nil {
		return t, err
	}
	k, err := s.connectKey(one, t, reason)
	if err != nil {
		return t, fmt.Errorf("open token %q: %w", t.info.Label, err)
	}
	snapshot := describe(s.module, t, k)
	s.mu.Lock()
	s.handles = handles{t.slot, k.handle}
	s.snapshot = snapshot
	s.mu.Unlock()
	return t, nil
}

func (s *Signer) connectKey(one *session, t token, reason step) (privateKey, error) {
	if err := s.openSession(one, t.slot); err != nil {
		return privateKey{}, err
	}
	in, err := loggedIn(s.module, one.handle)
	if err != nil {
		return privateKey{}, err
	}
	// As rarely as possible: a login writes to the storage of some tokens, and to the audit log of most.
	if !in || reason == stepLogin {
		if err := login(s.module, one.handle, t, s.options); err != nil {
			return privateKey{}, err
		}
	}
	k, err := findKey(s.module, one.handle, s.options)
	if err != nil {
		return k, err
	}
	if err := k.check(s.options.AllowExtractable); err != nil {
		return k, err
	}
	if s.publicKey != nil {
		return k, tryKey(s.module, one.handle, k, s.publicKey)
	}
	if s.publicKey, err = publicKeyOf(s.module, one.handle, k); err != nil || k.algorithm == Ed25519 {
		return k, err
	}
	s.address, err = appliance.AddressOf(s.publicKey)
	return k, err
}

// jitter returns a random duration between d/2 and d, so that many signers do not return to an HSM at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep waits for d. It returns false if either context ends first.
func sleep(ctx, closing context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-closing.Done():
		return false
	}
}
