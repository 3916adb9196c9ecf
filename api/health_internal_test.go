package api

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Of the probes of parts that hang, those that begin the check or join it wait until its end. Later ones do not wait.
func TestOnlyTheFirstProbeOfPartsThatHangWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		r := &readiness{
			check: func(context.Context) map[string]error { <-hang; return nil },
			clock: time.Now, base: t.Context(), logger: slog.New(slog.DiscardHandler),
		}
		probe := func(wait time.Duration) {
			began := time.Now()
			if h := r.now(); h.Status != "unavailable" || time.Since(began) != wait {
				t.Errorf("%q after %s, want unavailable after %s", h.Status, time.Since(began), wait)
			}
		}
		const most = readyTimeout + readyGrace
		var all sync.WaitGroup
		all.Go(func() { probe(most) })
		time.Sleep(time.Second)
		all.Go(func() { probe(most - time.Second) })
		all.Wait()
		for range 3 {
			probe(0)
		}
	})
}
