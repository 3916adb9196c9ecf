package worker

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/attestd/attestd/hsm"
)

// Logins makes the keys of one token share their logins: a PIN that the token refused for one key is not tried for another, only one
// worker logs in at a time, and none loads the library meanwhile, which may find the token half written. The zero value is ready.
type Logins struct {
	mu     sync.Mutex
	tokens map[string]*shared // by the URI without its key
}

// shared is what the keys of a token have in common.
type shared struct {
	gate *gate
	door chan struct{} // has a place for the one worker that opens the token
}

// of returns what the keys of a URI's token share; with a gate of its own, and no door, without Logins.
func (l *Logins) of(u hsm.URI) (*gate, chan struct{}) {
	if l == nil {
		return newGate(u.ReadPIN), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u.Object, u.ID = "", nil
	if l.tokens == nil {
		l.tokens = make(map[string]*shared)
	}
	name := u.String()
	t := l.tokens[name]
	if t == nil {
		t = &shared{newGate(u.ReadPIN), make(chan struct{}, 1)}
		l.tokens[name] = t
	}
	if t.gate.outdated() {
		t.gate = newGate(u.ReadPIN)
	}
	return t.gate, t.door
}

// enter waits until no other key of the token is being opened.
func (a *attempts) enter(ctx context.Context) (leave func(), err error) {
	if a.door == nil {
		return func() {}, nil
	}
	select {
	case a.door <- struct{}{}:
		return func() { <-a.door }, nil
	case <-ctx.Done():
		return nil, hsm.TimedOut("another key of the token to be opened", ctx.Err())
	}
}

// outdated says whether a PIN was refused and another one is there now.
func (g *gate) outdated() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.final == nil {
		return false
	}
	pin, err := g.read()
	if err != nil {
		return false
	}
	defer pin.Wipe()
	return !hmac.Equal(g.sum(pin.Bytes()), g.tried)
}

// gate hands the PIN to workers, one login at a time. A PIN that a worker was refused is never handed over again, whichever
// worker asks; nor is one that never was right and whose login a worker did not live to tell of.
type gate struct {
	read func() (*hsm.PIN, error)

	mu     sync.Mutex
	key    []byte        // of the sums, so that they tell nothing of the PIN
	holder *process      // is logging in
	freed  chan struct{} // closed when the holder has told how that went
	tried  []byte        // sum of the PIN that the holder has
	right  []byte        // sum of the PIN that was right last
	final  error         // why no PIN is handed over any more
}

func newGate(read func() (*hsm.PIN, error)) *gate {
	key := make([]byte, 32)
	rand.Read(key) // never fails (Go 1.24)
	return &gate{read: read, key: key}
}

// hand answers kindWantPIN.
func (g *gate) hand(p *process) {
	g.wait(p)
	pin, err := g.admit(p)
	if err != nil {
		_ = wire{p.pin}.send(frame{kind: kindPIN, payload: encodeError(err)}) // where this fails, the worker is gone
		return
	}
	defer pin.Wipe()
	if (wire{p.pin}).send(frame{kind: kindPIN, id: uint32(len(pin.Bytes()))}) == nil {
		_, _ = p.pin.Write(pin.Bytes())
	}
}

// mostLogin is how long another key's login is waited for.
const mostLogin = 3 * time.Second

// wait waits while the worker of another key logs in to the token.
func (g *gate) wait(p *process) {
	late := time.NewTimer(mostLogin)
	defer late.Stop()
	for {
		g.mu.Lock()
		holder, freed := g.holder, g.freed
		g.mu.Unlock()
		if holder == nil || holder.signer == p.signer {
			return
		}
		select {
		case <-freed:
		case <-holder.exited:
			return
		case <-p.exited:
			return
		case <-late.C:
			return
		}
	}
}

func (g *gate) admit(p *process) (*hsm.PIN, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.final != nil {
		return nil, g.final
	}
	if g.holder != nil && g.holder != p && !g.holder.ended() {
		return nil, errors.New("another worker is still inside C_Login")
	}
	pin, err := g.read()
	if err != nil {
		return nil, err
	}
	sum := g.sum(pin.Bytes())
	if g.holder != nil && hmac.Equal(sum, g.tried) && !hmac.Equal(sum, g.right) {
		g.final = fmt.Errorf("%w: the HSM worker ended inside C_Login, and whether the token refused the PIN is not known; "+
			"it is not tried again, since tokens lock after a few wrong ones: check the PIN, then restart", hsm.ErrPIN)
		pin.Wipe()
		return nil, g.final
	}
	g.holder, g.freed, g.tried = p, make(chan struct{}), sum
	return pin, nil
}

func (g *gate) sum(pin []byte) []byte {
	h := hmac.New(sha256.New, g.key)
	h.Write(pin)
	return h.Sum(nil)
}

// told is called with what C_Login gave.
func (g *gate) told(p *process, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder != p {
		return
	}
	g.holder = nil
	close(g.freed)
	switch {
	case err == nil:
		g.right = g.tried
		p.logins.Store(true)
	case errors.Is(err, hsm.ErrPIN):
		g.final = err
	}
}

// ended reports whether the process is no more.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
