package hsm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
)

// tokenSlot is the slot of one token of Tokens. Its goroutine, watch, opens the token if it is not open, and signs
// trials.
type tokenSlot struct {
	TokenSlot
	number int // from 1
	tokens *Tokens

	mu         sync.Mutex // guards the fields below
	signer     TokenSigner
	out        error         // why the token is out of use; nil while it is in use
	final      bool          // it is never reopened
	since      time.Time     // start of the current state
	returned   bool          // it was out of use before
	left       chan struct{} // closed when the token is taken out of use
	calm       time.Duration // how long it must sign trials before it is used again
	answered   time.Time     // time of the last signature
	usually    time.Duration // usual time of a signature: a moving average
	handedOver uint64        // calls for which another token was also asked
}

// Timing of the return of a token that is out of use. These are not configurable.
const (
	trialPause = time.Second      // between two trials of a token that is out of use
	idlePause  = 15 * time.Second // a token without signatures for this long signs a trial
	// time of successful trials before the token is used again; doubles if it fails soon after
	leastCalm  = 5 * time.Second
	mostCalm   = 5 * time.Minute
	leastRetry = time.Second // before another attempt to open a token; doubles
	mostRetry  = time.Minute
)

// opened returns the token's signer, nil before the token was opened.
func (p *tokenSlot) opened() TokenSigner {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signer
}

// well reports whether the token is in use and ready. If its signer knows of a fault, well takes the token out of use.
func (p *tokenSlot) well() bool {
	p.mu.Lock()
	signer, out := p.signer, p.out
	p.mu.Unlock()
	if signer == nil || out != nil {
		return false
	}
	ready := signer.Usage().Ready
	if !ready && !p.tokens.single() { // a single token has no replacement
		p.leave(knownFault(signer))
	}
	return ready
}

// knownFault returns the fault of a signer that is not ready, without asking the token.
func knownFault(signer TokenSigner) error {
	ended, end := context.WithCancel(context.Background())
	end()
	if err := signer.Ready(ended); err != nil {
		return err
	}
	return errors.New("the HSM worker was not ready")
}

// leaving returns a channel that is closed when the token is taken out of use; nil if it is out of use.
func (p *tokenSlot) leaving() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil {
		return nil
	}
	return p.left
}

// usual returns how long a signature usually takes; 0 before the first.
func (p *tokenSlot) usual() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.usually
}

// sign signs and updates the token's statistics. If all tokens are out of use, the first that signs is used again at
// once.
func (p *tokenSlot) sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	began := time.Now()
	signature, err := p.opened().Sign(ctx, d)
	if err != nil {
		return signature, err
	}
	p.mu.Lock()
	p.answered = time.Now()
	// Bounded, so that one call that hung does not lengthen the wait for later ones.
	took := min(p.answered.Sub(began), p.tokens.options.CallTimeout/patienceParts)
	p.usually += (took - p.usually) / 8
	out := p.out != nil
	p.mu.Unlock()
	if out && !p.tokens.anyWell() {
		p.enter()
	}
	return signature, nil
}

// ended takes the token out of use after an error. After a timeout it does so only if the token is silent; see hangs.
func (t signRequest) ended(err error) {
	switch {
	case err == nil:
	case appliance.CodeOf(err) == appliance.CodeTimeout:
		t.hangs()
	default:
		t.leave(err)
	}
}

// hangs takes the token out of use if it has signed nothing since the attempt began.
func (t signRequest) hangs() {
	t.mu.Lock()
	silent := !t.answered.After(t.began)
	t.mu.Unlock()
	if silent {
		t.leave(fmt.Errorf("no signature within %s", time.Since(t.began).Round(time.Millisecond)))
	}
}

// leave takes the token out of use.
func (p *tokenSlot) leave(cause error) {
	if p.tokens.closing.Err() != nil {
		return
	}
	cause = causeOf(cause)
	p.mu.Lock()
	if p.out != nil {
		p.mu.Unlock()
		return
	}
	if p.returned && time.Since(p.since) < 10*p.calm {
		p.calm = min(2*p.calm, mostCalm)
	} else {
		p.calm = leastCalm
	}
	p.out, p.since = cause, time.Now()
	close(p.left)
	p.mu.Unlock()
	level := slog.LevelWarn
	if serious(cause) {
		level = slog.LevelError
	}
	p.log(level, "HSM token out of use", "err", cause.Error(), "well", p.tokens.countWell())
}

// enter puts the token back into use.
func (p *tokenSlot) enter() {
	p.mu.Lock()
	if p.out == nil {
		p.mu.Unlock()
		return
	}
	away := time.Since(p.since)
	p.out, p.since, p.left, p.returned = nil, time.Now(), make(chan struct{}), true
	p.mu.Unlock()
	p.log(slog.LevelInfo, "HSM token in use again", "away", away.Round(time.Millisecond).String(),
		"well", p.tokens.countWell())
}

func (p *tokenSlot) log(level slog.Level, message string, attributes ...any) {
	p.tokens.options.Logger.Log(context.Background(), level, message,
		append([]any{"position", p.number, "token", p.label()}, attributes...)...)
}

// watch monitors the token until Close.
func (p *tokenSlot) watch() {
	for p.tokens.closing.Err() == nil {
		signer, left := p.opened(), p.leaving()
		switch {
		case signer == nil:
			p.openLater()
		case left == nil:
			p.tryUntilWell()
		default:
			p.watchWell(left)
		}
	}
}

// watchWell returns once the token is out of use.
func (p *tokenSlot) watchWell(left <-chan struct{}) {
	tick := time.NewTicker(trialPause)
	defer tick.Stop()
	for {
		select {
		case <-left:
			return
		case <-p.tokens.closing.Done():
			return
		case <-tick.C:
		}
		if !p.well() {
			return
		}
		p.mu.Lock()
		idle := time.Since(p.answered) >= idlePause
		p.mu.Unlock()
		if !idle {
			continue
		}
		if _, err := p.try(); err != nil {
			p.leave(err)
		}
	}
}

// tryUntilWell has a token that is out of use sign trials. Once trials have succeeded without a fault for calm, it puts
// the token back into use. If no other token is in use, one trial is enough.
func (p *tokenSlot) tryUntilWell() {
	var good time.Time // start of the current run of successful trials
	for sleep(p.tokens.closing, p.tokens.closing, trialPause) {
		if p.leaving() != nil {
			return // all tokens were out of use, and a client's signature has put this one back
		}
		took, err := p.try()
		if err != nil || took > p.tokens.patience(context.Background(), p, nil) {
			good = time.Time{}
			p.worse(err)
			continue
		}
		if good.IsZero() {
			good = time.Now()
		}
		p.mu.Lock()
		calm := time.Since(good) >= p.calm
		p.mu.Unlock()
		if calm || !p.tokens.anyWell() {
			p.enter()
			return
		}
	}
}

// try has the token sign a trial and checks the signature.
func (p *tokenSlot) try() (took time.Duration, err error) {
	signer := p.opened()
	before := signer.Usage()
	if !before.Ready {
		return 0, knownFault(signer)
	}
	ctx, cancel := context.WithTimeout(p.tokens.closing, p.tokens.options.CallTimeout)
	defer cancel()
	began := time.Now()
	if _, err := p.sign(ctx, appliance.TrialDigest()); err != nil {
		return 0, err
	}
	if signer.Usage().WrongSignatures != before.WrongSignatures {
		return 0, ErrWrongKey
	}
	return time.Since(began), nil
}

// openLater retries opening the token until it succeeds or the failure is final.
func (p *tokenSlot) openLater() {
	if p.isFinal() {
		<-p.tokens.closing.Done()
		return
	}
	for pause := leastRetry; sleep(p.tokens.closing, p.tokens.closing, jitter(pause)); pause = min(2*pause, mostRetry) {
		signer, err := p.open(p.tokens.closing)
		if p.admit(signer, err) || p.isFinal() {
			return
		}
	}
}

func (p *tokenSlot) isFinal() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.final
}

// openTimeout bounds the time to open a token; a network HSM may need seconds.
const openTimeout = time.Minute

func (p *tokenSlot) open(ctx context.Context) (TokenSigner, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return p.Open(ctx)
}

// admit accepts an opened token if it has the key. The token must sign trials before it is used.
func (p *tokenSlot) admit(signer TokenSigner, err error) bool {
	if err == nil && signer.Address() != p.tokens.address {
		err = otherKey(signer.Address(), p.tokens.address)
		_ = signer.Close() // never used
	}
	if err != nil {
		p.worse(err)
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tokens.closing.Err() != nil { // Close did not see this signer
		go func() { _ = signer.Close() }()
		return false
	}
	p.signer, p.out = signer, errors.New("the token was just opened and makes trial signatures first")
	return true
}

func otherKey(is, expected appliance.Address) error {
	return fmt.Errorf("%w: the key's address is %s, not %s", ErrOtherKey, is, expected)
}

// serious reports whether an error needs an operator.
func serious(err error) bool {
	return errors.Is(err, ErrOtherKey) || errors.Is(err, ErrWrongKey) || errors.Is(err, ErrPIN)
}

// worse records why a token cannot be used, if that is the first reason, or the first serious one, and logs it once.
func (p *tokenSlot) worse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || p.tokens.closing.Err() != nil || p.out != nil && (serious(p.out) || !serious(err)) {
		return
	}
	p.out, p.final = causeOf(err), errors.Is(err, ErrPIN)
	if serious(err) {
		p.log(slog.LevelError, "HSM token refused", "err", p.out.Error())
		return
	}
	p.log(slog.LevelWarn, "HSM token could not be opened and is retried", "err", p.out.Error())
}

// causeOf returns the operator's cause of an error with a text for clients.
func causeOf(err error) error {
	if e, ok := errors.AsType[*appliance.Error](err); ok && e.Cause != nil {
		return e.Cause
	}
	return err
}
