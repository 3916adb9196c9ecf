package chain

import (
	"errors"
	"testing"
	"time"
)

func TestAnRPCThatFailsIsAskedAgainSeldomer(t *testing.T) {
	t.Parallel()
	f := &feed{c: &watched{w: &Watchtower{o: Options{PollInterval: time.Second}}}}
	retry := f.newRetry()
	failed := errors.New("no answer")
	first, last, longest := f.pause(false, failed, retry), time.Duration(0), time.Duration(0)
	for range 100 {
		last = f.pause(false, failed, retry)
		longest = max(longest, last)
	}
	if first > time.Second || last < 20*time.Second || longest > 2*time.Minute {
		t.Errorf("asked again after %s, at last %s, at most %s", first, last, longest)
	}
	if wait := f.pause(false, &throttled{after: 10 * time.Minute}, retry); wait < 10*time.Minute {
		t.Errorf("Retry-After of 10 m: asked again after %s", wait)
	}
	if wait := f.pause(false, &throttled{after: 1000 * time.Hour}, retry); wait > time.Hour {
		t.Errorf("Retry-After of 1000 h: asked again after %s", wait)
	}
	if wait := f.pause(false, nil, retry); wait != time.Second {
		t.Errorf("an RPC that answers is asked again after %s", wait)
	}
}
