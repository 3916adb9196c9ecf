package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/worker"
)

// signers holds the attestor keys of a running daemon, each with its tokens. The default key is open from the start.
// Another key whose tokens are away is opened once they return. A reload can change the keys.
type signers struct {
	logger  *slog.Logger
	logins  *worker.Logins
	changed func([]attest.AttestorKey) // called with all keys after each change

	closing context.Context // cancelled by Close
	stop    context.CancelFunc
	working sync.WaitGroup // goroutines that open and close keys

	mu   sync.Mutex // guards the fields below, and those of each key that say so
	keys []*signerKey
}

// signerKey is one attestor key.
type signerKey struct {
	config.AttestorKey           // guarded by signers.mu: a reload may change name and state
	uris               []hsm.URI // of its tokens
	open               func(context.Context) (*hsm.Tokens, error)
	tokens             *hsm.Tokens // guarded by signers.mu; nil while it is not open
	fault              error       // guarded by signers.mu: why it is not open
}

// otherKeysGrace is how long a start waits for the keys other than the default key.
const otherKeysGrace = 5 * time.Second

// openSigners opens the attestor keys. newest is the signer of the journal's newest record, which must be the address
// of a key without a configured address.
func openSigners(ctx context.Context, c *config.Config, newest *appliance.Address, logger *slog.Logger,
	logins *worker.Logins, changed func([]attest.AttestorKey)) (*signers, error) {
	s := &signers{logger: logger, logins: logins, changed: changed}
	s.closing, s.stop = context.WithCancel(context.Background())
	for _, k := range c.AttestorKeys() {
		key, err := s.newKey(c, k, newest)
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, key)
	}
	standard := s.standard()
	tokens, err := standard.open(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.opened(standard, tokens)
	var others sync.WaitGroup
	for _, key := range s.keys {
		if key != standard {
			others.Add(1)
			s.working.Go(func() { s.openUntilWell(key, others.Done) })
		}
	}
	opened := make(chan struct{})
	go func() { others.Wait(); close(opened) }()
	select {
	case <-opened:
	case <-ctx.Done():
	case <-time.After(otherKeysGrace):
	}
	return s, nil
}

// newKey prepares a key without opening it.
func (s *signers) newKey(c *config.Config, k config.AttestorKey, newest *appliance.Address) (*signerKey, error) {
	uris, err := parseTokens(k)
	if err != nil {
		return nil, err
	}
	expected, err := expectedSigner(k, newest)
	if err != nil {
		return nil, err
	}
	logger := s.logger
	if k.Name != "" {
		logger = logger.With("key", k.Name)
	}
	open := tokensOpener(c, k, uris, s.logins, logger)
	return &signerKey{AttestorKey: k, uris: uris, fault: errors.New("still opening"),
		open: func(ctx context.Context) (*hsm.Tokens, error) {
			tokens, err := open(ctx, expected)
			if err == nil {
				if err = CheckSigner(k, tokens.Address(), newest); err != nil {
					err = errors.Join(err, tokens.Close())
				}
			}
			return tokens, err
		}}, nil
}

// openUntilWell opens a key. It retries until that succeeds or only a person can help. It calls tried after the first
// try.
func (s *signers) openUntilWell(key *signerKey, tried func()) {
	const first, most = time.Second, time.Minute
	for pause := first; ; pause = min(2*pause, most) {
		tokens, err := key.open(s.closing)
		if err == nil {
			s.opened(key, tokens)
		} else {
			s.failed(key, err)
		}
		tried()
		tried = func() {}
		_, other := errors.AsType[*OtherKey](err)
		if err == nil || other || errors.Is(err, hsm.ErrPIN) {
			return // only a person can help
		}
		select {
		case <-time.After(pause):
		case <-s.closing.Done():
			return
		}
		if !s.has(key) {
			return
		}
	}
}

func (s *signers) has(key *signerKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.keys, key)
}

func (s *signers) failed(key *signerKey, err error) {
	s.mu.Lock()
	name, again := key.Name, key.fault != nil && key.fault.Error() == err.Error()
	key.fault = err
	s.mu.Unlock()
	if !again && s.closing.Err() == nil {
		s.logger.Error("cannot open attestor key: API keys bound to it cannot attest", "key", name,
			"error", err.Error())
	}
}

// opened makes an open key sign, unless it was removed meanwhile.
func (s *signers) opened(key *signerKey, tokens *hsm.Tokens) {
	s.mu.Lock()
	wanted := slices.Contains(s.keys, key) && s.closing.Err() == nil
	if wanted {
		key.tokens, key.fault = tokens, nil
		s.notifyChanged()
	}
	s.mu.Unlock()
	if !wanted {
		_ = tokens.Close() // it was never used
	}
}

// notifyChanged calls changed with the current keys. The caller holds s.mu.
func (s *signers) notifyChanged() {
	all := make([]attest.AttestorKey, len(s.keys))
	for i, k := range s.keys {
		all[i] = k.asAttestorKey()
	}
	s.changed(all)
}

func (k *signerKey) asAttestorKey() attest.AttestorKey {
	one := attest.AttestorKey{Name: k.Name, State: k.State}
	if k.tokens == nil {
		address, _ := k.Expected() // config requires an address for such a key
		one.Signer = &unopened{address, k.fault}
		return one
	}
	// While the sessions sign, the cores verify earlier signatures.
	one.Signer, one.Concurrency = k.tokens, func() int { return k.tokens.Usage().AtOnce + runtime.GOMAXPROCS(0) }
	return one
}

// unopened is the signer of a key whose tokens have not been opened.
type unopened struct {
	address *appliance.Address
	why     error
}

func (u *unopened) Sign(context.Context, appliance.Digest) (appliance.Signature, error) {
	return appliance.Signature{}, hsm.Unavailable(u.why, time.Second)
}
func (u *unopened) PublicKey() []byte { return nil }
func (u *unopened) Address() (a appliance.Address) {
	if u.address != nil {
		a = *u.address
	}
	return a
}
func (u *unopened) Ready(context.Context) error { return hsm.Unavailable(u.why, time.Second) }

// standard returns the default key.
func (s *signers) standard() *signerKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.keys, func(k *signerKey) bool { return k.State == attest.AttestorKeyActive })
	return s.keys[i] // config.validate guarantees that there is one
}

// tokensOf returns the default key's tokens, which are open.
func (s *signers) tokensOf() *hsm.Tokens {
	key := s.standard()
	s.mu.Lock()
	defer s.mu.Unlock()
	return key.tokens
}

// Address and PublicKey return those of the default key.
func (s *signers) Address() appliance.Address { return s.tokensOf().Address() }
func (s *signers) PublicKey() []byte          { return s.tokensOf().PublicKey() }

// Ready reports whether the default key is ready.
func (s *signers) Ready(ctx context.Context) error { return s.tokensOf().Ready(ctx) }

// Close closes all keys and ends the background goroutines.
func (s *signers) Close() error {
	s.mu.Lock()
	s.stop()
	open := s.keys
	s.keys = nil
	s.mu.Unlock()
	s.working.Wait()
	return closeKeys(open)
}

func closeKeys(keys []*signerKey) error {
	failures := make([]error, len(keys))
	var all sync.WaitGroup
	for i, k := range keys {
		if k.tokens != nil {
			all.Go(func() { failures[i] = k.tokens.Close() })
		}
	}
	all.Wait()
	return errors.Join(failures...)
}

// prepare opens the keys of next that are not open yet. adopt makes them the keys. Removed keys are closed after their
// calls have had time to end.
func (s *signers) prepare(ctx context.Context, next *config.Config,
	newest *appliance.Address) (adopt func(), err error) {
	var keys, made []*signerKey
	for _, k := range next.AttestorKeys() {
		key := s.same(k)
		if key == nil {
			if key, err = s.newKey(next, k, newest); err == nil {
				key.tokens, err = key.open(ctx)
			}
			if err != nil {
				return nil, errors.Join(named(k, err), closeKeys(made))
			}
			made = append(made, key)
		}
		keys = append(keys, key)
	}
	standard := slices.IndexFunc(next.AttestorKeys(), func(k config.AttestorKey) bool {
		return k.State == attest.AttestorKeyActive
	})
	if s.isUnopened(keys[standard]) {
		return nil, errors.Join(fmt.Errorf("hsm.keys: %s cannot be the default: it is not open, see attestd hsm status",
			next.DefaultKey().Name), closeKeys(made))
	}
	return func() { s.adopt(keys, next) }, nil
}

// isUnopened reports whether the tokens of a key are not open yet. A goroutine may still be opening them.
func (s *signers) isUnopened(key *signerKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return key.tokens == nil
}

// same returns the existing key that k describes, perhaps under another name or in another state; nil if there is none.
func (s *signers) same(k config.AttestorKey) *signerKey {
	expected, err := k.Expected()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, have := range s.keys {
		has, _ := have.Expected()
		if have.tokens != nil {
			address := have.tokens.Address()
			has = &address
		}
		sameKey := expected == nil || has != nil && *has == *expected
		if err == nil && sameKey && slices.Equal(have.TokenURIs(), k.TokenURIs()) {
			return have
		}
	}
	return nil
}

// adopt makes these the keys, with the names and states of next.
func (s *signers) adopt(keys []*signerKey, next *config.Config) {
	s.mu.Lock()
	var left []*signerKey
	for _, k := range s.keys {
		if !slices.Contains(keys, k) {
			left = append(left, k)
			s.logger.Info("attestor key removed", "key", k.Name, "address", k.Address)
		}
	}
	for i, k := range next.AttestorKeys() {
		if keys[i].Name != k.Name || keys[i].State != k.State || !slices.Contains(s.keys, keys[i]) {
			s.logger.Info("attestor key", "key", k.Name, "state", string(k.State), "address", k.Address)
		}
		keys[i].AttestorKey = k
		if keys[i].tokens != nil {
			keys[i].fault = nil
		}
	}
	s.keys = keys
	s.notifyChanged()
	s.mu.Unlock()
	if len(left) > 0 {
		s.working.Go(func() { s.leave(left, next.Server.RequestTimeout) })
	}
}

// leave closes keys once no request can be waiting for their signatures.
func (s *signers) leave(keys []*signerKey, after time.Duration) {
	select {
	case <-time.After(after + time.Second):
	case <-s.closing.Done():
	}
	if err := closeKeys(keys); err != nil {
		s.logger.Warn("cannot close a removed attestor key", "error", err.Error())
	}
}

// named adds the name of the key to an error.
func named(k config.AttestorKey, err error) error {
	if err == nil || k.Name == "" {
		return err
	}
	return fmt.Errorf("hsm.keys: %s: %w", k.Name, err)
}
