package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/store/storetest"
)

// unlessStopped is the condition of a switch, as of an attestation.
type unlessStopped struct{ *stop.Switch }

func (unlessStopped) Asks(appliance.Record) journal.PastQuery       { return journal.PastQuery{} }
func (u unlessStopped) Decide(appliance.Record, journal.Past) error { return u.Stopped() }

// After a pause at one appliance, the next append at another one is refused, and so is any until resume.
func TestAPauseAtOneApplianceHoldsAtAllAtOnce(t *testing.T) {
	raw, _ := newDatabase(t)
	key := newLogKey(t)
	var journals []audit.Journal
	var switches []unlessStopped
	for range 2 {
		store := open(t, raw, options(key))
		check(t, store.Journal().Ready(t.Context()))
		s, err := stop.New(store, time.Now)
		check(t, err)
		journals, switches = append(journals, store.Journal()), append(switches, unlessStopped{s})
	}
	appends := func(want appliance.Code) {
		t.Helper()
		_, _, err := journals[1].Append(t.Context(), storetest.Record(t, "key"), switches[1])
		if appliance.CodeOf(err) != want {
			t.Errorf("the other appliance appends: %v, want %q", err, want)
		}
	}
	for range 3 {
		appends("")
		check(t, switches[0].Pause(t.Context(), "upgrade", "root"))
		appends(appliance.CodePaused)
		_, err := switches[0].Resume(t.Context())
		check(t, err)
	}
	appends("")
}

// TestOneOfSeveralAppliancesBeginsAHalt has four watchtowers find the same redemption at the same time. The one that
// begins the halt records it.
func TestOneOfSeveralAppliancesBeginsAHalt(t *testing.T) {
	raw, _ := newDatabase(t)
	key := newLogKey(t)
	var switches []*stop.Switch
	for range 4 {
		store := open(t, raw, options(key))
		check(t, store.Journal().Ready(t.Context()))
		s, err := stop.New(store, time.Now)
		check(t, err)
		switches = append(switches, s)
	}
	var began atomic.Int64
	var halting sync.WaitGroup
	for _, s := range switches {
		halting.Go(func() {
			first, err := s.Halt(t.Context(), "a", "an unknown redemption")
			if err != nil {
				t.Error(err)
			}
			if first {
				began.Add(1)
			}
		})
	}
	halting.Wait()
	if n := began.Load(); n != 1 {
		t.Errorf("%d appliances have begun the halt", n)
	}
}
