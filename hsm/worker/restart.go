package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/hsm"
)

// supervise opens the first worker, reports the result, and replaces workers until the Signer is closed.
func (s *Signer) supervise(ctx context.Context, told chan<- error) {
	runtime.LockOSThread() // see start
	defer runtime.UnlockOSThread()
	defer close(s.ended)
	began := time.Now()
	p, found, err := s.open(ctx)
	took := time.Since(began)
	if err == nil {
		if err = s.learn(found.PublicKey); err != nil {
			s.giveUp(p, err)
		}
	}
	if err != nil {
		told <- err
		return
	}
	s.install(p, found)
	told <- nil
	m := restarter{s: s, patience: max(leastPatience, 3*took)}
	for {
		select {
		case <-s.closing.Done():
			return
		case <-s.trouble:
			m.restart()
		}
	}
}

// learn stores the key that every later worker must have.
func (s *Signer) learn(publicKey []byte) (err error) {
	s.publicKey = publicKey
	if s.options.HSM.Algorithm == hsm.Ed25519 {
		return nil
	}
	if s.address, err = appliance.AddressOf(publicKey); err != nil {
		return err
	}
	s.verifier, err = secp256k1.NewVerifier(publicKey)
	return err
}

// Fixed limits for starting workers.
const (
	// with a worker that opens the token; three times the first worker's time, if that is longer
	leastPatience = 5 * time.Second
	mostPatience  = time.Minute
	leastPause    = 50 * time.Millisecond // between a worker that ended early and the next; doubles
	mostPause     = 800 * time.Millisecond
	fewLogins     = 3 // fruitless logins before the pause grows to longPause
	// tokens count successful logins, but this pause must not prolong an outage of the HSM
	longPause    = 5 * time.Second
	longLife     = 10 * time.Second // after which the next worker is started at once
	mostUnkilled = 4                // killed workers that have not ended
)

// restarter restarts workers. It belongs to the goroutine of supervise.
type restarter struct {
	s            *Signer
	patience     time.Duration
	quick        int // consecutive workers that ended early
	failedLogins int // consecutive workers that logged in and served no request: tokens log and count logins
}

// restart replaces the current worker if it is lost or hangs, with as many attempts as necessary. A worker that hangs
// is kept until the next is ready: the hang may end, and its other sessions may still answer.
func (m *restarter) restart() {
	s := m.s
	old, cause, hangs := s.diagnose()
	if cause == nil {
		return
	}
	m.quick++
	if time.Since(old.began) > longLife {
		m.quick = 0
	}
	m.countEnded(old)
	began := time.Now()
	s.options.Logger.Warn("HSM fault", "err", cause.Error(), "repair", "start another worker",
		"pid", old.cmd.Process.Pid)
	for try := 1; sleep(s.closing, m.pause()); try++ {
		p, found, err := m.openAnother()
		if err == nil {
			s.install(p, found)
			s.options.Logger.Info("HSM repaired", "repair", "start another worker", "pid", p.cmd.Process.Pid,
				"tries", try,
				"took", time.Since(began).Round(time.Millisecond).String())
			return
		}
		if hangs && s.answersAgain(old) {
			s.options.Logger.Info("HSM answers again in the same worker",
				"took", time.Since(began).Round(time.Millisecond).String())
			return
		}
		s.giveUp(old, cause)
		if s.failedToMend(err) {
			return
		}
		m.countEnded(p)
		if hangs = false; try&(try-1) == 0 { // log tries 1, 2, 4, 8 … only, since an HSM may be away for hours
			s.options.Logger.Warn("HSM fault", "err", err.Error(), "repair", "start another worker", "try", try)
		}
		m.quick++
	}
}

// pause returns the time before the next start. It is random, so that many appliances do not return to an HSM at the
// same time.
func (m *restarter) pause() time.Duration {
	if m.quick == 0 {
		return 0
	}
	d := min(leastPause<<min(m.quick-1, 10), mostPause)
	if m.failedLogins > fewLogins {
		d = min(time.Second<<min(m.failedLogins-fewLogins-1, 10), longPause)
	}
	return d/2 + rand.N(d/2+1)
}

// countEnded counts a worker that has ended. p is nil if no worker was started.
func (m *restarter) countEnded(p *process) {
	switch {
	case p == nil:
	case p.useful.Load():
		m.failedLogins = 0
	case p.logins.Load():
		m.failedLogins++
	}
}

// openAnother opens a worker. If it takes too long, the next one gets twice the time.
func (m *restarter) openAnother() (*process, opened, error) {
	limit, cancel := context.WithTimeout(m.s.closing, m.patience)
	defer cancel()
	p, found, err := m.s.open(limit)
	if err != nil && limit.Err() != nil {
		m.patience = min(2*m.patience, mostPatience)
	}
	if err == nil && !bytes.Equal(found.PublicKey, m.s.publicKey) {
		m.s.giveUp(p, hsm.ErrWrongKey)
		return p, found, fmt.Errorf("%w: the key is not %s", hsm.ErrWrongKey, m.s.keyName())
	}
	return p, found, err
}

// diagnose returns the current worker and its fault, or a nil cause.
func (s *Signer) diagnose() (p *process, cause error, hangs bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p = s.current
	switch waited := p.oldest(time.Now()); {
	case s.refusal != nil:
		return p, nil, false
	case p.dead != nil:
		s.reclaim(p)
		cause = p.dead
	case waited > s.options.CallTimeout:
		cause, hangs = fmt.Errorf("a call of the PKCS#11 module has not returned for %s",
			waited.Round(time.Millisecond)), true
	}
	if cause != nil {
		s.fault, s.failure, s.failed = cause, cause, time.Now()
	}
	return p, cause, hangs
}

// open starts a worker and has it open the token. With an error it returns the worker that was given up, if one was
// started.
func (s *Signer) open(ctx context.Context) (*process, opened, error) {
	var found opened
	if n := s.unkilled.Load(); n >= mostUnkilled {
		return nil, found, fmt.Errorf("%d killed HSM workers are still running: their calls hang in the kernel; "+
			"restart the machine if that lasts", n)
	}
	h := s.options.HSM
	text, err := json.Marshal(settings{
		URI: h.URI.String(), Sessions: h.Sessions, Algorithm: h.Algorithm, AllowExtractable: h.AllowExtractable,
		Sandbox: s.options.Sandbox, Again: s.publicKey != nil,
	})
	if err != nil {
		return nil, found, err
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, found, err
	}
	defer leave()
	p, err := s.start()
	if err != nil {
		return nil, found, err
	}
	r := &request{kind: kindOpen, payload: text, done: make(chan answer, 1)}
	s.mu.Lock()
	f, dead := p.assign(r), p.dead
	s.mu.Unlock()
	if dead != nil { // lost will not answer this request
		r.done <- answer{err: dead}
	}
	_ = p.wire.send(f) // reading reports the error
	select {
	case a := <-r.done:
		if err = a.err; err == nil && json.Unmarshal(a.payload, &found) != nil {
			err = errGarbage
		}
	case <-ctx.Done():
		err = hsm.TimedOut("the PKCS#11 module to return", ctx.Err())
	case <-s.closing.Done():
		err = hsm.ErrClosed
	}
	if err != nil {
		s.giveUp(p, err)
	}
	return p, found, err
}

// install makes the worker the current one, and gives it the waiting requests and those that the previous worker has
// not answered.
func (s *Signer) install(p *process, found opened) {
	s.mu.Lock()
	old := s.current
	if old != nil {
		s.reclaim(old)
		s.past += old.repairs
		s.restarts.Add(1)
		if old.dead == nil {
			old.dead = errors.New("replaced")
		}
	}
	s.current, s.fault, s.another, s.snapshot = p, nil, false, found.Status
	if p.dead != nil {
		s.requestCheck()
	}
	s.dispatch()
	if old != nil {
		old.kill()
	}
}

// giveUp ends a worker. Its unanswered requests wait for the next.
func (s *Signer) giveUp(p *process, why error) {
	s.mu.Lock()
	if p.dead == nil {
		p.dead = why
	}
	s.reclaim(p)
	s.mu.Unlock()
	p.kill()
}

// answersAgain reports whether a worker that hung has answered in the meantime. If so, it clears the fault.
func (s *Signer) answersAgain(p *process) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.dead != nil || p.oldest(time.Now()) > s.options.CallTimeout {
		return false
	}
	s.fault = nil
	return true
}

// failedToMend records why no worker is available. It returns true if the fault needs an operator.
func (s *Signer) failedToMend(err error) (final bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.failure, s.failed = err, err, time.Now()
	if errors.Is(err, hsm.ErrPIN) {
		s.refuse(err)
		return true
	}
	if s.another = errors.Is(err, hsm.ErrWrongKey); s.another {
		s.failWaiting()
	}
	return false
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// closeLimit bounds the wait for calls inside the module and for C_Finalize together.
const closeLimit = 5 * time.Second

func (s *Signer) shutDown() error {
	s.mu.Lock()
	s.refusal = hsm.ErrClosed
	s.failWaiting()
	p := s.current
	s.mu.Unlock()
	s.close()
	<-s.ended
	err := s.endWorker(p)
	s.giveUp(p, hsm.ErrClosed)
	s.mu.Lock()
	s.failWaiting() // requests that the worker did not answer
	s.mu.Unlock()
	return err
}

// endWorker waits for the worker's calls and has it finalise the module.
func (s *Signer) endWorker(p *process) error {
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	s.mu.Lock()
	inside := make(chan struct{})
	if p.idle = inside; len(p.pending) == 0 || p.dead != nil {
		close(inside)
		p.idle = nil
	}
	s.mu.Unlock()
	select {
	case <-inside:
	case <-p.exited:
		return nil
	case <-limit.C:
		return errors.New("close the HSM: calls are still pending in the module; its process was killed")
	}
	s.mu.Lock()
	f := p.assign(&request{kind: kindClose, done: make(chan answer, 1)})
	s.mu.Unlock()
	_ = p.wire.send(f) // an error means that the worker has ended
	select {
	case <-p.exited:
		return nil
	case <-limit.C:
		return errors.New("close the HSM: the module does not finalise; its process was killed")
	}
}
