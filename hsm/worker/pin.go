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

// Logins makes the keys of one token share their logins. A PIN that the token refused for one key is not tried for
// another. Only one worker logs in at a time. Meanwhile no other worker loads the library, which might find the token
// half written. The zero value is ready.
type Logins struct {
	mu     sync.Mutex
	tokens map[string]*shared // by the URI without its key
}

// shared is the state that the keys of a token share.
type shared struct {
	gate *pinGate
	door chan struct{} // a semaphore of one: held by the worker that opens the token
}

// of returns the shared state of a URI's token. If l is nil, it returns a new pinGate and a nil door.
func (l *Logins) of(u hsm.URI) (*pinGate, chan struct{}) {
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

// outdated reports whether a PIN was refused and the PIN file has changed since then.
func (g *pinGate) outdated() bool {
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

// pinGate gives the PIN to workers, one login at a time. It never gives out a PIN again that any worker was refused. It
// also withholds a PIN that has never succeeded if a worker ended during the login with it.
type pinGate struct {
	read func() (*hsm.PIN, error)

	mu     sync.Mutex
	key    []byte        // of the sums, so that they reveal no information about the PIN
	holder *process      // the worker that is logging in
	freed  chan struct{} // closed when the holder has reported the result
	tried  []byte        // sum of the holder's PIN
	right  []byte        // sum of the last PIN that succeeded
	final  error         // why no PIN is given out any more
}

func newGate(read func() (*hsm.PIN, error)) *pinGate {
	key := make([]byte, 32)
	rand.Read(key) // never fails (Go 1.24)
	return &pinGate{read: read, key: key}
}

// giveTo answers kindWantPIN.
func (g *pinGate) giveTo(p *process) {
	g.wait(p)
	pin, err := g.admit(p)
	if err != nil {
		_ = wire{p.pin}.send(frame{kind: kindPIN, payload: encodeError(err)}) // if this fails, the worker is gone
		return
	}
	defer pin.Wipe()
	if (wire{p.pin}).send(frame{kind: kindPIN, id: uint32(len(pin.Bytes()))}) == nil {
		_, _ = p.pin.Write(pin.Bytes())
	}
}

// mostLogin bounds the wait for another key's login.
const mostLogin = 3 * time.Second

// wait waits while the worker of another key logs in to the token.
func (g *pinGate) wait(p *process) {
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

func (g *pinGate) admit(p *process) (*hsm.PIN, error) {
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
		g.final = fmt.Errorf("%w: the HSM worker ended inside C_Login, and the token may have refused the PIN; "+
			"attestd does not retry it, because tokens lock after a few wrong PINs: check the PIN, then restart",
			hsm.ErrPIN)
		pin.Wipe()
		return nil, g.final
	}
	g.holder, g.freed, g.tried = p, make(chan struct{}), sum
	return pin, nil
}

func (g *pinGate) sum(pin []byte) []byte {
	h := hmac.New(sha256.New, g.key)
	h.Write(pin)
	return h.Sum(nil)
}

// loginEnded records the result of C_Login.
func (g *pinGate) loginEnded(p *process, err error) {
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

// ended reports whether the process has ended.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
