package api

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// keptSamples is how many samples an Activity keeps: 15 minutes, in less than 1 MB.
const keptSamples = 15 * 60

// sampledKeys is how many API keys a sample names.
const sampledKeys = 8

// Activity is what a Server has done in each of the last seconds. Its methods are safe for concurrent use.
type Activity struct {
	asked func() // called before it is read

	mu       sync.Mutex
	samples  [keptSamples]wire.Sample // the sample n is at n % keptSamples
	taken    int                      // how many there ever were
	next     chan struct{}            // closed with the next sample
	watchers int                      // who wait for that
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

// each yields the last samples, at most that many, oldest first, and with follow each new one, until ctx ends. Who is slower than that by
// keptSamples misses some.
func (a *Activity) each(ctx context.Context, last int, follow bool, yield func(wire.Sample) error) error {
	if follow {
		a.watch(1)
		defer a.watch(-1)
	}
	a.asked()
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

// since returns the samples from at on, and what is closed with the next one.
func (a *Activity) since(at *int) (some []wire.Sample, next chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := max(*at, a.taken-keptSamples); i < a.taken; i++ {
		some = append(some, a.samples[i%keptSamples])
	}
	*at = a.taken
	return some, a.next
}

// sampler takes the samples of an Activity from the counters of the metrics: to be sampled costs a request nothing.
type sampler struct {
	activity *Activity
	inUse    func() int // sessions of the HSM inside a call; nil means that nobody knows
	keys     accounts[string]

	attestations prometheus.Metric
	latency      prometheus.Metric // a histogram
	reads        []prometheus.Metric
	problems     map[appliance.Code]prometheus.Metric

	asleep atomic.Bool   // nobody does anything, nor looks
	woken  chan struct{} // receives once for each time that it is to awake

	mu   sync.Mutex
	last counts    // guarded by mu
	at   time.Time // likewise: of last
}

// quietSeconds is after how many seconds without a request the sampler sleeps: an appliance that nobody asks does nothing.
const quietSeconds = 3

// counts are the counters as they were read together.
type counts struct {
	attestations, reads int64
	latency             *dto.Histogram
	problems            map[appliance.Code]int64
}

func newSampler(m *metrics, routes []Route, keys accounts[string], inUse func() int, now func() time.Time) *sampler {
	s := &sampler{
		activity: &Activity{next: make(chan struct{})}, woken: make(chan struct{}, 1), inUse: inUse, keys: keys, attestations: m.attestations,
		latency: m.durations.WithLabelValues(attestPath).(prometheus.Metric), problems: make(map[appliance.Code]prometheus.Metric),
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
	s.activity.asked = func() { s.catchUp(now()) }
	return s
}

// run takes a sample a second until ctx ends. While nothing happens and nobody looks it sleeps, and makes up for that when it is woken.
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
				if s.changed() { // just now, by who did not see that it sleeps
					s.wake()
				}
			}
		}
	}
}

// wake is called after each request.
func (s *sampler) wake() {
	if s != nil && s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		s.woken <- struct{}{} // which has room: it sleeps again only once it has received
	}
}

func (s *sampler) changed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.last.equal(s.read())
}

// catchUp adds the samples of seconds that were slept through, and wakes the sampler.
func (s *sampler) catchUp(now time.Time) {
	s.mu.Lock()
	s.fill(now)
	s.mu.Unlock()
	s.wake()
}

// fill adds samples of nothing for the seconds before the last one. It is for those who hold s.mu.
func (s *sampler) fill(now time.Time) {
	if oldest := now.Add(-keptSamples * time.Second); s.at.Before(oldest) {
		s.at = oldest
	}
	for now.Sub(s.at) >= 2*time.Second {
		s.at = s.at.Add(time.Second)
		s.activity.add(wire.Sample{Time: s.at.UTC()})
	}
}

// sample takes a sample, and says whether anything was done.
func (s *sampler) sample(now time.Time) (busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fill(now)
	before, here := s.last, s.read()
	s.last, s.at = here, now
	one := wire.Sample{Time: now.UTC(), Attestations: here.attestations - before.attestations, Reads: here.reads - before.reads}
	latency := between(before.latency, here.latency)
	one.P50Seconds, one.P99Seconds = quantile(latency, .5), quantile(latency, .99)
	for code, n := range here.problems {
		if n -= before.problems[code]; n > 0 {
			if one.Errors == nil {
				one.Errors = make(map[appliance.Code]int64)
			}
			one.Errors[code] = n
		}
	}
	if s.inUse != nil {
		one.InUse = s.inUse()
	}
	if one.Attestations > 0 {
		one.Keys = s.busiest()
	}
	s.activity.add(one)
	return !before.equal(here) || one.InUse > 0
}

func (c counts) equal(o counts) bool {
	return c.attestations == o.attestations && c.reads == o.reads && c.latency.GetSampleCount() == o.latency.GetSampleCount() && maps.Equal(c.problems, o.problems)
}

func (s *sampler) read() counts {
	c := counts{attestations: int64(written(s.attestations).GetCounter().GetValue()), latency: written(s.latency).GetHistogram(), problems: make(map[appliance.Code]int64)}
	for _, m := range s.reads {
		c.reads += int64(written(m).GetHistogram().GetSampleCount())
	}
	for code, m := range s.problems {
		if n := int64(written(m).GetCounter().GetValue()); n > 0 {
			c.problems[code] = n
		}
	}
	return c
}

func written(m prometheus.Metric) *dto.Metric {
	var d dto.Metric
	_ = m.Write(&d) // fails for no metric of ours
	return &d
}

// busiest returns the attestations of the API keys that had most since it was last called.
func (s *sampler) busiest() map[string]int64 {
	had := make(map[string]int64)
	for id, account := range s.keys.all.All() {
		if n := account.attested.Swap(0); n > 0 {
			had[id] = n
		}
	}
	for len(had) > sampledKeys {
		delete(had, slices.MinFunc(slices.Collect(maps.Keys(had)), func(a, b string) int { return cmp.Compare(had[a], had[b]) }))
	}
	return had
}

// bucket counts the observations up to a bound, and above the one before.
type bucket struct {
	bound float64
	count uint64
}

// between are the observations between two looks at a histogram; those above the last bound are put there.
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

// quantile estimates a quantile as Prometheus does: evenly spread within a bucket. Nil means that there is nothing.
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
