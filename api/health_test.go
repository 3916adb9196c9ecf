package api_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

func TestTheHSMIsAskedOnceASecondHoweverManyProbe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked atomic.Int64
	r.signer.fail(func() error { asked.Add(1); return nil })
	probe := func(times int) {
		var all sync.WaitGroup
		for range times {
			all.Go(func() {
				if a := r.do("GET", "/readyz", ""); a.status != 200 || string(a.body) != `{"status":"ok"}` {
					t.Error(a)
				}
			})
		}
		all.Wait()
	}
	for second := range int64(3) {
		probe(100)
		r.clock.move(time.Second - time.Millisecond)
		probe(100)
		if n := asked.Load(); n != second+1 {
			t.Fatalf("asked %d times in %d seconds", n, second+1)
		}
		r.clock.move(time.Millisecond)
	}
	if a := r.do("GET", "/readyz", ""); a.status != 200 {
		t.Error(a)
	}
	r.signer.fail(func() error { return appliance.Errorf(appliance.CodeHSMUnavailable, "gone") })
	if a := r.do("GET", "/readyz", ""); a.status != 200 {
		t.Errorf("within the second: %s", a)
	}
	r.clock.move(time.Second)
	if a := r.do("GET", "/readyz", ""); a.status != 503 {
		t.Errorf("after it: %s", a)
	}
}

func TestAProbeOfAnHSMThatHangsIsAnsweredAndOnlyTheFirstWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var asked atomic.Int64
	hang := make(chan struct{})
	r.signer.fail(func() error { asked.Add(1); <-hang; return nil })
	const want = `{"status":"unavailable","failing":{"hsm":"timeout","journal":"timeout"}}`
	for probe := range 5 {
		if a := r.do("GET", "/readyz", ""); a.status != 503 || string(a.body) != want {
			t.Errorf("probe %d: %s", probe, a)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	close(hang)
	for end := time.Now().Add(patience); r.do("GET", "/readyz", "").status != 200; {
		if time.Now().After(end) {
			t.Fatal("not ready again")
		}
	}
	for _, c := range []struct {
		fault  func() error
		status int
	}{{func() error { panic("a defect") }, 503}, {nil, 200}} {
		r.signer.fail(c.fault)
		r.clock.move(time.Second)
		if a := r.do("GET", "/readyz", ""); a.status != c.status {
			t.Errorf("%s, want %d", a, c.status)
		}
	}
}
