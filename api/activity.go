package api

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/history"
)

// keptSamples is the number of samples that an Activity keeps: 15 minutes, in less than 1 MB.
const keptSamples = 15 * 60

// sampledKeys is the number of API keys that a sample names.
const sampledKeys = 8

// Activity holds one sample of a Server's work for each of the last 15 minutes' seconds. Its methods are safe for
// concurrent use.
type Activity struct {
	beforeRead func() // called before each read

	mu       sync.Mutex
	samples  [keptSamples]wire.Sample // sample n is at n % keptSamples
	taken    int                      // samples added since the start
	next     chan struct{}            // closed when the next sample is added
	watchers int                      // readers that follow
}

func (a *Activity) add(s wire.Sample) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.samples[a.taken%keptSamples] = s
	a.taken++
	close(a.next)
	a.next = make(chan struct{})
}

func (a *Activity) watched() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watchers > 0
}

func (a *Activity) watch(more int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchers += more
}

// each yields the newest samples, at most last of them, oldest first. With follow it also yields each new sample until
// ctx ends. A reader that falls behind by more than keptSamples misses samples.
func (a *Activity) each(ctx context.Context, last int, follow bool, yield func(wire.Sample) error) error {
	if follow {
		a.watch(1)
		defer a.watch(-1)
	}
	a.beforeRead()
	a.mu.Lock()
	at := max(0, a.taken-last)
	a.mu.Unlock()
	for {
		some, next := a.since(&at)
		for _, s := range some {
			if err := yield(s); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// since returns the samples from at on, and a channel that is closed when the next sample is added.
func (a *Activity) since(at *int) (some []wire.Sample, next chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := max(*at, a.taken-keptSamples); i < a.taken; i++ {
		some = append(some, a.samples[i%keptSamples])
	}
	*at = a.taken
	return some, a.next
}

// sampler computes the samples of an Activity from the Prometheus counters, so sampling adds no work to a request.
type sampler struct {
	activity *Activity
	hsm      func() HSMUse // nil if unknown
	keys     accounts[string]

	attestations prometheus.Metric
	latency      prometheus.Metric // a histogram
	reads        []prometheus.Metric
	problems     map[appliance.Code]prometheus.Metric

	asleep atomic.Bool   // the ticker is stopped
	woken  chan struct{} // receives once for each wake-up

	mu   sync.Mutex
	last counts    // guarded by mu
	at   time.Time // time of last; guarded by mu
}

// quietSeconds is the number of seconds without requests and readers after which the sampler stops its ticker, so that
// an idle appliance does no work.
const quietSeconds = 3

// counts are values of the counters that were read together.
type counts struct {
	attestations, reads int64
	latency             *dto.Histogram
	problems            map[appliance.Code]int64
	hsm                 HSMUse
}

// HSMUse is the use of the HSM.
type HSMUse struct {
	InUse      int           // sessions inside a call
	Signatures uint64        // since the start
	SignTime   time.Duration // total time of the Signatures
}

func newSampler(m *metrics, routes []Route, keys accounts[string], hsm func() HSMUse, now func() time.Time) *sampler {
	s := &sampler{
		activity: &Activity{next: make(chan struct{})}, woken: make(chan struct{}, 1), hsm: hsm, keys: keys,
		attestations: m.attestations,
		latency:      m.durations.WithLabelValues(attestPath).(prometheus.Metric),
		problems:     make(map[appliance.Code]prometheus.Metric),
	}
	read := make(map[string]bool)
	for _, r := range routes {
		if r.Read && !read[r.Path] {
			s.reads = append(s.reads, m.durations.WithLabelValues(r.Path).(prometheus.Metric))
			read[r.Path] = true
		}
	}
	for code := range statuses {
		s.problems[code] = m.problems.WithLabelValues(string(code))
	}
	s.last, s.at = s.read(), now()
	s.activity.beforeRead = func() { s.catchUp(now()) }
	return s
}

// run adds one sample per second until ctx ends. It stops its ticker while the server is idle and unwatched. fill later
// adds the samples of the missed seconds.
func (s *sampler) run(ctx context.Context, now func() time.Time) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for quiet := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
			quiet = 0
			tick.Reset(time.Second)
		case <-tick.C:
			if s.sample(now()) || s.activity.watched() {
				quiet = 0
			} else if quiet++; quiet >= quietSeconds {
				s.asleep.Store(true)
				tick.Stop()
				if s.changed() { // a request may have been counted just before asleep was set
					s.wake()
				}
			}
		}
	}
}

// wake restarts the ticker of a sleeping sampler. The server calls it after each request.
func (s *sampler) wake() {
	if s != nil && s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		s.woken <- struct{}{} // never blocks: the sampler sleeps again only after it has received
	}
}

func (s *sampler) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.last.equal(s.read())
}

// catchUp adds the samples of the seconds during which the sampler slept, and wakes it.
func (s *sampler) catchUp(now time.Time) {
	s.mu.Lock()
	s.fill(now)
	s.mu.Unlock()
	s.wake()
}

// fill adds empty samples for all missed seconds but the last. The caller must hold s.mu.
func (s *sampler) fill(now time.Time) {
	if oldest := now.Add(-keptSamples * time.Second); s.at.Before(oldest) {
		s.at = oldest
	}
	for now.Sub(s.at) >= 2*time.Second {
		s.at = s.at.Add(time.Second)
		s.activity.add(wire.Sample{Time: s.at.UTC()})
	}
}

// sample adds a sample. It reports whether a counter changed or an HSM session is in use.
func (s *sampler) sample(now time.Time) (busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fill(now)
	before, here := s.last, s.read()
	s.last, s.at = here, now
	one := work(before, here)
	one.Time = now.UTC()
	if one.Attestations > 0 {
		one.Keys = s.busiest()
	}
	s.activity.add(one)
	return !before.equal(here) || one.InUse > 0
}

// work returns the work between two reads of the counters.
func work(before, here counts) wire.Sample {
	one := wire.Sample{Attestations: here.attestations - before.attestations, Reads: here.reads - before.reads,
		InUse: here.hsm.InUse}
	latency := between(before.latency, here.latency)
	one.P50Seconds, one.P99Seconds = quantile(latency, .5), quantile(latency, .99)
	for code, n := range here.problems {
		if n -= before.problems[code]; n > 0 {
			if one.Errors == nil {
				one.Errors = make(map[appliance.Code]int64)
			}
			one.Errors[code] = n
			if statuses[code] < fiber.StatusInternalServerError {
				one.Refusals += n
			}
		}
	}
	if here.hsm.Signatures > before.hsm.Signatures { // a reload may have replaced the default key
		n := float64(here.hsm.Signatures - before.hsm.Signatures)
		one.HSMSeconds = new((here.hsm.SignTime - before.hsm.SignTime).Seconds() / n)
	}
	return one
}

// Measure returns a function that returns the work since its last call, for a history. It is nil without an Activity.
// The function reads counters only, and does not wake an idle sampler. One goroutine may call it.
func (s *Server) Measure() func() history.Step {
	if s.sampler == nil {
		return nil
	}
	before, at := s.sampler.read(), 0
	return func() history.Step {
		last := before
		before = s.sampler.read()
		one := work(last, before)
		step := history.Step{Attestations: one.Attestations, Refusals: one.Refusals, Errors: -one.Refusals,
			Reads: one.Reads, Sessions: int64(one.InUse),
			Requests:   int64(before.latency.GetSampleCount() - last.latency.GetSampleCount()),
			P50:        orZero(one.P50Seconds),
			P99:        orZero(one.P99Seconds),
			Signatures: max(0, int64(before.hsm.Signatures-last.hsm.Signatures)), HSM: orZero(one.HSMSeconds),
		}
		for _, n := range one.Errors {
			step.Errors += n
		}
		seconds, _ := s.sampler.activity.since(&at)
		for _, second := range seconds {
			step.Sessions = max(step.Sessions, int64(second.InUse))
		}
		return step
	}
}

func orZero(n *float64) float64 {
	if n == nil {
		return 0
	}
	return *n
}

func (c counts) equal(o counts) bool {
	return c.attestations == o.attestations && c.reads == o.reads &&
		c.latency.GetSampleCount() == o.latency.GetSampleCount() && maps.Equal(c.problems, o.problems)
}

func (s *sampler) read() counts {
	c := counts{attestations: int64(written(s.attestations).GetCounter().GetValue()),
		latency: written(s.latency).GetHistogram(), problems: make(map[appliance.Code]int64)}
	for _, m := range s.reads {
		c.reads += int64(written(m).GetHistogram().GetSampleCount())
	}
	for code, m := range s.problems {
		if n := int64(written(m).GetCounter().GetValue()); n > 0 {
			c.problems[code] = n
		}
	}
	if s.hsm != nil {
		c.hsm = s.hsm()
	}
	return c
}

func written(m prometheus.Metric) *dto.Metric {
	var d dto.Metric
	_ = m.Write(&d) // our metrics never fail
	return &d
}

// busiest returns the attestation counts of the busiest API keys since the last call.
func (s *sampler) busiest() map[string]int64 {
	had := make(map[string]int64)
	for id, account := range s.keys.all.All() {
		if n := account.attested.Swap(0); n > 0 {
			had[id] = n
		}
	}
	for len(had) > sampledKeys {
		delete(had, slices.MinFunc(slices.Collect(maps.Keys(had)), func(a, b string) int {
			return cmp.Compare(had[a], had[b])
		}))
	}
	return had
}

// bucket counts the observations above the previous bucket's bound, up to its own.
type bucket struct {
	bound float64
	count uint64
}

// between returns the observations made between two reads of a histogram. Observations above the last bound are counted
// in the last bucket.
func between(before, here *dto.Histogram) (all []bucket) {
	var done uint64
	for i, b := range here.GetBucket() {
		count := b.GetCumulativeCount()
		if i < len(before.GetBucket()) {
			count -= before.GetBucket()[i].GetCumulativeCount()
		}
		all = append(all, bucket{b.GetUpperBound(), count - done})
		done = count
	}
	if total := here.GetSampleCount() - before.GetSampleCount(); len(all) > 0 && total > done {
		all[len(all)-1].count += total - done
	}
	return all
}

// quantile estimates a quantile like Prometheus: observations are evenly spread within a bucket. It returns nil if all
// buckets are empty.
func quantile(all []bucket, q float64) *float64 {
	var total uint64
	for _, b := range all {
		total += b.count
	}
	if total == 0 {
		return nil
	}
	rank, below, seen := q*float64(total), 0., 0.
	for _, b := range all {
		if n := float64(b.count); n > 0 && seen+n >= rank {
			return new(below + (b.bound-below)*(rank-seen)/n)
		}
		below, seen = b.bound, seen+float64(b.count)
	}
	return &below
}
