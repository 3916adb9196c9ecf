package attest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// slowSigner takes a fixed time per signature and records its concurrency. A real token cannot be slow on demand.
type slowSigner struct {
	attest.Signer
	each time.Duration

	mu           sync.Mutex
	inside, most int
}

func (s *slowSigner) Sign(context.Context, appliance.Digest) (appliance.Signature, error) {
	s.mu.Lock()
	s.inside++
	s.most = max(s.most, s.inside)
	s.mu.Unlock()
	time.Sleep(s.each)
	s.mu.Lock()
	s.inside--
	s.mu.Unlock()
	return appliance.Signature{}, nil
}

// queue is an attestor of which only the fair queue and the signer are used, in a synctest bubble.
type queue struct {
	*attest.Attestor
	signer *slowSigner
	order  chan string // API keys in the order of their signed calls
	failed chan error
}

func newQueue(limit, most int) *queue {
	s := &slowSigner{each: 100 * time.Millisecond}
	return &queue{
		&attest.Attestor{Signer: s, Concurrency: func() int { return limit }, MaxWaiting: most},
		s, make(chan string, 10_000), make(chan error, 10_000),
	}
}

// call makes n concurrent calls of a key, and returns once each is queued, signed or refused.
func (q *queue) call(key string, n int, patience time.Duration) {
	for range n {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := q.Sign(ctx, key); err != nil {
				q.failed <- err
				return
			}
			q.order <- key
		}()
		synctest.Wait()
	}
}

// signed returns the keys in the order of their signatures.
func (q *queue) signed() (keys []string) {
	for len(q.order) > 0 {
		keys = append(keys, <-q.order)
	}
	return keys
}

func TestAPIKeysTakeTurns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit int
		asks  []string // in this order, one call each, except 500 calls of greedy
		want  []string // the first signed calls
	}{
		{"alone, in its order", 1, []string{"a", "a", "b"}, []string{"a", "a", "b"}},
		{"one beside a greedy one", 1, []string{"greedy", "a"}, []string{"greedy", "greedy", "a", "greedy"}},
		{"some beside a greedy one", 1, []string{"greedy", "a", "b", "a"},
			[]string{"greedy", "greedy", "a", "b", "greedy", "a", "greedy"}},
		{"several at once", 2, []string{"greedy", "a", "b"},
			[]string{"greedy", "greedy", "greedy", "a", "b", "greedy"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(c.limit, 1000)
				for _, key := range c.asks {
					q.call(key, map[bool]int{true: 500, false: 1}[key == "greedy"], time.Hour)
				}
				time.Sleep(time.Hour)
				got := q.signed()[:len(c.want)]
				for i := 0; i < len(got); i += c.limit { // calls that are admitted together end in any order
					slices.Sort(got[i:min(i+c.limit, len(got))])
					slices.Sort(c.want[i:min(i+c.limit, len(got))])
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("signed for %v, want %v", got, c.want)
				}
				if q.signer.most != c.limit {
					t.Errorf("%d at once, want %d", q.signer.most, c.limit)
				}
			})
		})
	}
}

func TestWhoCannotBeServedInTimeIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1000)
		q.call("greedy", 100, time.Hour) // ten seconds of work
		time.Sleep(5*time.Second + time.Millisecond)
		begin := time.Now()
		q.call("greedy", 1, time.Second)
		if time.Since(begin) != 0 || len(q.failed) != 1 {
			t.Fatalf("after %s, %d refused", time.Since(begin), len(q.failed))
		}
		err := <-q.failed
		e, ok := errors.AsType[*appliance.Error](err)
		if !ok || e.Code != appliance.CodeOverloaded || e.RetryAfter < 4*time.Second || e.RetryAfter > 6*time.Second {
			t.Errorf("%+v", err)
		}
		if !q.Saturated() {
			t.Error("saturated is not said")
		}
		q.call("other", 1, time.Second) // is admitted soon
		time.Sleep(time.Second)
		if len(q.failed) != 0 || !slices.Contains(q.signed(), "other") {
			t.Error("another key's call was not served in its second")
		}
		time.Sleep(time.Minute)
		if q.Saturated() || q.Waiting() != 0 {
			t.Errorf("saturated %v, %d waiting, when all is done", q.Saturated(), q.Waiting())
		}
		q.call("greedy", 1, time.Second)
		time.Sleep(time.Second)
		if len(q.failed) != 0 {
			t.Errorf("and then: %v", <-q.failed)
		}
	})
}

func TestAFullQueueMakesRoomForAKeyWithLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 10)
		q.call("greedy", 1+10+5, time.Hour) // one signs, ten are queued
		if n := len(q.failed); n != 5 {
			t.Fatalf("%d refused, want 5", n)
		}
		q.call("a", 1, time.Hour)
		q.call("b", 5, time.Hour) // four displace one call each; then both queues would be equally long
		if n := len(q.failed); n != 5+1+4+1 || q.Waiting() != 10 {
			t.Errorf("%d refused, %d waiting", n, q.Waiting())
		}
		for len(q.failed) > 0 {
			if err := <-q.failed; appliance.CodeOf(err) != appliance.CodeOverloaded {
				t.Error(err)
			}
		}
		time.Sleep(time.Hour)
		count := map[string]int{}
		for _, key := range q.signed() {
			count[key]++
		}
		if fmt.Sprint(count) != "map[a:1 b:4 greedy:6]" {
			t.Errorf("signed for %v", count)
		}
	})
}

func TestWhoLeavesTheQueueHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1000)
		q.signer.each = time.Minute
		q.call("slow", 1, time.Hour)
		q.call("gone", 50, time.Second)
		time.Sleep(2 * time.Second)
		if n := len(q.failed); n != 50 || q.Waiting() != 0 {
			t.Fatalf("%d left, %d waiting", n, q.Waiting())
		}
		if err := <-q.failed; appliance.CodeOf(err) != appliance.CodeTimeout {
			t.Error(err)
		}
		q.call("next", 1, time.Hour)
		time.Sleep(time.Hour)
		if got := q.signed(); !slices.Equal(got, []string{"slow", "next"}) {
			t.Errorf("signed for %v", got)
		}
	})
}

// The cost of the fair queue for a call that need not wait.
func BenchmarkTurns(b *testing.B) {
	for _, c := range []struct {
		name        string
		concurrency func() int
	}{{"without", nil}, {"with", func() int { return 1 << 20 }}} {
		b.Run(c.name, func(b *testing.B) {
			a := &attest.Attestor{Signer: &slowSigner{}, Concurrency: c.concurrency}
			ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				_ = a.Sign(ctx, "key")
			}
		})
	}
}
