package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/openapitest"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/events"
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

// An operator's stream has the events of operating, which no API key sees, and resumes.
func TestAnOperatorFollowsAllEvents(t *testing.T) {
	t.Parallel()
	o := &adminRig{rig: newRig(t), path: filepath.Join(t.TempDir(), "admin.sock"), served: make(chan error, 1)}
	o.open(api.AdminOptions{Attestor: o.attestor,
		Streams: events.NewHub(events.Options{Journal: o.attestor.Journal, Verifier: o.log.Verifier})})
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", o.path)
	}}
	follow := func(types, last string) *sse {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		req, err := http.NewRequestWithContext(ctx, "GET", "http://admin/events?types="+types, nil)
		o.must(err)
		req.Header.Set("Last-Event-ID", last)
		resp, err := socket.RoundTrip(req)
		o.must(err)
		t.Cleanup(func() { cancel(); resp.Body.Close() })
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%s %v", resp.Status, resp.Header)
		}
		s := &sse{rig: o.rig, resp: resp, in: bufio.NewScanner(resp.Body)}
		s.block() // the first id
		return s
	}
	record := func(kind journal.EventKind, id string) {
		_, err := o.attestor.Journal.AppendEvent(t.Context(),
			journal.Event{Kind: kind, Details: map[string]string{"id": id}})
		o.must(err)
	}
	s, checkpoints := follow("key.*", ""), follow("log.checkpoint", "")
	checkpoints.schema = openapitest.Schema(t, "openapi.yaml", "Event")
	record(journal.EventKeyCreated, "a")
	record(journal.EventPaused, "")
	record(journal.EventKeyRevoked, "a")
	if e := s.next(); e.Type != "key.created" || e.Subject != "a" {
		t.Errorf("%+v", e)
	}
	for _, s := range []*sse{s, follow("key.*", s.id)} {
		if e := s.next(); e.Type != "key.revoked" {
			t.Errorf("%+v", e)
		}
	}

	// Checkpoints come until one covers the last record. A resumed stream begins with the newest.
	for size := int64(0); size < 3; {
		e := checkpoints.next()
		tree, err := journal.OpenCheckpoint([]byte(e.Data.Checkpoint), o.log.Verifier)
		if o.must(err); tree.N <= size || tree.N != e.Data.Size || e.Type != "log.checkpoint" {
			t.Fatalf("after the checkpoint of %d records: %+v", size, e)
		}
		size = tree.N
	}
	record(journal.EventPaused, "")
	if e := checkpoints.next(); e.Data.Size != 4 {
		t.Errorf("after the checkpoint of 3 records: %+v", e)
	}
	if e := follow("log.checkpoint", checkpoints.id).next(); e.Data.Size != 4 {
		t.Errorf("resumed: %+v", e)
	}
}
