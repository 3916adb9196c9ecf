package api_test

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/history"
)

// activityRig is an admin socket with the Activity of its rig's server.
func activityRig(t *testing.T) *adminRig {
	t.Helper()
	o := &adminRig{rig: newRig(t, func(opts *api.Options) {
		opts.HSM = func() api.HSMUse { return api.HSMUse{InUse: 3} }
		opts.Routes = []api.Route{{Method: "GET", Path: "/read", Read: true, Handler: func(c *fiber.Ctx) error {
			return c.SendStatus(fiber.StatusOK)
		}}}
	}), path: t.TempDir() + "/admin.sock", served: make(chan error, 1)}
	o.open(api.AdminOptions{Attestor: o.attestor, Activity: o.server.Activity()})
	return o
}

// total sums samples up, because a sample may end between any two requests.
func total(samples []wire.Sample) wire.Sample {
	sum := wire.Sample{Errors: map[appliance.Code]int64{}, Keys: map[string]int64{}}
	for _, s := range samples {
		sum.Attestations, sum.Reads, sum.InUse = sum.Attestations+s.Attestations, sum.Reads+s.Reads, s.InUse
		for code, n := range s.Errors {
			sum.Errors[code] += n
		}
		for id, n := range s.Keys {
			sum.Keys[id] += n
		}
		if s.P50Seconds != nil {
			sum.P50Seconds, sum.P99Seconds = s.P50Seconds, s.P99Seconds
		}
	}
	return sum
}

func TestSamplesSayWhatWasDone(t *testing.T) {
	t.Parallel()
	o := activityRig(t)
	for range 3 {
		o.attest()
	}
	token, id := o.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	o.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json", "Idempotency-Key", "a")
	// A replay is not counted.
	o.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json", "Idempotency-Key", "a")
	o.do("POST", attestPath, good)
	o.do("GET", "/read", "")
	o.server.Sample()
	var samples []wire.Sample
	o.must(o.client.Activity(t.Context(), 900, false, func(s wire.Sample) error {
		samples = append(samples, s)
		return nil
	}))
	got := total(samples)
	if got.Attestations != 4 || got.Reads != 1 || got.InUse != 3 ||
		!maps.Equal(got.Errors, map[appliance.Code]int64{appliance.CodeMissingAPIKey: 1}) ||
		!maps.Equal(got.Keys, map[string]int64{o.key: 3, id: 1}) {
		t.Errorf("%+v", got)
	}
	if got.P50Seconds == nil || got.P99Seconds == nil || *got.P50Seconds <= 0 || *got.P50Seconds > *got.P99Seconds {
		t.Errorf("p50 %v, p99 %v", got.P50Seconds, got.P99Seconds)
	}
}

// A step of the history counts what was done since the last one, and refusals apart from errors.
func TestAStepOfTheHistorySaysWhatWasDone(t *testing.T) {
	t.Parallel()
	var signed atomic.Int64
	o := newRig(t, func(opts *api.Options) {
		opts.HSM = func() api.HSMUse {
			n := signed.Load()
			return api.HSMUse{InUse: 1, Signatures: uint64(n), SignTime: time.Duration(n) * 4 * time.Millisecond}
		}
	})
	o.attest()
	measure := o.server.Measure()
	for range 3 {
		o.attest()
	}
	signed.Store(2)
	o.do("POST", attestPath, good)
	o.signer.fail(func() error { return appliance.Errorf(appliance.CodeHSMUnavailable, "away") })
	o.do("POST", attestPath, good, "x-api-key", o.token, "Content-Type", "application/json")
	got := measure()
	if got.P50 <= 0 || got.P50 > got.P99 {
		t.Errorf("p50 %v, p99 %v", got.P50, got.P99)
	}
	got.P50, got.P99 = 0, 0
	want := history.Step{Attestations: 3, Refusals: 1, Errors: 1, Requests: 5, Signatures: 2, HSM: .004, Sessions: 1}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := measure(); got != (history.Step{Sessions: 1}) {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestSamplesAreStreamed(t *testing.T) {
	t.Parallel()
	o := activityRig(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seen := errors.New("seen")
	err := o.client.Activity(ctx, 0, true, func(s wire.Sample) error {
		if s.Attestations > 0 {
			return seen
		}
		if s.Reads == 0 { // the stream is open, so the next requests appear in it
			o.attest()
			o.do("GET", "/read", "")
		}
		return nil
	})
	if !errors.Is(err, seen) {
		t.Errorf("%v", err)
	}
}

func TestAnActivityKeepsAQuarterOfAnHour(t *testing.T) {
	t.Parallel()
	o := activityRig(t)
	for range 1000 {
		o.server.Sample()
	}
	for _, c := range []struct{ asked, least, most int }{{5, 5, 5}, {900, 900, 900}, {100_000, 900, 900}, {0, 0, 0}} {
		n := 0
		o.must(o.client.Activity(t.Context(), c.asked, false, func(wire.Sample) error { n++; return nil }))
		if n < c.least || n > c.most {
			t.Errorf("of %d asked for, %d", c.asked, n)
		}
	}
	if err := newAdminRig(t).client.Activity(t.Context(), 1, false, nil); client.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("without samples: %v", err)
	}
}

// The sampler sleeps while the server is idle. The missed seconds appear at the next read.
func TestSecondsThatNobodyUsedAreThere(t *testing.T) {
	t.Parallel()
	o := activityRig(t)
	o.attest()
	o.server.Sample()
	o.clock.move(10 * time.Minute)
	var samples []wire.Sample
	o.must(o.client.Activity(t.Context(), 900, false, func(s wire.Sample) error {
		samples = append(samples, s)
		return nil
	}))
	if n := len(samples); n < 600 || n > 620 || total(samples).Attestations != 1 {
		t.Errorf("%d samples of %d attestations", n, total(samples).Attestations)
	}
	for i := 1; i < len(samples); i++ {
		if samples[i].Time.Before(samples[i-1].Time) {
			t.Fatalf("sample %d is of %s, the one before it of %s", i, samples[i].Time, samples[i-1].Time)
		}
	}
	o.attest()
	o.server.Sample()
	samples = nil
	o.must(o.client.Activity(t.Context(), 900, false, func(s wire.Sample) error {
		samples = append(samples, s)
		return nil
	}))
	if total(samples).Attestations != 2 {
		t.Errorf("%d attestations", total(samples).Attestations)
	}
}

// Quantiles are estimated like in Prometheus: evenly spread within a bucket.
func TestQuantilesAreThoseOfTheSecond(t *testing.T) {
	t.Parallel()
	bounds := []float64{.001, .01, .1}
	for _, c := range []struct {
		name          string
		before, after []uint64 // cumulative; the last is the total
		p50, p99      float64
	}{
		{"in one bucket", []uint64{0, 0, 0, 0}, []uint64{0, 100, 100, 100}, .0055, .00991},
		{"what was before does not count", []uint64{500, 500, 500, 500}, []uint64{500, 600, 600, 600}, .0055, .00991},
		{"in the first", []uint64{0, 0, 0, 0}, []uint64{10, 10, 10, 10}, .0005, .00099},
		{"above the last bound", []uint64{0, 0, 0, 0}, []uint64{0, 0, 0, 10}, .055, .0991},
	} {
		p50, p99 := api.Quantiles(bounds, c.before, c.after)
		if p50 == nil || p99 == nil || !near(*p50, c.p50) || !near(*p99, c.p99) {
			t.Errorf("%s: %v and %v, want %v and %v", c.name, p50, p99, c.p50, c.p99)
		}
	}
	if p50, p99 := api.Quantiles(bounds, []uint64{7, 7, 7, 7}, []uint64{7, 7, 7, 7}); p50 != nil || p99 != nil {
		t.Errorf("of nothing: %v and %v", p50, p99)
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func TestStatusSaysWhetherItSigns(t *testing.T) {
	t.Parallel()
	var stopped atomic.Pointer[appliance.Error]
	o := newAdminRig(t, func(a *attest.Attestor) {
		a.Stopped = func() error {
			if e := stopped.Load(); e != nil {
				return e
			}
			return nil
		}
	})
	o.attest()
	o.tellKeys()
	ask := func() wire.Status {
		t.Helper()
		s, err := o.client.Status(t.Context())
		o.must(err)
		return s
	}
	s := ask()
	if s.Signing != (wire.Signing{State: wire.SigningReady}) || s.Journal.Records != 2 ||
		len(s.Journal.RootHash) != 64 || s.Journal.Newest.IsZero() || s.Journal.LastAudit != nil {
		t.Errorf("%+v", s)
	}
	_, err := o.client.Verify(t.Context(), audit.Options{})
	o.must(err)
	if a := ask().Journal.LastAudit; a == nil || a.Records != 2 || a.Damages != 0 || a.RootHash != s.Journal.RootHash ||
		!a.Time.Equal(o.clock.Now().Truncate(time.Nanosecond)) {
		t.Errorf("the last audit is %+v", a)
	}
	for _, c := range []struct {
		fault *appliance.Error
		state wire.SigningState
		next  string
	}{
		{appliance.Errorf(appliance.CodePaused, "by alice"), wire.SigningPaused, "attestd resume"},
		{appliance.Errorf(appliance.CodeHalted, "of a redemption"), wire.SigningHalted, "attestd chain status"},
	} {
		stopped.Store(c.fault)
		if s := ask(); s.Signing.State != c.state || s.Signing.Remedy != c.next || s.Signing.Why == "" || s.Ready {
			t.Errorf("%v: %+v", c.fault, s.Signing)
		}
	}
	stopped.Store(nil)
	o.signer.fail(func() error { return appliance.Errorf(appliance.CodeHSMUnavailable, "away") })
	if s := ask(); s.Signing.State != wire.SigningFailing || s.Signing.Remedy != "attestd doctor" || s.HSM != nil {
		t.Errorf("%+v", s.Signing)
	}
}
