package api_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/stop"
)

// eventJournal keeps events in memory, or fails.
type eventJournal struct {
	audit.Journal
	mu     sync.Mutex
	fails  bool
	events []journal.Event
}

func (j *eventJournal) AppendEvent(_ context.Context, e journal.Event) (journal.Entry, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fails {
		return journal.Entry{}, appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available")
	}
	j.events = append(j.events, e)
	return journal.Entry{Event: &e}, nil
}

func (j *eventJournal) fail(fails bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fails = fails
}

// named returns the number of events of a kind that have the detail.
func (j *eventJournal) named(kind journal.EventKind, detail, value string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.Kind == kind && e.Details[detail] == value {
			n++
		}
	}
	return n
}

func newAuditedRig(t *testing.T) (*adminRig, *eventJournal, *journal.Events) {
	t.Helper()
	o := &adminRig{rig: newRig(t), path: filepath.Join(t.TempDir(), "admin.sock"), served: make(chan error, 1)}
	j := &eventJournal{Journal: o.attestor.Journal}
	events := journal.NewEvents(journal.EventsOptions{Journal: j})
	file, err := stop.OpenFile(filepath.Join(t.TempDir(), stop.FileName))
	o.must(err)
	stops, err := stop.New(file, time.Now)
	o.must(err)
	o.open(api.AdminOptions{
		Attestor: o.attestor, Events: events, Stop: stops,
		Backup: func(context.Context, io.Writer) error { return nil },
	})
	return o, j, events
}

// Attack: after more actions of a kind than are recorded per minute, an API key is created and used without its name in
// the journal.
func TestEachAPIKeyOfAFloodIsNamedInTheJournal(t *testing.T) {
	t.Parallel()
	o, j, events := newAuditedRig(t)
	made := make(chan string, journal.EventsPerMinute+20)
	var workers sync.WaitGroup
	for w := range 20 {
		workers.Go(func() {
			for i := range cap(made) / 20 {
				key, _, err := o.client.CreateKey(t.Context(), appliance.KeyRequest{Name: fmt.Sprintf("k%d-%d", w, i)})
				if err == nil {
					_, err = o.client.RevokeKey(t.Context(), key.ID)
				}
				if err != nil {
					t.Error(err)
					return
				}
				made <- key.ID
			}
		})
	}
	workers.Wait()
	close(made)
	o.must(events.Close(t.Context()))
	for id := range made {
		for _, kind := range []journal.EventKind{journal.EventKeyCreated, journal.EventKeyRevoked} {
			if n := j.named(kind, "id", id); n != 1 {
				t.Errorf("%d events %s name API key %s", n, kind, id)
			}
		}
	}
}

// While the journal is unavailable, actions that grant rights are refused. Actions that revoke rights succeed, and
// their events wait.
func TestWithoutAJournalNothingIsDoneUnseen(t *testing.T) {
	t.Parallel()
	o, j, events := newAuditedRig(t)
	ctx := t.Context()
	victim, _, err := o.client.CreateKey(ctx, appliance.KeyRequest{Name: "victim"})
	o.must(err)
	j.fail(true)
	_, _, errCreate := o.client.CreateKey(ctx, appliance.KeyRequest{Name: "unseen"})
	_, errBind := o.client.BindKey(ctx, victim.ID, "")
	_, errPause := o.client.Pause(ctx, "unseen")
	_, errResume := o.client.Resume(ctx)
	revoked, errRevoke := o.client.RevokeKey(ctx, victim.ID)
	for name, err := range map[string]error{"create": errCreate, "bind": errBind, "resume": errResume} {
		if client.CodeOf(err) != appliance.CodeJournalUnavailable {
			t.Errorf("%s is answered %v", name, err)
		}
	}
	if errPause != nil || errRevoke != nil || revoked.Revoked.IsZero() {
		t.Errorf("pause: %v; revoke: %v", errPause, errRevoke)
	}
	keys, err := o.client.ListKeys(ctx)
	o.must(err)
	for _, k := range keys {
		if k.Name == "unseen" {
			t.Error("an API key was made without an event")
		}
	}
	if state, err := o.client.Stopped(ctx); err != nil || state.Paused == nil {
		t.Errorf("the pause was ended without an event: %+v, %v", state, err)
	}
	j.fail(false)
	o.must(events.Close(ctx)) // records the waiting events
	if j.named(journal.EventPaused, "reason", "unseen") != 1 ||
		j.named(journal.EventKeyRevoked, "id", victim.ID) != 1 {
		t.Error("the pause or the revocation is not in the journal")
	}
}
