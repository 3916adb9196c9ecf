// Package worker runs the HSM's PKCS#11 library in a separate process, and is an attest.Signer through it. If the
// library hangs, leaks or crashes, that process is killed and restarted within a second, and the daemon is unaffected.
// It implements no standard beyond those of package hsm.
package worker

import (
	"container/list"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/sandbox"
)

// Options configure a Signer.
type Options struct {
	HSM hsm.Options // without PIN, which the daemon provides, and Logger
	// CallTimeout is how long the worker may take for one request. After that, a call of the module or the worker
	// itself counts as hung, and the worker is replaced. It must be shorter than the time that callers wait; Open
	// refuses zero.
	CallTimeout time.Duration
	// Logins is shared by the keys of one token. Nil if the token has no other key.
	Logins *Logins
	// ReadPIN returns the PIN. Nil means the file that pin-source names. With ReadPIN, Logins is not used.
	ReadPIN func() (*hsm.PIN, error)
	// User is the user of the worker, if root starts it for another user. Nil means the user of this process.
	User *syscall.Credential
	// Sandbox lists the files and sockets that the library may use beyond the needs that package sandbox knows.
	Sandbox sandbox.Rules
	// Logger logs faults, repairs and the module's output. Nil means no log.
	Logger *slog.Logger

	command  func() *exec.Cmd // nil means this program again
	attempts *attempts        // nil means new attempts
}

// attempts is the state that attempts to open a token share.
type attempts struct {
	gate     *pinGate
	door     chan struct{} // see shared; nil without Logins
	unkilled atomic.Int32  // killed workers that have not ended
}

// Opener returns Open with these options, for callers that retry. No attempt uses a PIN that was refused in an earlier
// one, or with which an earlier worker ended during the login.
func Opener(options Options) func(context.Context) (*Signer, error) {
	options.attempts = newAttempts(options)
	return func(ctx context.Context) (*Signer, error) { return Open(ctx, options) }
}

func newAttempts(o Options) *attempts {
	if o.ReadPIN != nil {
		return &attempts{gate: newGate(o.ReadPIN)}
	}
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

// Signer is an attest.Signer that uses a key through a worker. It checks every signature itself. It is safe for
// concurrent use.
//
// If a worker is replaced, the next worker repeats its unanswered requests. Signing a digest twice is harmless, since
// only a signature that was checked is recorded. The goroutine of supervise starts and replaces the workers.
type Signer struct {
	options   Options
	publicKey []byte
	address   appliance.Address
	verifier  *secp256k1.Verifier // of publicKey
	*attempts

	closing context.Context // cancelled by Close
	close   context.CancelFunc
	closed  func() error
	ended   chan struct{} // closed when supervise has returned
	trouble chan struct{} // makes supervise check current; has capacity 1

	signatures  atomic.Uint64
	wrong       atomic.Uint64
	signTime    atomic.Int64 // of the signatures, in nanoseconds
	restarts    atomic.Uint64
	lastSuccess atomic.Int64 // Unix nanoseconds

	mu       sync.Mutex // guards the fields below, and the marked fields of each process
	current  *process   // nil before the first is open
	waiting  list.List  // of *request: not yet sent to a worker
	fault    error      // why no worker answers; nil if one does
	another  bool       // the token has a different key in the place of ours
	refusal  error      // why no further worker is started: ErrPIN, ErrClosed
	past     uint64     // repairs of former workers
	snapshot hsm.Status // as of the last answer
	failure  error      // the last error
	failed   time.Time
}

// request is a caller's request to a worker.
type request struct {
	kind    kind
	payload []byte
	done    chan answer   // has capacity 1
	inside  time.Time     // when a session began with it; zero before
	queued  *list.Element // in waiting; nil while a worker has it
	left    bool          // no caller waits for the answer
}

type answer struct {
	payload []byte
	err     error
}

var _ attest.Signer = (*Signer)(nil)

// Open starts a worker, which finds the token, logs in and finds the key as hsm.Open does. It returns the errors of
// hsm.Open. The program must call Main first, since the worker is the same program.
func Open(ctx context.Context, options Options) (*Signer, error) {
	if options.CallTimeout <= 0 {
		return nil, errors.New("worker.Options: CallTimeout must be set")
	}
	options = options.withDefaults()
	s := &Signer{options: options, attempts: options.attempts, ended: make(chan struct{}),
		trouble: make(chan struct{}, 1)}
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

// keyName names the key in errors.
func (s *Signer) keyName() string {
	if s.options.HSM.Algorithm == hsm.Ed25519 {
		return fmt.Sprintf("log key %x", s.publicKey)
	}
	return s.address.String()
}

// PublicKey returns the public key: 65 bytes, SEC 1 uncompressed, or the 32 bytes of an Ed25519 key.
func (s *Signer) PublicKey() []byte { return slices.Clone(s.publicKey) }

// Address returns the key's address; zero for an Ed25519 key.
func (s *Signer) Address() appliance.Address { return s.address }

// mostWait bounds a call with a context without a deadline.
const mostWait = 30 * time.Second

// bounded gives a context without a deadline the deadline of mostWait.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, mostWait)
}

// Sign implements attest.Signer. While no worker answers, it waits for one until ctx ends. A context without a
// deadline gets a deadline of 30 seconds.
func (s *Signer) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var signature appliance.Signature
	err := s.signChecked(ctx, kindSign, d[:], func(rs []byte) (err error) {
		signature, err = s.check(d, rs)
		return err
	})
	return signature, err
}

// SignMessage returns an Ed25519 signature of a message of at most 32 KiB, which it verifies. It waits as Sign does.
func (s *Signer) SignMessage(ctx context.Context, message []byte) (signature []byte, err error) {
	if len(message) > mostPayload/2 {
		return nil, fmt.Errorf("sign a message of %d bytes: at most %d are allowed", len(message), mostPayload/2)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = s.signChecked(ctx, kindMessage, message, func(made []byte) error {
		if len(made) != ed25519.SignatureSize || !ed25519.Verify(s.publicKey, message, made) {
			return s.withhold(errors.New("the signature does not verify under the log key"))
		}
		signature = made
		return nil
	})
	return signature, err
}

// signChecked has a worker sign, at most twice: the handle may have become that of another key, and is found again.
func (s *Signer) signChecked(ctx context.Context, k kind, payload []byte, check func(answer []byte) error) error {
	began := time.Now()
	for again := false; ; again = true {
		answer, err := s.do(ctx, k, payload)
		if err != nil {
			return err
		}
		if err = check(answer); err == nil {
			now := time.Now()
			s.signatures.Add(1)
			s.signTime.Add(int64(now.Sub(began)))
			s.lastSuccess.Store(now.UnixNano())
			return nil
		}
		if again {
			return hsm.Unavailable(err, time.Second)
		}
		if _, err := s.do(ctx, kindFind, nil); err != nil && ctx.Err() != nil {
			// with any other error, the next signature fails, too
			return err
		}
	}
}

// check returns the signature in the worker's answer, if it verifies with the key.
func (s *Signer) check(d appliance.Digest, rs []byte) (appliance.Signature, error) {
	if len(rs) != 64 {
		return appliance.Signature{}, fmt.Errorf("%w: the signature has %d bytes, not 64", hsm.ErrWrongKey, len(rs))
	}
	signature, err := s.verifier.Signature(d, [64]byte(rs))
	if err == nil {
		return signature, nil
	}
	return appliance.Signature{}, s.withhold(err)
}

// withhold notes a wrong signature, and returns its error.
func (s *Signer) withhold(err error) error {
	err = fmt.Errorf("%w: %w", hsm.ErrWrongKey, err)
	s.wrong.Add(1)
	s.options.Logger.Error("the token returned a wrong signature; it was withheld", "err", err.Error())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure, s.failed = err, time.Now()
	return err
}

// Ready returns nil if the token answers and has the key. While no worker answers, it returns an error without waiting.
// If a signature was made in the last second, it does not ask the token.
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

// whyNot returns why Sign would wait or fail now, or nil.
func (s *Signer) whyNot() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal != nil {
		return s.refusal
	}
	return s.fault
}

// Status returns the status of the HSM. If the token does not answer before ctx ends, its part is as of its last
// answer.
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

// Usage returns the numbers of signatures, repairs, restarts and sessions. It never waits.
func (s *Signer) Usage() hsm.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := hsm.Usage{
		Ready: s.fault == nil && s.refusal == nil, Signatures: s.signatures.Load(), WrongSignatures: s.wrong.Load(),
		SignTime: time.Duration(s.signTime.Load()), Repairs: s.past, Restarts: s.restarts.Load(),
	}
	if p := s.current; p != nil {
		u.Repairs += p.repairs
		u.Sessions, u.InUse = p.sessions, min(len(p.pending), p.sessions)
		u.MostSessions, u.AtOnce = s.snapshot.Session.Most, p.most()
	}
	return u
}

// Close waits for calls inside the module, and ends the worker. After 5 seconds it kills the worker.
func (s *Signer) Close() error { return s.closed() }
