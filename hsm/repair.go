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

// step is what mends a fault, from the cheapest to the dearest. Each step does what the ones before it do.
type step int

const (
	stepNone    step = iota // nothing we know of
	stepSession             // open another session
	stepKey                 // find token and key again, and log in where the token has logged us out
	stepLogin               // log in, whatever the token says of it
	stepModule              // C_Finalize and C_Initialize
)

func (s step) String() string {
	return [...]string{"none", "open a new session", "find the key again", "log in again", "initialise the module again"}[s]
}

// stepFor returns the cheapest step that can mend the error (PKCS#11 v2.40 base, section 5.1).
func stepFor(err error) step {
	if errors.Is(err, ErrPIN) {
		return stepNone
	}
	if errors.Is(err, ErrWrongKey) {
		return stepKey // the handle may by now be another key's
	}
	switch rvOf(err) {
	case pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_SESSION_COUNT,
		pkcs11.CKR_OPERATION_ACTIVE, pkcs11.CKR_OPERATION_NOT_INITIALIZED, pkcs11.CKR_FUNCTION_CANCELED, pkcs11.CKR_CANCEL,
		pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_FUNCTION_FAILED, pkcs11.CKR_HOST_MEMORY, pkcs11.CKR_DEVICE_MEMORY:
		return stepSession
	case pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID, pkcs11.CKR_SLOT_ID_INVALID,
		pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED, pkcs11.CKR_DEVICE_ERROR:
		return stepKey
	case pkcs11.CKR_USER_NOT_LOGGED_IN:
		return stepLogin
	case pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:
		return stepModule
	}
	if rvOf(err) >= pkcs11.CKR_VENDOR_DEFINED {
		return stepSession // "connection lost" is one of these on most network HSMs
	}
	return stepNone
}

// round is one try of a repair. Whoever needs the token waits for its end.
type round struct {
	fault error         // why there is a repair: what the call met, or what the round before met
	done  chan struct{} // closed at the end of the round
	err   error         // how it ended; read after done
}

// mostTries bounds how often one call is repeated: every step once and some for faults that come together.
const mostTries = 12

// persist repeats call until it succeeds, ctx ends, or nothing can mend its error. Between the tries it takes
// the step that mends the error, and a dearer one where the same call fails again.
func (s *Signer) persist(ctx context.Context, call func(context.Context) error) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.options.limits.call)
		defer cancel()
	}
	taken := stepNone
	for try := 1; ; try++ {
		if err := s.healthy(ctx); err != nil {
			return err
		}
		generation := s.repaired()
		err := call(ctx)
		if err == nil {
			return nil
		}
		if _, final := errors.AsType[*appliance.Error](err); final {
			return err // ctx ended, or closed
		}
		s.note(err)
		needed := stepFor(err)
		again := errors.Is(err, ErrWrongKey) && taken >= stepKey
		if needed == stepNone || again || try == mostTries {
			return unavailable(err, time.Second)
		}
		taken = max(needed, min(taken+1, stepModule))
		if err := s.mend(ctx, taken, generation, err); err != nil {
			return err
		}
		if try > 1 && !sleep(ctx, s.closing, jitter(s.options.limits.pause<<min(try-2, 5))) {
			return timedOut("another try after a fault", errors.Join(ctx.Err(), err))
		}
	}
}

// note keeps the fault for Status.
func (s *Signer) note(err error) {
	if errors.Is(err, ErrWrongKey) {
		s.wrong.Add(1)
		s.options.Logger.Error("the token returned a wrong signature; it was withheld", "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError, s.lastFault = err, time.Now()
}

func (s *Signer) repaired() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// fault returns why Sign would have to wait or fail, or nil.
func (s *Signer) fault() error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.refusal != nil:
		return s.refusal
	case s.round != nil:
		return s.round.fault
	}
	return nil
}

// healthy waits until no repair is under way. It does not wait out what only a person can mend: a refused PIN, or
// another key in the place of ours.
func (s *Signer) healthy(ctx context.Context) error {
	for {
		s.mu.Lock()
		r, refusal := s.round, s.refusal
		s.mu.Unlock()
		if refusal != nil {
			return unavailable(refusal, 0)
		}
		if r == nil {
			return nil
		}
		select {
		case <-r.done:
			if errors.Is(r.err, ErrWrongKey) {
				return unavailable(r.err, time.Minute)
			}
		case <-ctx.Done():
			return timedOut("the HSM to be repaired", errors.Join(ctx.Err(), r.fault))
		case <-s.closing.Done():
			return unavailable(ErrClosed, 0)
		}
	}
}

// mend takes the step, unless someone has mended the token since the call that failed began. A new session is
// the caller's own affair (see discard); the other steps concern everyone, so one goroutine takes them, and goes
// on when the caller's ctx has ended.
func (s *Signer) mend(ctx context.Context, needed step, generation uint64, fault error) error {
	if needed == stepSession {
		s.mended.Add(1)
		return nil
	}
	s.mu.Lock()
	if s.generation == generation && s.round == nil && s.refusal == nil && s.closing.Err() == nil {
		s.round = &round{fault: fault, done: make(chan struct{})}
		s.repairs.Go(func() { s.repair(needed, fault) })
	}
	s.mu.Unlock()
	return s.healthy(ctx)
}

// repair takes dearer and dearer steps until one mends the token, the PIN is refused, or the signer is closed.
func (s *Signer) repair(next step, fault error) {
	log := s.options.Logger
	for try := 0; ; try++ {
		log.Warn("HSM fault", "err", fault, "repair", next.String(), "try", try+1)
		began := time.Now()
		err := s.reconnect(next)
		if s.endRound(err) {
			if err == nil {
				log.Info("HSM repaired", "repair", next.String(), "took", time.Since(began).Round(time.Millisecond))
			} else {
				log.Error("HSM repair given up until restart", "err", err)
			}
			return
		}
		fault, next = err, min(max(next+1, stepFor(err)), stepModule)
		if !sleep(s.closing, s.closing, jitter(s.options.limits.pause<<min(try, 6))) {
			s.endRound(ErrClosed)
			return
		}
	}
}

// endRound tells those who wait how the round ended and, unless it was the last, begins the next.
func (s *Signer) endRound(err error) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.round
	ended.err = err
	switch {
	case err == nil:
		s.round = nil
		s.generation++
		s.mended.Add(1)
	case errors.Is(err, ErrPIN), errors.Is(err, ErrClosed):
		s.round, s.refusal = nil, err
	default:
		s.round = &round{fault: err, done: make(chan struct{})}
	}
	if err != nil {
		s.lastError, s.lastFault = err, time.Now()
	}
	close(ended.done)
	return s.round == nil
}

// reconnect takes one step.
func (s *Signer) reconnect(next step) error {
	if next == stepModule {
		all, err := s.drain(s.closing)
		if err == nil {
			defer s.release(all...)
			if err := s.resetModule(all); err != nil {
				return err
			}
			_, err := s.connect(all[0], next)
			return err
		}
		// C_Finalize under a call that hangs would crash the process. The other sessions may still be of use.
		s.options.Logger.Warn("the module is not initialised again", "err", err)
		next = stepLogin
	}
	limit, cancel := context.WithTimeout(s.closing, s.options.limits.drain)
	defer cancel()
	one, err := s.take(limit)
	if err != nil {
		return err
	}
	defer s.release(one)
	_, err = s.connect(one, next)
	return err
}

// resetModule needs all sessions in hand. All handles are void after it.
func (s *Signer) resetModule(all []*session) error {
	for _, one := range all {
		one.open = false
	}
	// A module that lost its device may fail to finalise; what counts is that it initialises.
	if err := failed("C_Finalize", s.module.Finalize()); err != nil && rvOf(err) != pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED {
		s.options.Logger.Warn("the module did not finalise", "err", err)
	}
	err := initialize(s.module)
	if rvOf(err) == pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED {
		return nil
	}
	return err
}

// connect finds the token, logs in where need be, finds the key and proves it by a trial signature: the first
// time that it has the public key that the token shows, later that it is still the same key. A session that
// failed is given up.
func (s *Signer) connect(one *session, reason step) (t token, err error) {
	defer func() {
		if err != nil {
			s.discard(one, err)
		}
	}()
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
	defer s.mu.Unlock()
	s.handles = handles{t.slot, k.handle}
	s.snapshot = snapshot
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
	// As rarely as possible: a login is a write on some tokens, and an entry in the audit log on most.
	if !in || reason == stepLogin {
		if err := login(s.module, one.handle, t, s.options.URI, s.options.Logger); err != nil {
			return privateKey{}, err
		}
	}
	k, err := findKey(s.module, one.handle, s.options.URI)
	if err != nil {
		return k, err
	}
	if err := k.check(s.options.AllowExtractable); err != nil {
		return k, err
	}
	if s.publicKey != nil {
		return k, tryKey(s.module, one.handle, k.handle, s.publicKey)
	}
	if s.publicKey, err = publicKeyOf(s.module, one.handle, k); err != nil {
		return k, err
	}
	s.address, err = appliance.AddressOf(s.publicKey)
	return k, err
}

// jitter spreads a pause over its second half, so that many signers do not return to one HSM at once.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// sleep returns false when either context ended first.
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
