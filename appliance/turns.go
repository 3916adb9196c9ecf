package appliance

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// DefaultMaxWaiting is how many calls wait for the signer where Attestor.MaxWaiting is zero.
const DefaultMaxWaiting = 1024

// turns lets calls through to the signer, so many at once, and has others wait in turn: the oldest of one API key, then the oldest
// of the next. A key with a thousand calls waiting holds up another key's one by a single call. Who would wait past the deadline
// is told at once. The zero value is ready.
type turns struct {
	mu      sync.Mutex
	inside  int
	waiting int
	lines   []*line          // of API keys with calls that wait; the first is next
	ofKey   map[string]*line // the same
	hold    time.Duration    // how long a call is inside: a moving average
	shed    time.Time        // when a call was last refused
}

// line is the calls of one API key that wait, the oldest first. It has at least one.
type line struct {
	key   string
	calls []*waitingCall
}

type waitingCall struct {
	done    chan struct{} // closed when its turn has come, or it is refused for another key's
	refused error
}

// enter waits for the turn of a call of that API key, where limit are let through at once and most may wait. After nil, leave must
// follow.
//
// Errors: CodeOverloaded, CodeTimeout.
func (t *turns) enter(ctx context.Context, key string, limit, most int) error {
	t.mu.Lock()
	t.advance(limit)
	if t.inside < limit {
		t.inside++
		t.mu.Unlock()
		return nil
	}
	c, err := t.join(ctx, key, limit, most)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.refused
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-c.done:
		if c.refused == nil { // its turn came at the same moment: the next one's
			t.inside--
			t.advance(limit)
		}
	default:
		t.remove(key, c)
	}
	return Errorf(CodeTimeout, "the HSM did not get to this request in time").Because(fmt.Errorf("wait for a turn: %w", context.Cause(ctx)))
}

// leave ends a call that has entered, which took so long.
func (t *turns) leave(took time.Duration, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold += (took - t.hold) / 8
	t.inside--
	t.advance(limit)
}

// advance lets in whose turn it is. It holds t.mu, as do all below.
func (t *turns) advance(limit int) {
	for t.inside < limit && t.waiting > 0 {
		next := t.lines[0]
		c := next.calls[0]
		t.lines, next.calls = t.lines[1:], next.calls[1:]
		if len(next.calls) > 0 {
			t.lines = append(t.lines, next)
		} else {
			delete(t.ofKey, next.key)
		}
		t.waiting--
		t.inside++
		close(c.done)
	}
}

// join has a call wait, unless that would last too long.
func (t *turns) join(ctx context.Context, key string, limit, most int) (*waitingCall, error) {
	own := t.ofKey[key]
	length := 0
	if own != nil {
		length = len(own.calls)
	}
	wait := t.expected(length, limit)
	if end, has := ctx.Deadline(); has && time.Until(end) < wait {
		return nil, t.overloaded(limit)
	}
	if t.waiting >= most && !t.displace(length, limit) {
		return nil, t.overloaded(limit)
	}
	if own == nil {
		own = &line{key: key}
		if t.ofKey == nil {
			t.ofKey = make(map[string]*line)
		}
		t.ofKey[key], t.lines = own, append(t.lines, own)
	}
	c := &waitingCall{done: make(chan struct{})}
	own.calls = append(own.calls, c)
	t.waiting++
	return c, nil
}

// expected returns how long a call waits behind so many of its own API key.
func (t *turns) expected(length, limit int) time.Duration {
	before := 1
	for _, l := range t.lines {
		before += min(len(l.calls), length+1)
	}
	return t.hold * time.Duration(before) / time.Duration(max(limit, 1))
}

// displace refuses the newest call of the longest line, if that stays longer than one of length calls and a new one.
func (t *turns) displace(length, limit int) bool {
	longest := slices.MaxFunc(t.lines, func(a, b *line) int { return len(a.calls) - len(b.calls) })
	if len(longest.calls) <= length+1 {
		return false
	}
	c := longest.calls[len(longest.calls)-1]
	c.refused = t.overloaded(limit)
	t.remove(longest.key, c)
	close(c.done)
	return true
}

func (t *turns) remove(key string, c *waitingCall) {
	l := t.ofKey[key]
	l.calls = slices.DeleteFunc(l.calls, func(one *waitingCall) bool { return one == c })
	t.waiting--
	if len(l.calls) == 0 {
		delete(t.ofKey, key)
		t.lines = slices.DeleteFunc(t.lines, func(one *line) bool { return one == l })
	}
}

// overloaded is the answer to a call that is not to wait: it may be repeated when those who wait now have been served.
func (t *turns) overloaded(limit int) error {
	t.shed = time.Now()
	e := Errorf(CodeOverloaded, "more attestations are asked for than the HSM can sign in time")
	e.RetryAfter = max(time.Second, t.hold*time.Duration(t.waiting+1)/time.Duration(max(limit, 1)))
	return e
}

// saturated says whether half of those who may wait do, or a call was refused in the last second.
func (t *turns) saturated(most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return 2*t.waiting >= most || time.Since(t.shed) < time.Second
}

func (t *turns) length() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}
