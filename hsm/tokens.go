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
)

// TokenSigner signs with the key of one token; a *worker.Signer is one.
type TokenSigner interface {
	appliance.Signer
	// Status and Usage are as those of Signer.
	Status(ctx context.Context) (Status, error)
	Usage() Usage
	Close() error
}

// Place is where a token stands in the order of Tokens.
type Place struct {
	URI URI
	// Open opens the token and finds its key. It is called again where it fails, unless with ErrPIN.
	Open func(ctx context.Context) (TokenSigner, error)
}

// TokensOptions configure Tokens.
type TokensOptions struct {
	// Expected is the address that the key of every token must have. Nil means that of the tokens that open at the start,
	// which must then agree.
	Expected *appliance.Address
	// CallTimeout is how long a token may take for one call before it counts as hanging, as in worker.Options. A call that
	// takes an eighth of it, and eight times as long as usual, is asked of the next token, too.
	CallTimeout time.Duration
	// Logger logs each change of what is used. Nil means no log.
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

// MostTokens is the most that Tokens takes.
const MostTokens = 8

// Tokens is an appliance.Signer over several tokens that hold the same key. It asks the first that is well. A signature that
// fails there, or that takes too long, it asks of the next while the deadline of the caller lasts; the answer that comes first
// counts. A token that fails is out of use until it has signed trials for a while, in the background. It is safe for
// concurrent use.
//
// Every signer checks its own signatures, and only signers of the one key are asked: so whichever answers is right.
type Tokens struct {
	options   TokensOptions
	publicKey []byte
	address   appliance.Address
	places    []*place

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

// single reports whether there is one token only, which is then used as it is.
func (t *Tokens) single() bool { return len(t.places) == 1 }

// Sign implements appliance.Signer. A context without a deadline gets one of 30 seconds.
func (t *Tokens) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	if t.single() {
		return t.places[0].signer.Sign(ctx, d)
	}
	return ask(ctx, t, func(ctx context.Context, p *place) (appliance.Signature, error) { return p.sign(ctx, d) })
}

// Ready returns nil if a token that is in use answers and has the key.
func (t *Tokens) Ready(ctx context.Context) error {
	if t.single() {
		return t.places[0].signer.Ready(ctx)
	}
	if !t.anyWell() {
		return Unavailable(t.whyNot(), time.Second)
	}
	_, err := ask(ctx, t, func(ctx context.Context, p *place) (struct{}, error) { return struct{}{}, p.opened().Ready(ctx) })
	return err
}

// Close closes all signers, and ends what goes on in the background.
func (t *Tokens) Close() error { return t.closed() }

func (t *Tokens) shutDown() error {
	t.stop()
	failures := make([]error, len(t.places))
	var all sync.WaitGroup
	for i, p := range t.places {
		if signer := p.opened(); signer != nil {
			all.Go(func() { failures[i] = signer.Close() })
		}
	}
	all.Wait()
	t.watching.Wait()
	return errors.Join(failures...)
}

// ask has the first token that is well do something, and the next where that fails or takes too long. It returns the first
// answer. A token that is no longer waited for may answer until the deadline, which tells how it is.
func ask[T any](ctx context.Context, t *Tokens, do func(context.Context, *place) (T, error)) (none T, err error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	type answer struct {
		from  *place
		value T
		err   error
	}
	answers := make(chan answer, len(t.places)) // one of each
	var tried choice
	var failures []error
	for waiting := 0; ; {
		now := t.next(ctx, &tried)
		switch {
		case now.place != nil:
			waiting++
			go func() {
				limit, cancel := detached(ctx)
				defer cancel()
				value, err := do(limit, now.place)
				now.ended(err)
				answers <- answer{now.place, value, err}
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
				over = a.from == now.place || waiting == 0
			case <-now.slow.C:
				now.hangs()
				over = true
			case <-now.left:
				over = true
			case <-ctx.Done():
				return none, TimedOut("a token to answer", errors.Join(append(failures, ctx.Err())...))
			}
		}
	}
}

// turn is a token that is asked. Without a place it is nobody's, and never ends.
type turn struct {
	*place
	began time.Time
	slow  *time.Timer     // when the next is asked as well
	left  <-chan struct{} // closed when the token is taken out of use
}

// next gives the turn to the first token that was not tried: of those that are well or, without any, of those that are open.
func (t *Tokens) next(ctx context.Context, tried *choice) turn {
	for _, mustBeWell := range []bool{true, false} {
		for i, p := range t.places {
			if tried.has(i) || p.opened() == nil || mustBeWell && !p.well() {
				continue
			}
			tried.add(i)
			return turn{place: p, began: time.Now(), slow: time.NewTimer(t.patience(ctx, p, tried)), left: p.leaving()}
		}
	}
	return turn{slow: &time.Timer{}}
}

// patienceParts is of hsm.call_timeout, and of what a signature usually takes: see TokensOptions.
const patienceParts = 8

// patience is how long a token is waited for before the next is asked, too: an eighth of a call's timeout, eight times what it
// usually takes where that is more, and always so little that each of the others may still have as much.
func (t *Tokens) patience(ctx context.Context, p *place, tried *choice) time.Duration {
	wait := max(t.options.CallTimeout/patienceParts, patienceParts*p.usual())
	if end, has := ctx.Deadline(); has { // a trial has none
		others := len(t.places) - tried.count()
		wait = min(wait, time.Until(end)/time.Duration(others+1))
	}
	return wait
}

// choice is some of the tokens.
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

// detached is a context that ends at the deadline, and not before.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	return context.WithDeadline(context.WithoutCancel(ctx), end)
}
