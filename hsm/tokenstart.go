package hsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// startGrace is how long OpenTokens waits for the other tokens once one is open. Tokens open by then are compared with
// each other, later ones with these.
const startGrace = 5 * time.Second

// OpenTokens opens all tokens concurrently. It returns once all have opened or failed, or startGrace after a token with
// the right key has opened. It retries failed tokens in the background. A single token is used without additions.
//
// Errors: the errors of Open if no token opens; ErrOtherKey if no token has the expected key, or if no key is expected
// and the tokens have different ones.
func OpenTokens(ctx context.Context, order []TokenSlot, options TokensOptions) (*Tokens, error) {
	if len(order) == 0 || len(order) > MostTokens {
		return nil, fmt.Errorf("open the tokens: 1 to %d are allowed, not %d", MostTokens, len(order))
	}
	t := &Tokens{options: options.withDefaults()}
	t.closing, t.stop = context.WithCancel(context.Background())
	t.closed = sync.OnceValue(t.shutDown)
	for i, o := range order {
		t.slots = append(t.slots,
			&tokenSlot{TokenSlot: o, number: i + 1, tokens: t, since: time.Now(), left: make(chan struct{}),
				calm: leastCalm})
	}
	var err error
	if t.single() {
		err = t.openOne(ctx, t.slots[0])
	} else {
		err = t.openAll(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tokens) openOne(ctx context.Context, p *tokenSlot) (err error) {
	if p.signer, err = p.Open(ctx); err != nil {
		return err
	}
	t.publicKey, t.address = p.signer.PublicKey(), p.signer.Address()
	return nil
}

// opening is the result of opening a token.
type opening struct {
	*tokenSlot
	signer TokenSigner
	err    error
}

func (t *Tokens) openAll(ctx context.Context) error {
	ended := make(chan opening, len(t.slots))
	for _, p := range t.slots {
		t.watching.Go(func() {
			signer, err := p.open(t.closing)
			ended <- opening{p, signer, err}
		})
	}
	early, err := t.gather(ctx, ended)
	if err == nil {
		err = t.choose(early)
	}
	if err != nil {
		t.stop()
		t.watching.Wait()
		close(ended)
		for o := range ended {
			early = append(early, o)
		}
		return errors.Join(err, closeAll(early))
	}
	for _, o := range early {
		o.begin()
		t.watching.Go(o.watch)
	}
	t.watching.Go(func() {
		for range len(t.slots) - len(early) {
			o := <-ended
			o.admit(o.signer, o.err)
			t.watching.Go(o.watch)
		}
	})
	return nil
}

// gather returns the tokens that have opened or failed. It ends when all have, or startGrace after one with the right
// key has opened.
func (t *Tokens) gather(ctx context.Context, ended <-chan opening) (early []opening, err error) {
	var grace <-chan time.Time
	for len(early) < len(t.slots) {
		select {
		case o := <-ended:
			early = append(early, o)
			if grace == nil && o.err == nil && t.fits(o.signer) {
				grace = time.After(startGrace)
			}
		case <-grace:
			return early, nil
		case <-ctx.Done():
			return early, fmt.Errorf("open the tokens: %w", errors.Join(ctx.Err(), failuresOf(early)))
		}
	}
	return early, nil
}

func (t *Tokens) fits(signer TokenSigner) bool {
	return t.options.Expected == nil || signer.Address() == *t.options.Expected
}

// choose takes the key from the open tokens.
func (t *Tokens) choose(early []opening) error {
	slices.SortFunc(early, func(a, b opening) int { return a.number - b.number })
	var told []string
	agree := true
	for i, o := range early {
		switch {
		case o.err != nil:
		case !t.fits(o.signer):
			early[i].err = otherKey(o.signer.Address(), *t.options.Expected)
		case t.publicKey == nil:
			t.publicKey, t.address = o.signer.PublicKey(), o.signer.Address()
			fallthrough
		default:
			agree = agree && o.signer.Address() == t.address
			told = append(told, fmt.Sprintf("token %d, %s, has %s", o.number, o.label(), o.signer.Address()))
		}
	}
	switch {
	case t.publicKey == nil:
		return failuresOf(early)
	case !agree:
		return fmt.Errorf("the tokens have different keys: %s; set hsm.address to the right one (%w)",
			strings.Join(told, "; "), ErrOtherKey)
	}
	return nil
}

// begin sets the token's initial state.
func (o opening) begin() {
	if o.err == nil {
		o.tokenSlot.signer = o.signer
		return
	}
	_ = closeAll([]opening{o}) // never used
	o.worse(o.err)
}

func failuresOf(all []opening) error {
	var failures []error
	for _, o := range all {
		if o.err != nil {
			failures = append(failures, fmt.Errorf("token %d, %s: %w", o.number, o.label(), o.err))
		}
	}
	return errors.Join(failures...)
}

func closeAll(all []opening) error {
	var failures []error
	for _, o := range all {
		if o.signer != nil {
			failures = append(failures, o.signer.Close())
		}
	}
	return errors.Join(failures...)
}
