// Package hsm signs attestations with a secp256k1 key in any PKCS#11 token. It finds the token and the key that an RFC
// 7512 URI names, signs with a bounded pool of sessions, checks every signature before it returns it, and recovers when
// the token restarts. Package hsm/worker, which the daemon uses, also survives a module that hangs or crashes: it keeps
// a Signer in a separate process. Standards: PKCS#11 v2.40, RFC 7512, SEC 1, SEC 2.
package hsm

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// Options configure a Signer.
type Options struct {
	URI URI
	// Sessions is the size of the session pool, which is how many signatures can be made concurrently. Zero means a
	// small pool, which Resize can change. The token's maximum is never exceeded.
	Sessions int
	// PIN returns the PIN for one login instead of pin-source. outcome receives the result of C_Login: nil, an error
	// that wraps ErrPIN, or another error. The PIN is wiped afterwards. A nil function means that the file of
	// pin-source is read.
	PIN func() (pin *PIN, outcome func(error), err error)
	// Algorithm is the kind of the key. The zero value is Secp256k1.
	Algorithm Algorithm
	// AllowExtractable accepts a key that can be exported from the token. Only for tests and migrations.
	AllowExtractable bool
	// Logger logs faults and repairs, and never a PIN. Nil means no log.
	Logger *slog.Logger

	load   func(path string) (module, error) // nil means loadModule
	limits limits                            // zero means standardLimits
}

// limits bound waits that the context of a caller does not bound.
type limits struct {
	call   time.Duration // a call with a context without a deadline
	drain  time.Duration // the wait for calls inside the module, before C_Finalize
	pause  time.Duration // after the first failed repair; doubles with each further one
	retire time.Duration // until a session that the token refused to open is retried
}

// standardLimits are the limits of every Signer except in tests.
var standardLimits = limits{call: 30 * time.Second, drain: 5 * time.Second, pause: 50 * time.Millisecond,
	retire: 30 * time.Second}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.load == nil {
		o.load = loadModule
	}
	if o.limits == (limits{}) {
		o.limits = standardLimits
	}
	return o
}

// Signer is an attest.Signer with one key of one token. It is safe for concurrent use.
//
// It repairs faults by opening another session, finding the key again or logging in. It cannot reload the module. After
// a fault that requires that, all its calls fail with ErrLost.
//
// Every call into the module holds a session of the pool until it returns. Close takes all sessions and therefore knows
// that no call is inside the module when it finalises the module. A call that hangs keeps its session for as long as it
// hangs.
type Signer struct {
	options   Options
	path      string
	module    module
	publicKey []byte
	address   appliance.Address
	idle      chan *session // the pool; its capacity is the largest size of the pool
	size      atomic.Int32  // of the pool
	retired   atomic.Int32  // sessions of the pool that the token refuses to open at present

	closing context.Context // cancelled by Close
	close   context.CancelFunc
	closed  func() error
	// the Signer's own goroutines that may be inside the module: the repair, and retried sessions
	repairs sync.WaitGroup

	signatures  atomic.Uint64
	wrong       atomic.Uint64
	repaired    atomic.Uint64
	lastSuccess atomic.Int64 // Unix nanoseconds

	mu         sync.Mutex // guards the fields below
	handles    handles
	generation uint64   // of handles: the number of repairs that replaced them
	attempt    *attempt // the running repair, or nil
	refusal    error    // why no further repair is tried (ErrPIN, ErrLost, ErrClosed), or nil
	lastError  error
	lastFault  time.Time
	snapshot   Status // as of the last call of connect
}

// handles are the handles from the last call of connect.
type handles struct {
	slot uint
	key  pkcs11.ObjectHandle
}

var _ attest.Signer = (*Signer)(nil)

// Open loads the module, finds the token, logs in, and finds the key. It checks that the key is on curve secp256k1, may
// sign, is sensitive and not extractable, and that a trial signature verifies. A process can open a module only once.
//
// Errors: ErrNotFound, ErrAmbiguous, ErrPIN, ErrWrongKey, and the errors of the module.
func Open(ctx context.Context, options Options) (*Signer, error) {
	options = options.withDefaults()
	return await(ctx, func() (*Signer, error) { return open(options) }, func(s *Signer) { _ = s.Close() })
}

func open(options Options) (*Signer, error) {
	path, m, err := options.openModule()
	if err != nil {
		return nil, err
	}
	s := &Signer{options: options, path: path, module: m}
	s.closing, s.close = context.WithCancel(context.Background())
	s.closed = sync.OnceValue(s.shutDown)
	if err := s.openPool(); err != nil {
		s.close()
		_ = m.Finalize()
		return nil, fmt.Errorf("open %s: %w", options.URI.keyName(), err)
	}
	return s, nil
}

// keyName returns the names of the token and the key, for errors.
func (u URI) keyName() string {
	return fmt.Sprintf("token %q key %q", u.Token, u.Object)
}

// PublicKey returns the public key: 65 bytes, SEC 1 uncompressed, or the 32 bytes of an Ed25519 key.
func (s *Signer) PublicKey() []byte { return append([]byte(nil), s.publicKey...) }

// Address returns the key's address; zero for an Ed25519 key.
func (s *Signer) Address() appliance.Address { return s.address }

// Sign implements attest.Signer. After a fault of the token it repairs the connection and signs again, until ctx
// ends. A context without a deadline gets a deadline of 30 seconds.
//
// The session returns to the pool before the signature is checked, so that the token signs the next request in the
// meantime.
func (s *Signer) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var signature appliance.Signature
	err := s.persist(ctx, func(ctx context.Context) error {
		rs, err := use(ctx, s, func(one *session) ([64]byte, error) { return s.signOn(one, d) })
		if err != nil {
			return err
		}
		if signature, err = secp256k1.NewSignature(d, rs, s.publicKey); err != nil {
			return fmt.Errorf("%w: %w", ErrWrongKey, err)
		}
		s.signatures.Add(1)
		s.lastSuccess.Store(time.Now().UnixNano())
		return nil
	})
	return signature, err
}

// SignUnchecked returns r and s as the token made them. The caller checks them in another process. It repairs as Sign
// does. If ctx cannot end, it calls the module in the caller's goroutine, however long that takes.
func (s *Signer) SignUnchecked(ctx context.Context, d appliance.Digest) (rs [64]byte, err error) {
	err = s.persist(ctx, func(ctx context.Context) error {
		rs, err = use(ctx, s, func(one *session) ([64]byte, error) { return s.signOn(one, d) })
		return err
	})
	return rs, err
}

// SignMessage returns the token's Ed25519 signature of a message. The caller, which is another process, verifies it. A
// fault is repaired as in Sign. The Signer must have Algorithm Ed25519.
func (s *Signer) SignMessage(ctx context.Context, message []byte) (signature [ed25519.SignatureSize]byte, err error) {
	err = s.persist(ctx, func(ctx context.Context) error {
		signature, err = use(ctx, s, func(one *session) ([ed25519.SignatureSize]byte, error) {
			h := s.current()
			if err := s.openSession(one, h.slot); err != nil {
				return [ed25519.SignatureSize]byte{}, err
			}
			return signMessage(s.module, one.handle, h.key, message)
		})
		return err
	})
	return signature, err
}

// FindAgain finds the token and the key again after a wrong signature, because the handle may now refer to a different
// key.
//
// Errors: ErrWrongKey if the token has a different key in its place.
func (s *Signer) FindAgain(ctx context.Context) error {
	if err := s.healthy(ctx); err != nil {
		return err
	}
	return s.repairFor(ctx, stepKey, s.currentGeneration(), ErrWrongKey)
}

func (s *Signer) signOn(one *session, d appliance.Digest) ([64]byte, error) {
	h := s.current()
	if err := s.openSession(one, h.slot); err != nil {
		return [64]byte{}, err
	}
	return signRaw(s.module, one.handle, h.key, d)
}

// Ready returns nil if the token answers and has the key. During a repair it returns an error without waiting. If a
// signature was made in the last second, it does not ask the token.
func (s *Signer) Ready(ctx context.Context) error {
	if err := s.fault(); err != nil {
		return Unavailable(err, time.Second)
	}
	if time.Since(time.Unix(0, s.lastSuccess.Load())) < time.Second {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.Probe(ctx)
}

// Probe asks the token for the key, which requires an open session, a login and a valid handle. It repairs as Sign
// does.
func (s *Signer) Probe(ctx context.Context) error {
	return s.persist(ctx, func(ctx context.Context) error {
		_, err := use(ctx, s, func(one *session) (struct{}, error) { return struct{}{}, s.probe(one) })
		return err
	})
}

// probe reads the class of the key.
func (s *Signer) probe(one *session) error {
	h := s.current()
	if err := s.openSession(one, h.slot); err != nil {
		return err
	}
	_, err := s.module.GetAttributeValue(one.handle, h.key,
		[]*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, nil)})
	return failed("C_GetAttributeValue", err)
}

func (s *Signer) current() handles {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles
}

// Close waits for calls inside the module, closes the sessions and finalises the module. If a call does not return
// within 5 seconds, Close returns an error and leaves the module as it is.
func (s *Signer) Close() error { return s.closed() }

func (s *Signer) shutDown() error {
	s.mu.Lock() // no repair starts after this
	s.close()
	s.mu.Unlock()
	all, err := s.drain(context.Background())
	if err != nil {
		return fmt.Errorf("close the HSM: %w", err)
	}
	waited, cancel := context.WithTimeout(context.Background(), s.options.limits.drain)
	defer cancel()
	if _, err := await(waited, func() (struct{}, error) { s.repairs.Wait(); return struct{}{}, nil }, nil); err != nil {
		return fmt.Errorf("close the HSM: %w", err)
	}
	for _, one := range all {
		if one.open {
			_ = s.module.CloseSession(one.handle) // if this fails, C_Finalize closes it
		}
	}
	return failed("C_Finalize", s.module.Finalize())
}
