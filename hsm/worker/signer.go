// Package worker keeps the HSM's PKCS#11 library in a process of its own, and is an appliance.Signer through it. A library
// that hangs, leaks or crashes then costs that process, which is killed and started anew within a second, and never the
// daemon. It needs no standard beyond those of package hsm.
package worker

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/sandbox"
)

// Options configure a Signer.
type Options struct {
	HSM hsm.Options // but for PIN, which the daemon hands over, and Logger
	// CallTimeout is how long the worker may take for one request before it is replaced: a call of the module hangs, or the
	// worker does. It must be shorter than what callers wait; Open refuses zero.
	CallTimeout time.Duration
	// Logins are shared by the keys of one token. Nil where the token has no other key.
	Logins *Logins
	// Sandbox is what the library may use beyond its needs that package sandbox knows.
	Sandbox sandbox.Rules
	// Logger logs faults, repairs and what the module prints. Nil means no log.
	Logger *slog.Logger

	command  func() *exec.Cmd // nil means this program again
	attempts *attempts        // nil means the first of its own
}

// attempts is what one try to open a token tells the next.
type attempts struct {
	gate   *gate
	door   chan struct{} // see shared; nil where the token has no other key
	undead atomic.Int32  // workers that were killed and have not ended
}

// Opener returns Open with these options, for who tries again where that fails. No try has the PIN that an earlier one was
// refused, or of which it did not live to tell.
func Opener(options Options) func(context.Context) (*Signer, error) {
	options.attempts = newAttempts(options)
	return func(ctx context.Context) (*Signer, error) { return Open(ctx, options) }
}

func newAttempts(o Options) *attempts {
	gate, door := o.Logins.of(o.HSM.URI)
	return &attempts{gate: gate, door: door}
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.command == nil {
		o.command = itself
	}
	if o.attempts == nil {
		o.attempts = newAttempts(o)
	}
	return o
}

// Signer is an appliance.Signer whose key is used by a worker. It checks every signature itself. It is safe for concurrent
// use.
//
// A request that a worker has not answered when it is replaced is made again by the next: nobody is harmed by a digest that
// is signed twice, since only a signature that was checked is recorded. The goroutine of supervise owns which workers there are.
type Signer struct {
	options   Options
	publicKey []byte
	address   appliance.Address
	verifier  *appliance.Verifier // of publicKey
	*attempts

	closing context.Context // cancelled by Close
	close   context.CancelFunc
	closed  func() error
	ended   chan struct{} // closed when supervise has returned
	trouble chan struct{} // tells supervise to look at current; has room for one

	signatures  atomic.Uint64
	wrong       atomic.Uint64
	restarts    atomic.Uint64
	lastSuccess atomic.Int64 // Unix nanoseconds

	mu       sync.Mutex // guards the fields below, and those of each process that say so
	current  *process   // nil before the first is open
	waiting  list.List  // of *request: no worker has it
	fault    error      // why there is no worker that answers; nil while there is
	another  bool       // the token has another key in the place of ours
	refusal  error      // why there will be none: ErrPIN, ErrClosed
	past     uint64     // repairs of former workers
	snapshot hsm.Status // as of the last answer
	failure  error      // the last
	failed   time.Time
}

// request is what a caller wants of a worker.
type request struct {
	kind    kind
	payload []byte
	done    chan answer   // has room for one
	inside  time.Time     // when a session began with it; zero before
	place   *list.Element // in waiting; nil while a worker has it
	left    bool          // nobody waits for the answer
}

type answer struct {
	payload []byte
	err     error
}

var _ appliance.Signer = (*Signer)(nil)

// Open starts a worker, which finds the token, logs in and finds the key as hsm.Open does, and returns its errors. The program
// must call Main first, since it is the worker, too.
func Open(ctx context.Context, options Options) (*Signer, error) {
	if options.CallTimeout <= 0 {
		return nil, errors.New("worker.Options: CallTimeout must be set")
	}
	options = options.withDefaults()
	s := &Signer{options: options, attempts: options.attempts, ended: make(chan struct{}), trouble: make(chan struct{}, 1)}
	s.closing, s.close = context.WithCancel(context.Background())
	s.closed = sync.OnceValue(s.shutDown)
	opened := make(chan error, 1)
	go s.supervise(ctx, opened)
	if err := <-opened; err != nil {
		s.close()
		<-s.ended
		return nil, err
	}
	return s, nil
}

// PublicKey returns the public key: 65 bytes, SEC 1 uncompressed.
func (s *Signer) PublicKey() []byte { return slices.Clone(s.publicKey) }

// Address returns the key's address.
func (s *Signer) Address() appliance.Address { return s.address }

// mostWait bounds a call whose context has no deadline.
const mostWait = 30 * time.Second

// bounded gives a context without a deadline one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, mostWait)
}

// Sign implements appliance.Signer. While there is no worker that answers, it waits for one until ctx ends. A context
// without a deadline gets one of 30 seconds.
func (s *Signer) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for again := false; ; again = true {
		rs, err := s.do(ctx, kindSign, d[:])
		if err != nil {
			return appliance.Signature{}, err
		}
		signature, err := s.check(d, rs)
		if err == nil {
			s.signatures.Add(1)
			s.lastSuccess.Store(time.Now().UnixNano())
			return signature, nil
		}
		if again {
			return appliance.Signature{}, hsm.Unavailable(err, time.Second)
		}
		// The handle may have become that of another key. If this fails, so does the next signature.
		if _, err := s.do(ctx, kindFind, nil); err != nil && ctx.Err() != nil {
			return appliance.Signature{}, err
		}
	}
}

// check makes a signature of what the worker has answered, if it is by the key.
func (s *Signer) check(d appliance.Digest, rs []byte) (appliance.Signature, error) {
	if len(rs) != 64 {
		return appliance.Signature{}, fmt.Errorf("%w: the signature has %d bytes, not 64", hsm.ErrWrongKey, len(rs))
	}
	signature, err := s.verifier.Signature(d, [64]byte(rs))
	if err == nil {
		return signature, nil
	}
	err = fmt.Errorf("%w: %w", hsm.ErrWrongKey, err)
	s.wrong.Add(1)
	s.options.Logger.Error("the token returned a wrong signature; it was withheld", "err", err.Error())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure, s.failed = err, time.Now()
	return appliance.Signature{}, err
}

// Ready returns nil if the token answers and has the key. While no worker answers it returns an error without waiting. If a
// signature was made in the last second, it does not ask the token.
func (s *Signer) Ready(ctx context.Context) error {
	if err := s.whyNot(); err != nil {
		return hsm.Unavailable(err, time.Second)
	}
	if time.Since(time.Unix(0, s.lastSuccess.Load())) < time.Second {
		return nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := s.do(ctx, kindProbe, nil)
	return err
}

// whyNot returns why Sign would wait or fail now, nil if it would not.
func (s *Signer) whyNot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return s.refusal
	}
	return s.fault
}

// Status returns the status of the HSM. The token's part is as of its last answer where it does not answer before ctx ends.
func (s *Signer) Status(ctx context.Context) (hsm.Status, error) {
	fault := s.whyNot()
	if fault == nil {
		var text []byte
		var told hsm.Status
		ctx, cancel := bounded(ctx)
		defer cancel()
		if text, fault = s.do(ctx, kindStatus, nil); fault == nil {
			fault = json.Unmarshal(text, &told)
		}
		if fault == nil {
			s.mu.Lock()
			s.snapshot = told
			s.mu.Unlock()
		}
	}
	usage := s.Usage()
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.snapshot
	status.Ready = fault == nil && status.Ready
	status.Session.Open, status.Session.InUse = usage.Sessions, usage.InUse
	status.Signatures, status.WrongSignatures, status.Repairs = usage.Signatures, usage.WrongSignatures, usage.Repairs
	status.Restarts = usage.Restarts
	if s.current != nil {
		status.Worker = s.current.cmd.Process.Pid
	}
	if s.failure != nil && s.failed.After(status.LastErrorTime) {
		status.LastError, status.LastErrorTime = s.failure.Error(), s.failed.UTC()
	}
	if fault != nil {
		status.LastError = fault.Error()
	}
	return status, nil
}

// Usage returns how many signatures, repairs and restarts there were, and the sessions in use. It never waits.
func (s *Signer) Usage() hsm.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := hsm.Usage{
		Ready: s.fault == nil && s.refusal == nil, Signatures: s.signatures.Load(), WrongSignatures: s.wrong.Load(),
		Repairs: s.past, Restarts: s.restarts.Load(),
	}
	if p := s.current; p != nil {
		u.Repairs += p.repairs
		u.Sessions, u.InUse = p.sessions, min(len(p.pending), p.sessions)
		u.MostSessions, u.AtOnce = s.snapshot.Session.Most, p.most()
	}
	return u
}

// Close lets calls that are inside the module return, and ends the worker. After 5 seconds it kills it.
func (s *Signer) Close() error { return s.closed() }
