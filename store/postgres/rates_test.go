package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/postgres"
)

func TestABucketGivesEachSecondOnce(t *testing.T) {
	stores := openStores(t, 2)
	want := []appliance.RateWant{{KeyID: "b", Time: 300 * time.Millisecond, Burst: time.Second},
		{KeyID: "a", Time: 100 * time.Millisecond, Burst: time.Second}}
	began := time.Now()
	var mu sync.Mutex
	var given [2]time.Duration
	var wg sync.WaitGroup
	for _, s := range stores {
		for range 20 {
			wg.Go(func() {
				got, err := s.Rates().Lease(t.Context(), want)
				if err != nil || len(got) != 2 {
					t.Errorf("%v, %v", got, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range given {
					given[i] += got[i]
				}
			})
		}
	}
	wg.Wait()
	earned := time.Second + time.Since(began)
	for i, g := range given {
		if g < time.Second-time.Millisecond || g > earned+time.Millisecond {
			t.Errorf("bucket %s gave %s, want a second and what was earned since (%s)", want[i].KeyID, g, earned)
		}
	}
}

func TestARequestThatTakesLongerThanASecondIsLeasedWhole(t *testing.T) {
	s := openStores(t, 1)[0]
	minute := []appliance.RateWant{{KeyID: "a", Time: 2 * time.Minute, Burst: time.Minute}}
	began := time.Now()
	first, err := s.Rates().Lease(t.Context(), minute)
	if err != nil || first[0] < time.Minute-time.Second || first[0] > time.Minute+time.Millisecond {
		t.Errorf("%v, %v, want a minute", first, err)
	}
	second, err := s.Rates().Lease(t.Context(), minute)
	if earned := time.Since(began); err != nil || second[0] > earned+time.Millisecond {
		t.Errorf("%v, %v, want what was earned since (%s)", second, err, earned)
	}
}

// openStores opens a new database for several appliances.
func openStores(t *testing.T, n int) []*postgres.Store {
	t.Helper()
	url, _ := newDatabase(t)
	key := newLogKey(t)
	stores := make([]*postgres.Store, n)
	for i := range stores {
		stores[i] = open(t, url, options(key))
	}
	return stores
}
