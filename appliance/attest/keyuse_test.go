package attest_test

import (
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/attest"
)

func TestKeyUseIsThatOfThePastDay(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 22, 12, 7, 0, 0, time.UTC)
	var u attest.KeyUse
	for _, at := range []time.Duration{0, time.Minute, 15 * time.Minute, 5 * time.Minute, /* noted late */
		-25 * time.Hour /* too late */} {
		u.Count("a", start.Add(at))
	}
	u.Count("b", start.Add(-time.Hour))
	for _, c := range []struct {
		after time.Duration
		want  map[string]map[int]uint32 // by key and step
	}{
		{16 * time.Minute, map[string]map[int]uint32{"a": {94: 3, 95: 1}, "b": {90: 1}}},
		{12 * time.Hour, map[string]map[int]uint32{"a": {47: 3, 48: 1}, "b": {43: 1}}},
		{23*time.Hour + 50*time.Minute, map[string]map[int]uint32{"a": {0: 3, 1: 1}}},
		{24 * time.Hour, map[string]map[int]uint32{"a": {0: 1}}},
		{25 * time.Hour, nil},
	} {
		got, until := u.Days(start.Add(c.after))
		if want := start.Add(c.after).Truncate(attest.KeyUseStep).Add(attest.KeyUseStep); !until.Equal(want) {
			t.Errorf("after %s the newest step ends at %s, want %s", c.after, until, want)
		}
		if len(got) != len(c.want) {
			t.Errorf("after %s: %v, want %v", c.after, got, c.want)
		}
		for key, steps := range got {
			for i, n := range steps {
				if n != c.want[key][i] || len(steps) != attest.KeyUseSteps {
					t.Errorf("after %s, key %s, step %d of %d: %d, want %d", c.after, key, i, len(steps), n,
						c.want[key][i])
				}
			}
		}
	}
}

func TestKeyUseCountsEachOfManyAtOnce(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var u attest.KeyUse
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				u.Count("a", now)
				u.Days(now)
			}
		})
	}
	all.Wait()
	if got, _ := u.Days(now); got["a"][attest.KeyUseSteps-1] != 800 {
		t.Errorf("%v, want 800", got)
	}
}
