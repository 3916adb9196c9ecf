package hsm

import (
	"context"
	"errors"
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// TokenSigner signs with the key of one token. *worker.Signer implements it.
type TokenSigner interface {
	attest.Signer
	// Status and Usage are as in Signer.
	Status(ctx context.Context) (Status, error)
	Usage() Usage
	Close() error
}

// TokenSlot is a token's slot in the order of Tokens.
type TokenSlot struct {
	URI URI
	// Open opens the token and finds its key. After a failure it is called again, unless the error is ErrPIN.
	Open func(ctx context.Context) (TokenSigner, error)
}

// TokensOptions configure Tokens.
type TokensOptions struct {
	// Expected is the address that the key of every token must have. Nil means the address of the tokens that open at
	// the start, which must then agree.
	Expected *appliance.Address
	// CallTimeout is how long a token may take for one call before it counts as hung, as in worker.Options. If a call
	// takes longer than an eighth of CallTimeout and eight times the usual time, the next token is asked, too. The
	// caller's deadline may shorten this wait. Zero means 3 seconds.
	CallTimeout time.Duration
	// Logger logs each change of the tokens in use. Nil means no log.
	Logger *slog.Logger
}

func (o TokensOptions) withDefaults() TokensOptions {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = 3 * time.Second
	}
	return o
}

// MostTokens is the largest number of tokens in Tokens.
const MostTokens = 8

// Tokens is an attest.Signer over several tokens that hold the same key. It asks the first token in use. If that
// token fails or takes too long, Tokens also asks the next, while the caller's deadline lasts. The first signature
// counts. A failed token is out of use until it has signed trials in the background for a while. Tokens is safe for
// concurrent use.
//
// Every signer checks its own signatures, and only signers of the one key are asked. Any signature is therefore right.
type Tokens struct {
	options   TokensOptions
	publicKey []byte
	address   appliance.Address
	slots     []*tokenSlot

	closing  context.Context // cancelled by Close
	stop     context.CancelFunc
	watching sync.WaitGroup
	closed   func() error
}

var _ TokenSigner = (*Tokens)(nil)

// PublicKey returns the public key: 65 bytes, SEC 1 uncompressed.
func (t *Tokens) PublicKey() []byte { return slices.Clone(t.publicKey) }

// Address returns the key's address.
func (t *Tokens) Address() appliance.Address { return t.address }

// single reports whether there is only one token. Its signer is then used directly.
func (t *Tokens) single() bool { return len(t.slots) == 1 }

// Sign implements attest.Signer. A context without a deadline gets a deadline of 30 seconds.
func (t *Tokens) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	if t.single() {
		return t.slots[0].signer.Sign(ctx, d)
	}
	return firstAnswer(ctx, t, func(ctx context.Context, p *tokenSlot) (appliance.Signature, error) {
		return p.sign(ctx, d)
	})
}

// Ready returns nil if a token in use answers and has the key.
func (t *Tokens) Ready(ctx context.Context) error {
	if t.single() {
		return t.slots[0].signer.Ready(ctx)
	}
	if !t.anyWell() {
		return Unavailable(t.whyNot(), time.Second)
	}
	_, err := firstAnswer(ctx, t, func(ctx context.Context, p *tokenSlot) (struct{}, error) {
		return struct{}{}, p.opened().Ready(ctx)
	})
	return err
}

// Close closes all signers and ends the background goroutines.
func (t *Tokens) Close() error { return t.closed() }

func (t *Tokens) shutDown() error {
	t.stop()
	failures := make([]error, len(t.slots))
	var all sync.WaitGroup
	for i, p := range t.slots {
		if signer := p.opened(); signer != nil {
			all.Go(func() { failures[i] = signer.Close() })
		}
	}
	all.Wait()
	t.watching.Wait()
	return errors.Join(failures...)
}

// firstAnswer calls do with the first token in use, and with the next if that fails or takes too long. It returns the
// first success. A token that is no longer waited for may still answer until the deadline, and its answer updates its
// state.
func firstAnswer[T any](ctx context.Context, t *Tokens,
	do func(context.Context, *tokenSlot) (T, error)) (none T, err error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	type answer struct {
		from  *tokenSlot
		value T
		err   error
	}
	answers := make(chan answer, len(t.slots)) // one from each token
	var tried choice
	var failures []error
	var slow *tokenSlot // took too long, and no other token was asked since
	for waiting := 0; ; {
		now := t.next(ctx, &tried)
		switch {
		case now.tokenSlot != nil:
			waiting++
			if slow != nil {
				slow.mu.Lock()
				slow.handedOver++
				slow.mu.Unlock()
				slow = nil
			}
			go func() {
				limit, cancel := detached(ctx)
				defer cancel()
				value, err := do(limit, now.tokenSlot)
				now.ended(err)
				answers <- answer{now.tokenSlot, value, err}
			}()
			defer now.slow.Stop()
		case waiting == 0:
			return none, Unavailable(errors.Join(failures...), time.Second)
		}
		for over := false; !over; {
			select {
			case a := <-answers:
				if a.err == nil {
					return a.value, nil
				}
				waiting--
				failures = append(failures, a.err)
				over = a.from == now.tokenSlot || waiting == 0
			case <-now.slow.C:
				now.hangs()
				slow, over = now.tokenSlot, true
			case <-now.left:
				over = true
			case <-ctx.Done():
				return none, TimedOut("a token to answer", errors.Join(append(failures, ctx.Err())...))
			}
		}
	}
}

// signRequest is one request sent to a token. Without a token slot it never ends.
type signRequest struct {
	*tokenSlot
	began time.Time
	slow  *time.Timer     // fires when the next token is asked, too
	left  <-chan struct{} // closed when the token is taken out of use
}

// next returns an attempt at the first untried token in use. If no such token is left, it takes an open one.
func (t *Tokens) next(ctx context.Context, tried *choice) signRequest {
	for _, mustBeWell := range []bool{true, false} {
		for i, p := range t.slots {
			if tried.has(i) || p.opened() == nil || mustBeWell && !p.well() {
				continue
			}
			tried.add(i)
			return signRequest{tokenSlot: p, began: time.Now(), slow: time.NewTimer(t.patience(ctx, p, tried)),
				left: p.leaving()}
		}
	}
	return signRequest{slow: &time.Timer{}}
}

// patienceParts divides CallTimeout and multiplies the usual time; see TokensOptions.
const patienceParts = 8

// patience returns how long to wait for a token before the next is asked, too. It is an eighth of CallTimeout or eight
// times the usual time, whichever is longer. It never exceeds an equal share of the time to the deadline for each
// remaining token.
func (t *Tokens) patience(ctx context.Context, p *tokenSlot, tried *choice) time.Duration {
	wait := max(t.options.CallTimeout/patienceParts, patienceParts*p.usual())
	if end, has := ctx.Deadline(); has { // trials have no deadline
		others := len(t.slots) - tried.count()
		wait = min(wait, time.Until(end)/time.Duration(others+1))
	}
	return wait
}

// choice is a set of tokens.
type choice uint64

func (c *choice) has(i int) bool { return *c&(1<<i) != 0 }
func (c *choice) add(i int)      { *c |= 1 << i }
func (c *choice) count() int     { return bits.OnesCount64(uint64(*c)) }

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, standardLimits.call)
}

// detached returns a context that ends at the deadline, regardless of cancellation.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}
