package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/stop"
)

// TestOneOfSeveralAppliancesBeginsAHalt has four watchtowers find the same redemption at the same time. The one that begins the halt
// records it.
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
