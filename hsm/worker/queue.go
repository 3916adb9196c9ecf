package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/attestd/attestd/hsm"
)

// do sends a request to a worker and waits for the answer until ctx ends.
func (s *Signer) do(ctx context.Context, k kind, payload []byte) ([]byte, error) {
	r := &request{kind: k, payload: payload, done: make(chan answer, 1)}
	s.mu.Lock()
	if err := s.hopeless(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	r.queued = s.waiting.PushBack(r)
	s.dispatch()
	select {
	case a := <-r.done:
		return a.payload, a.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.left = true
	if r.queued != nil {
		s.waiting.Remove(r.queued)
		r.queued = nil
		if s.fault != nil {
			return nil, hsm.TimedOut("the HSM to be repaired", errors.Join(ctx.Err(), s.fault))
		}
		return nil, hsm.TimedOut("a free session", ctx.Err())
	}
	return nil, hsm.TimedOut("the PKCS#11 module to return", ctx.Err())
}

// hopeless returns why waiting is pointless: a fault that needs an operator. The caller holds mu.
func (s *Signer) hopeless() error {
	switch {
	case s.refusal != nil:
		return hsm.Unavailable(s.refusal, 0)
	case s.another:
		return hsm.Unavailable(s.fault, time.Minute)
	}
	return nil
}

// dispatch sends waiting requests, as many as the worker can take. The caller holds mu. dispatch releases it before it
// sends.
func (s *Signer) dispatch() {
	p := s.current
	if p == nil || p.dead != nil {
		s.mu.Unlock()
		return
	}
	var frames []frame
	for s.waiting.Len() > 0 && len(p.pending) < p.most() {
		r := s.waiting.Remove(s.waiting.Front()).(*request)
		r.queued = nil
		frames = append(frames, p.assign(r))
	}
	s.mu.Unlock()
	for _, f := range frames {
		_ = p.wire.send(f) // reading reports the error, and the request goes to the next worker
	}
}

// most returns how many requests the worker may have at once. It is one per session inside a call, one more per session
// to continue with at once, and further ones that keep a fast HSM busy until this process, which may wait for a CPU,
// sends more. The caller holds mu.
func (p *process) most() int { return min(2*max(1, p.sessions)+p.pace.within(onHand), mostPending) }

// mostPending bounds the unanswered requests of a worker. The socket's buffers hold more frames.
const mostPending = 256

// onHand is how much work is queued in a worker beyond two requests per session. It bounds how long one API key's
// requests can delay another's, in addition to the fair queue.
const onHand = 4 * time.Millisecond

// pace is a moving average of the time between events. The zero pace means slow events.
type pace struct {
	last    time.Time
	between time.Duration
}

const slow = 10 * time.Millisecond // upper bound of the average; slower events count as this slow

func (p *pace) tick(now time.Time) {
	if p.last.IsZero() {
		p.between = slow
	} else {
		p.between += (min(now.Sub(p.last), slow) - p.between) / 16
	}
	p.last = now
}

// within returns the number of events within d at this pace, rounded down.
func (p *pace) within(d time.Duration) int {
	if p.last.IsZero() {
		return 0
	}
	return int(d / max(p.between, time.Microsecond))
}

// assign gives the request to the worker and returns it as a frame. As many requests as there are sessions are assumed
// to be inside a call, the oldest first. The caller holds mu.
func (p *process) assign(r *request) frame {
	p.lastID++
	p.pending[p.lastID] = r
	p.behind = append(p.behind, r)
	p.advance()
	if !p.watched {
		p.watched = true
		time.AfterFunc(p.signer.options.CallTimeout/4, p.watch)
	}
	return frame{kind: r.kind, id: p.lastID, payload: r.payload}
}

// advance records which requests are now assumed to be inside a call. The caller holds mu.
func (p *process) advance() {
	for len(p.behind) > 0 && len(p.pending)-len(p.behind) < max(1, p.sessions) {
		p.behind[0].inside = time.Now()
		p.behind = p.behind[1:]
	}
}

// watch checks for requests that hang, as long as requests are pending.
func (p *process) watch() {
	s := p.signer
	s.mu.Lock()
	defer s.mu.Unlock()
	p.watched = len(p.pending) > 0 && p.dead == nil
	if !p.watched {
		return
	}
	if p == s.current && p.oldest(time.Now()) > s.options.CallTimeout {
		s.requestCheck()
	}
	time.AfterFunc(s.options.CallTimeout/4, p.watch)
}

// requestCheck makes supervise check the current worker.
func (s *Signer) requestCheck() {
	select {
	case s.trouble <- struct{}{}:
	default: // a check is already due
	}
}

// answered gives an answer to the waiting caller, and the freed session to the next request.
func (s *Signer) answered(p *process, f frame, a answer) error {
	if a.err != nil && errors.Is(a.err, errGarbage) {
		return a.err
	}
	s.mu.Lock()
	r, asked := p.pending[f.id]
	if !asked {
		s.mu.Unlock()
		return fmt.Errorf("%w: an answer without a request", errGarbage)
	}
	delete(p.pending, f.id)
	if r.inside.IsZero() { // it was answered before an older request
		p.behind = slices.DeleteFunc(p.behind, func(one *request) bool { return one == r })
	}
	p.sessions, p.repairs = int(f.sessions), uint64(f.repairs)
	p.pace.tick(time.Now())
	p.advance()
	if a.err == nil && (r.kind == kindSign || r.kind == kindMessage || r.kind == kindProbe) {
		p.useful.Store(true)
	}
	if p.idle != nil && len(p.pending) == 0 {
		close(p.idle)
		p.idle = nil
	}
	if a.err != nil && r.kind != kindOpen {
		s.failure, s.failed = a.err, time.Now()
		if errors.Is(a.err, hsm.ErrPIN) {
			s.refuse(a.err)
		}
		a.err = hsm.Unavailable(a.err, time.Second)
	}
	if p == s.current {
		s.dispatch()
	} else {
		s.mu.Unlock()
	}
	r.done <- a
	return nil
}

// refuse fails all waiting and future requests permanently. The caller holds mu.
func (s *Signer) refuse(err error) {
	if s.refusal != nil {
		return
	}
	s.refusal = err
	s.options.Logger.Error("HSM repair stopped until restart", "err", err.Error())
	s.failWaiting()
}

// failWaiting fails all waiting requests with the reason from hopeless. The caller holds mu.
func (s *Signer) failWaiting() {
	for e := s.waiting.Front(); e != nil; e = s.waiting.Front() {
		r := s.waiting.Remove(e).(*request)
		r.queued = nil
		r.done <- answer{err: s.hopeless()}
	}
}

// lost is called when a worker's output can no longer be read, which makes the worker unusable.
func (s *Signer) lost(p *process, err error) {
	p.kill()
	how := p.ending()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.dead != nil:
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		p.dead = fmt.Errorf("the HSM worker ended: %s", how)
	default:
		p.dead = fmt.Errorf("the HSM worker was abandoned: %w", err)
	}
	for id, r := range p.pending {
		if r.kind == kindOpen {
			delete(p.pending, id)
			r.done <- answer{err: p.dead}
		}
	}
	s.requestCheck()
}

// reclaim returns the worker's unanswered requests to the front of the waiting queue. The caller holds mu.
func (s *Signer) reclaim(p *process) {
	for _, id := range slices.SortedFunc(maps.Keys(p.pending), func(a, b uint32) int { return cmp.Compare(b, a) }) {
		if r := p.pending[id]; !r.left && r.kind != kindOpen && r.kind != kindClose {
			r.inside = time.Time{}
			r.queued = s.waiting.PushFront(r)
		}
	}
	clear(p.pending)
	p.behind = nil
}
