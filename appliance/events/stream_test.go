package events_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
)

// empty is a journal without entries.
type empty struct{ journal.LogKey }

func (e empty) Checkpoint(context.Context) ([]byte, error) {
	return journal.SignCheckpoint(tlog.Tree{}, e.Signer)
}

func (empty) Entries(context.Context, int64, func(journal.Entry) error) error { return nil }

func TestAStreamIsSilentForAtMostAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, _, err := journal.NewLogKey(origin)
		if err != nil {
			t.Fatal(err)
		}
		hub := events.NewHub(events.Options{Journal: empty{key}, Verifier: key.Verifier})
		s, err := hub.Open(t.Context(), events.Viewer{Operator: true}, events.Filter{}, events.Position{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range 3 {
			began := time.Now()
			text, n, ok := s.Next(t.Context())
			if !ok || n != 0 || !strings.HasPrefix(string(text), ": heartbeat\nid: log=") {
				t.Fatalf("%d events, %v: %s", n, ok, text)
			}
			if waited := time.Since(began); waited != events.HeartbeatEvery {
				t.Errorf("a heartbeat after %s", waited)
			}
		}
	})
}

// grown is a journal whose one entry is there once it has grown.
type grown struct {
	journal.LogKey
	entry journal.Entry
	size  *atomic.Int64
}

func (g grown) Checkpoint(context.Context) ([]byte, error) {
	return journal.SignCheckpoint(tlog.Tree{N: g.size.Load()}, g.Signer)
}

func (g grown) Entries(_ context.Context, _ int64, yield func(journal.Entry) error) error {
	return yield(g.entry)
}

// A reader takes 2 ms to write its event. The next stream's turn begins then, or after a rest of three times as long.
func TestStreamsRestWhileTheApplianceAttests(t *testing.T) {
	for attesting, want := range map[bool]time.Duration{false: 2 * time.Millisecond, true: 8 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			key, _, err := journal.NewLogKey(origin)
			if err != nil {
				t.Fatal(err)
			}
			first := entry(t, journal.EventStarted, nil)
			first.Index = 0
			log := grown{key, first, new(atomic.Int64)}
			hub := events.NewHub(events.Options{Journal: log, Verifier: key.Verifier,
				Attesting: func() bool { return attesting }})
			ctx, cancel := context.WithCancel(t.Context())
			began := make(chan time.Time, 2)
			var streams sync.WaitGroup
			for range cap(began) {
				s, err := hub.Open(ctx, events.Viewer{Operator: true}, events.Filter{}, events.Position{})
				if err != nil {
					t.Fatal(err)
				}
				streams.Go(func() {
					defer s.Close()
					if _, n, _ := s.Next(ctx); n == 0 {
						t.Error("no event")
					}
					began <- time.Now()
					time.Sleep(2 * time.Millisecond) // it writes
					_, _, _ = s.Next(ctx)
				})
			}
			synctest.Wait() // the streams wait for an event
			log.size.Store(1)
			one, other := <-began, <-began
			if got := other.Sub(one); got != want {
				t.Errorf("attesting %t: the second turn begins after %s, not %s", attesting, got, want)
			}
			cancel()
			streams.Wait()
			time.Sleep(time.Second) // the timers of turns
		})
	}
}
