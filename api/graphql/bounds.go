package graphql

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
)

// The process that answers reads also signs. This file bounds the resources of reads. It limits concurrent executions,
// so that signing always finds a free processor. It also limits the memory of answers, from their creation until they
// are sent.

// queueLimit bounds the queue for a semaphore: its length, and the wait. A refused request is told to retry later, and
// holds no memory in the meantime.
type queueLimit struct {
	waiting int64
	wait    time.Duration
}

var defaultLine = queueLimit{256, time.Second}

const (
	// maxForwarded bounds concurrent forwarded requests. They wait for the upstream and use no processor.
	maxForwarded = 64
	// maxIncoming bounds request bodies that are being read, in bytes. Most bodies do not count, because the server has
	// already read them.
	maxIncoming = 16 << 20
)

// slots is a semaphore with a bounded queue and a short maximum wait.
type slots struct {
	free    *semaphore.Weighted
	limit   queueLimit
	waiting atomic.Int64
	refused func()      // counts refusals
	reserve func() bool // reports whether one slot must stay free; nil means never
}

// newExecutions returns the slots for parsing and execution. If atOnce is zero, there is one slot for each processor,
// and one of them stays free while attestations are being signed.
func newExecutions(atOnce int, line queueLimit, attesting func() bool, refused func()) *slots {
	if processors := runtime.GOMAXPROCS(0); atOnce == 0 && processors > 1 && attesting != nil {
		t := newTurns(processors, line, refused)
		t.reserve = attesting
		return t
	} else if atOnce == 0 {
		atOnce = max(1, processors-1)
	}
	return newTurns(atOnce, line, refused)
}

func newTurns(atOnce int, line queueLimit, refused func()) *slots {
	return &slots{free: semaphore.NewWeighted(int64(atOnce)), limit: line, refused: refused}
}

// acquire acquires a slot, which end releases. It returns CodeOverloaded, which it counts as a refusal, or CodeTimeout
// if ctx has ended.
func (t *slots) acquire(ctx context.Context) *document.Error {
	err := t.wait(ctx)
	if err != nil && err.Code() == appliance.CodeOverloaded {
		t.refused()
	}
	return err
}

// wait is take for optional work: it does not count refusals.
func (t *slots) wait(ctx context.Context) *document.Error {
	// Acquiring a second slot and releasing it at once ensures that one is free.
	n := int64(1)
	if t.reserve != nil && t.reserve() {
		n = 2
	}
	if t.free.TryAcquire(n) {
		t.free.Release(n - 1)
		return nil
	}
	defer t.waiting.Add(-1)
	if t.waiting.Add(1) > t.limit.waiting {
		return overloaded()
	}
	within, cancel := context.WithTimeout(ctx, t.limit.wait)
	defer cancel()
	switch err := t.free.Acquire(within, n); {
	case err == nil:
		t.free.Release(n - 1)
		return nil
	case ctx.Err() != nil:
		return givenUp()
	}
	return overloaded()
}

func (t *slots) end() { t.free.Release(1) }

// bounded returns run behind take and end.
func (t *slots) bounded(run func(context.Context) response) func(context.Context) response {
	return func(ctx context.Context) response {
		if err := t.acquire(ctx); err != nil {
			return refused(statusUnavailable, err)
		}
		defer t.end()
		return run(ctx)
	}
}

func overloaded() *document.Error {
	return document.NewError(appliance.CodeOverloaded, "too many concurrent reads: retry later")
}

// smallAnswer is how many bytes of an answer may use the last quarter of the budget. So slow readers of large answers
// cannot block small answers.
const smallAnswer = 1 << 20

// budget bounds the bytes of all answers, from their creation until they are sent.
type budget struct {
	all, large *semaphore.Weighted
	held       atomic.Int64
	refused    func() // counts refusals
}

func newBudget(size int64, refused func()) *budget {
	return &budget{all: semaphore.NewWeighted(size), large: semaphore.NewWeighted(size - size/4), refused: refused}
}

// share is one answer's part of the budget. It is not safe for concurrent use.
type share struct {
	*budget
	size int64
}

// grow enlarges the share to size bytes, and reports whether the budget allows it. A share never shrinks.
func (s *share) grow(size int) bool {
	wanted := int64(size)
	if wanted <= s.size {
		return true
	}
	large := max(wanted-smallAnswer, 0) - max(s.size-smallAnswer, 0)
	if large > 0 && !s.large.TryAcquire(large) {
		s.refused()
		return false
	}
	if !s.all.TryAcquire(wanted - s.size) {
		s.large.Release(large)
		s.refused()
		return false
	}
	s.held.Add(wanted - s.size)
	s.size = wanted
	return true
}

// release returns the share to the budget.
func (s *share) release() {
	if s.size == 0 {
		return
	}
	s.large.Release(max(s.size-smallAnswer, 0))
	s.all.Release(s.size)
	s.held.Add(-s.size)
	s.size = 0
}

// kept is a cached answer that may be sent to many clients at once. It counts against the budget while it is being
// sent, because the cache may evict it in the meantime.
type kept struct {
	body    pieces
	mu      sync.Mutex // guards the fields below
	senders int
	share   share
}

// hold counts a sender. The caller must call release, unless hold returns false.
func (k *kept) hold(of *budget) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.senders == 0 {
		k.share.budget = of
		if !k.share.grow(k.body.capacity()) {
			return false
		}
	}
	k.senders++
	return true
}

func (k *kept) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.senders--; k.senders == 0 {
		k.share.release()
	}
}
