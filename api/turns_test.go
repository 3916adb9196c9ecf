package api_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// queueRig is a rig with a signer that makes one signature at a time, when the test permits it.
func queueRig(t *testing.T, most int, options ...func(*api.Options)) (r *rig, sign, signAll func()) {
	permits := make(chan struct{})
	r = newRig(t, append(options, func(o *api.Options) {
		o.Attestor.Concurrency, o.Attestor.MaxWaiting = func() int { return 1 }, most
		o.RequestTimeout = 2 * patience
	})...)
	r.signer.fail(func() error { <-permits; return nil })
	signAll = sync.OnceFunc(func() { close(permits) })
	t.Cleanup(signAll)
	return r, func() { permits <- struct{}{} }, signAll
}

// askMany sends n attestation requests at once, each on its own connection, and returns when the given number waits.
func (r *rig) askMany(token string, n, waiting int) <-chan answer {
	r.Helper()
	answers := make(chan answer, n)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range n {
		go func() {
			a, err := r.try(client, "POST", "http://"+r.address+attestPath, strings.NewReader(good), "x-api-key", token,
				"Content-Type", "application/json")
			if err == nil {
				answers <- a
			}
		}()
	}
	r.untilWaiting(waiting)
	return answers
}

func (r *rig) untilWaiting(n int) {
	r.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); r.attestor.Waiting() != n; <-tick.C {
		if time.Now().After(end) {
			r.Fatalf("%d are waiting, not %d", r.attestor.Waiting(), n)
		}
	}
}

// This test is not parallel: its thousand connections would exhaust the short timeouts of other tests.
func TestAThousandRequestsOfOneKeyHoldUpAnothersByOne(t *testing.T) {
	r, sign, _ := queueRig(t, 1024)
	greedy, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	other, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	r.askMany(greedy, 1001, 1000)
	single := r.askMany(other, 1, 1001)
	for range 3 { // the running one, the greedy key's next, and the other key's
		sign()
	}
	if a := within(t, single); a.status != 200 {
		t.Error(a)
	}
	if n := r.size(); n > 3 {
		t.Errorf("%d were signed before", n)
	}
}

func TestAFullQueueIsSaidAtOnceWithRetryAfter(t *testing.T) {
	t.Parallel()
	r, _, _ := queueRig(t, 4)
	greedy, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Unlimited})
	refused := r.askMany(greedy, 1+4+2, 4)
	for range 2 {
		a := within(t, refused)
		if a.status != 503 || a.problem().Code != appliance.CodeOverloaded || a.header.Get("Retry-After") == "" {
			t.Error(a)
		}
	}
	if n := counted(t, r.registry, "attestd_problems_total", "overloaded"); n != 2 {
		t.Errorf("%v are counted", n)
	}
}

// counted returns the value of a metric with that label.
func counted(t *testing.T, r *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s of %q", name, label)
	return 0
}
