package events_test

import (
	"context"
	"strings"
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
			text, n, ok := s.Next(t.Context(), nil)
			if !ok || n != 0 || !strings.HasPrefix(string(text), ": heartbeat\nid: log=") {
				t.Fatalf("%d events, %v: %s", n, ok, text)
			}
			if waited := time.Since(began); waited != events.HeartbeatEvery {
				t.Errorf("a heartbeat after %s", waited)
			}
		}
	})
}
