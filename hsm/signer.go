// Package hsm signs attestations with a secp256k1 key inside any PKCS#11 token: it finds the token and the key
// that an RFC 7512 URI names, signs through a bounded pool of sessions, checks every signature before it leaves,
// and repairs itself when the token restarts. Standards: PKCS#11 v2.40, RFC 7512, SEC 1, SEC 2.
package hsm

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
)

// Options say which key to sign with, and how.
type Options struct {
	URI URI
	// Sessions is how many signatures may be under way at once. 0 means twice the cores, at least 4. The token's
	// own maximum is never exceeded.
	Sessions int
	// AllowExtractable accepts a key that could leave the token. Only for tests and migrations.
	AllowExtractable bool
	// Logger gets faults and repairs; nil discards them. No PIN is ever logged.
	Logger *slog.Logger

	load   func(path string) (module, error) // nil means loadModule
	limits limits
}

// limits bound what no caller's context bounds. A zero member means the default.
type limits struct {
	call  time.Duration // for a call whose context has no deadline: 30 s
	drain time.Duration // for calls inside the module to return, before C_Finalize: 5 s
	pause time.Duration // after the first failed repair, doubled up to 100 times itself: 50 ms
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.load == nil {
		o.load = loadModule
	}
	fill := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	fill(&o.limits.call, 30*time.Second)
	fill(&o.limits.drain, 5*time.Second)
	fill(&o.limits.pause, 50*time.Millisecond)
	return o
}

// Signer is an appliance.Signer over one key of one token. All methods may be used at once.
//
// One rule keeps the module from being pulled away under a call: whoever calls it holds a session of the pool
// while the call lasts, so whoever holds all sessions is alone with the module. A call that hangs keeps its
// session for as long as it hangs.
type Signer struct {
	options   Options
	path      string
	module    module
	publicKey []byte
	address   appliance.Address
	idle      chan *session // the pool; its capacity is its size

	closing context.Context // ended by Close
	close   context.CancelFunc
	closed  func() error
	repairs sync.WaitGroup // the goroutine of the repair under way

	signatures  atomic.Uint64
	wrong       atomic.Uint64
	mended      atomic.Uint64
	lastSuccess atomic.Int64 // Unix nanoseconds

	mu         sync.Mutex // guards what follows
	handles    handles
	generation uint64 // counts shared repairs
	round      *round // of the repair under way; nil when there is none
	refusal    error  // why no repair will be tried again; nil while one may
	lastError  error
	lastFault  time.Time
	snapshot   Status // as of the last connect
}

// handles are what the token gave out at the last connect.
type handles struct {
	slot uint
	key  pkcs11.ObjectHandle
}

var _ appliance.Signer = (*Signer)(nil)

// Open loads the module, finds the token, logs in, finds the key, and checks it: its curve is secp256k1, it may
// sign, it is sensitive and not extractable, and a trial signature verifies. A process can open a module once.
//
// Errors: ErrNotFound, ErrAmbiguous, ErrPIN, ErrWrongKey, and what the module says.
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

// keyName names the key in errors.
func (u URI) keyName() string {
	return fmt.Sprintf("token %q key %q", u.Token, u.Object)
}

// PublicKey returns the key's public half: 65 bytes, SEC 1 uncompressed.
func (s *Signer) PublicKey() []byte { return append([]byte(nil), s.publicKey...) }

// Address returns the key's address.
func (s *Signer) Address() appliance.Address { return s.address }

// Sign implements appliance.Signer. A fault of the token is repaired and the digest signed again while ctx
// lasts; a context without a deadline is given 30 seconds.
//
// A signature is checked after its session is back in the pool, so that the token works while we verify.
func (s *Signer) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	var signature appliance.Signature
	err := s.persist(ctx, func(ctx context.Context) error {
		rs, err := use(ctx, s, func(one *session) ([64]byte, error) { return s.signOn(one, d) })
		if err != nil {
			return err
		}
		if signature, err = appliance.NewSignature(d, rs, s.publicKey); err != nil {
			return fmt.Errorf("%w: %w", ErrWrongKey, err)
		}
		s.signatures.Add(1)
		s.lastSuccess.Store(time.Now().UnixNano())
		return nil
	})
	return signature, err
}

func (s *Signer) signOn(one *session, d appliance.Digest) ([64]byte, error) {
	h := s.current()
	if err := s.openSession(one, h.slot); err != nil {
		return [64]byte{}, err
	}
	return signRaw(s.module, one.handle, h.key, d)
}

// Ready returns nil when the token answers and the key is there, an error at once while a repair is under way.
// A signature made in the last second is proof enough.
func (s *Signer) Ready(ctx context.Context) error {
	if err := s.fault(); err != nil {
		return unavailable(err, time.Second)
	}
	if time.Since(time.Unix(0, s.lastSuccess.Load())) < time.Second {
		return nil
	}
	return s.persist(ctx, func(ctx context.Context) error {
		_, err := use(ctx, s, func(one *session) (struct{}, error) { return struct{}{}, s.probe(one) })
		return err
	})
}

// probe reads the key's class, which needs a live session, a login and a valid handle.
func (s *Signer) probe(one *session) error {
	h := s.current()
	if err := s.openSession(one, h.slot); err != nil {
		return err
	}
	_, err := s.module.GetAttributeValue(one.handle, h.key, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, nil)})
	return failed("C_GetAttributeValue", err)
}

func (s *Signer) current() handles {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles
}

// Close waits for the calls that are inside the module, closes the sessions and finalises the module. A call
// that hangs longer than 5 seconds is left behind with the module as it is, and named in the error.
func (s *Signer) Close() error { return s.closed() }

func (s *Signer) shutDown() error {
	s.mu.Lock() // no repair begins after this
	s.close()
	s.mu.Unlock()
	all, err := s.drain(context.Background())
	if err != nil {
		return fmt.Errorf("close the HSM: %w", err)
	}
	s.repairs.Wait() // it is out of the module, since all sessions are here, and sees that closing has ended
	for _, one := range all {
		if one.open {
			_ = s.module.CloseSession(one.handle) // C_Finalize closes what is left
		}
	}
	return failed("C_Finalize", s.module.Finalize())
}
