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

// The process that answers reads also signs. What is here bounds what reads take of it together: how many are executed at once, so
// that signing finds a processor at any time, and how many bytes of answers there are, made or being made, until they are sent.

// line bounds those that wait for their turn: how many, and for how long. Who is refused is told to come again, and holds nothing
// meanwhile.
type line struct {
	waiting int64
	wait    time.Duration
}

var defaultLine = line{256, time.Second}

const (
	// maxForwarded is how many requests are forwarded at once. They wait for the upstream, and take no processor.
	maxForwarded = 64
	// maxIncoming bounds the bodies of requests that are being read. Most take nothing of it, for the server has read them already.
	maxIncoming = 16 << 20
)

// defaultExecutions leaves one processor to signing, where there is more than one.
func defaultExecutions() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// turns bounds how many do something at once. Others wait in line, for a short time.
type turns struct {
	free    *semaphore.Weighted
	line    line
	waiting atomic.Int64
	refused func() // counts
}

func newTurns(atOnce int, line line, refused func()) *turns {
	return &turns{free: semaphore.NewWeighted(int64(atOnce)), line: line, refused: refused}
}

// take waits for a turn, to be given back by end. Its error is overloaded, which is counted, or that ctx has ended.
func (t *turns) take(ctx context.Context) *document.Error {
	err := t.wait(ctx)
	if err != nil && err.Code() == appliance.CodeOverloaded {
		t.refused()
	}
	return err
}

// wait is take for those who can do without.
func (t *turns) wait(ctx context.Context) *document.Error {
	if t.free.TryAcquire(1) {
		return nil
	}
	defer t.waiting.Add(-1)
	if t.waiting.Add(1) > t.line.waiting {
		return overloaded()
	}
	within, cancel := context.WithTimeout(ctx, t.line.wait)
	defer cancel()
	switch err := t.free.Acquire(within, 1); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return givenUp()
	}
	return overloaded()
}

func (t *turns) end() { t.free.Release(1) }

// bounded runs something when it has a turn.
func (t *turns) bounded(run func(context.Context) response) func(context.Context) response {
	return func(ctx context.Context) response {
		if err := t.take(ctx); err != nil {
			return refused(statusUnavailable, err)
		}
		defer t.end()
		return run(ctx)
	}
}

func overloaded() *document.Error {
	return document.NewError(appliance.CodeOverloaded, "too many reads at once: try again later")
}

// smallAnswer is how many bytes an answer may take of the last quarter of the budget, which is kept for such: who reads large
// answers slowly does not keep others from small ones.
const smallAnswer = 1 << 20

// budget is how many bytes answers may take, from when they are made until they are sent.
type budget struct {
	all, large *semaphore.Weighted
	held       atomic.Int64
	refused    func() // counts
}

func newBudget(size int64, refused func()) *budget {
	return &budget{all: semaphore.NewWeighted(size), large: semaphore.NewWeighted(size - size/4), refused: refused}
}

// share is what one answer holds of the budget. It is not safe for concurrent use.
type share struct {
	*budget
	size int64
}

// grow makes the share as large as that, if the budget has it. A share does not shrink.
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

// release gives the share back.
func (s *share) release() {
	if s.size == 0 {
		return
	}
	s.large.Release(max(s.size-smallAnswer, 0))
	s.all.Release(s.size)
	s.held.Add(-s.size)
	s.size = 0
}

// kept is an answer that may be sent to many at once. It holds its bytes of the budget while it is sent, for meanwhile it may
// be kept no longer.
type kept struct {
	body    pieces
	mu      sync.Mutex // protects what follows
	senders int
	share   share
}

// hold must be followed by release, unless it returns false.
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
