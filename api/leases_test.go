package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// buckets is the shared store of rates, in simulated time. The database's implementation is tested in its own package.
type buckets struct {
	now    time.Time
	paid   map[string]time.Time
	broken error
}

func (b *buckets) Lease(_ context.Context, wants []appliance.RateWant) ([]time.Duration, error) {
	given := make([]time.Duration, len(wants))
	for i, w := range wants {
		paid := b.paid[w.KeyID]
		if paid.Before(b.now) {
			paid = b.now
		}
		given[i] = min(w.Time, max(0, b.now.Add(w.Burst).Sub(paid)))
		b.paid[w.KeyID] = paid.Add(given[i])
	}
	return given, b.broken
}

// load simulates appliances that receive more requests than a key's rate.
type load struct {
	appliances int
	rate       float64
	answer     int // milliseconds until a lease arrives
	share      int // number of appliances that receive requests; zero means all
}

// run returns the number of requests that pass in the given number of seconds.
func (l load) run(b *buckets, seconds int) (passed int) {
	rate := appliance.Rate{PerSecond: l.rate}
	limiters := make([]*api.SharedLimiter, l.appliances)
	for i := range limiters {
		limiters[i] = api.NewSharedLimiter(b)
	}
	asked := l.share
	if asked == 0 {
		asked = l.appliances
	}
	for ms := range seconds * 1000 {
		for i, limiter := range limiters[:asked] {
			for limiter.Take("a", rate, b.now) == 0 {
				passed++
			}
			if ms%l.answer == i%l.answer {
				limiter.Lease(context.Background())
			}
		}
		b.now = b.now.Add(time.Millisecond)
	}
	return passed
}

func TestAKeysRateHoldsForSeveralAppliances(t *testing.T) {
	for _, l := range []load{
		{appliances: 1, rate: 50, answer: 10},
		{appliances: 2, rate: 50, answer: 10},
		{appliances: 3, rate: 50, answer: 10},
		{appliances: 2, rate: 50, answer: 50},
		{appliances: 3, rate: 1000, answer: 20},
		{appliances: 2, rate: 1, answer: 10},
		{appliances: 2, rate: 50, answer: 10, share: 1},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			b := &buckets{now: time.Unix(1_800_000_000, 0), paid: map[string]time.Time{}}
			const seconds = 20
			passed := float64(l.run(b, seconds))
			allowed := (seconds + 1) * l.rate // plus one second's burst
			block := max(1, l.rate/10)
			if passed < 0.9*allowed-block || passed > 1.1*allowed+block {
				t.Errorf("%.0f requests passed, want %.0f, give or take a tenth and %.0f", passed, allowed, block)
			}
		})
	}
}

func TestAnApplianceLimitsByItselfWhileNobodyLeases(t *testing.T) {
	b := &buckets{now: time.Unix(1_800_000_000, 0), paid: map[string]time.Time{}, broken: errors.New("away")}
	const seconds, rate = 5, 50
	if passed := (load{appliances: 1, rate: rate, answer: 10}).run(b, seconds); passed < seconds*rate ||
		passed > (seconds+1)*rate {
		t.Errorf("%d requests passed, want %d", passed, seconds*rate)
	}
	b.broken = nil
	if passed := (load{appliances: 2, rate: rate, answer: 10}).run(b, seconds); passed > (seconds+1)*rate*11/10 {
		t.Errorf("%d requests passed once there was somebody again, want %d", passed, (seconds+1)*rate)
	}
}

func TestRatesOfDifferentKeysAreApart(t *testing.T) {
	b := &buckets{now: time.Unix(1_800_000_000, 0), paid: map[string]time.Time{}}
	limiter, one := api.NewSharedLimiter(b), appliance.Rate{PerSecond: 1}
	for _, key := range []string{"a", "b"} {
		if wait := limiter.Take(key, one, b.now); wait != 0 {
			t.Errorf("%s waits for %s", key, wait)
		}
	}
	for range 1000 {
		if wait := limiter.Take("c", appliance.Unlimited, b.now); wait != 0 {
			t.Fatalf("an unlimited key waits for %s", wait)
		}
	}
}
