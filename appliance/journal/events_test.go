package journal_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// eventJournal stores events, and fails or blocks on demand.
type eventJournal struct {
	journal.Journal
	mu      sync.Mutex
	events  []journal.Event
	failing []error // the next calls return these errors
	stuck   chan struct{}
}

func (j *eventJournal) AppendEvent(ctx context.Context, e journal.Event) (journal.Entry, error) {
	if j.stuck != nil {
		select {
		case <-j.stuck:
		case <-ctx.Done():
			return journal.Entry{}, appliance.Errorf(appliance.CodeTimeout, "stuck")
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.failing) > 0 {
		err := j.failing[0]
		j.failing = j.failing[1:]
		return journal.Entry{}, err
	}
	e.Details = maps.Clone(e.Details)
	j.events = append(j.events, e)
	return journal.Entry{Event: &e}, nil
}

// taken returns the kind and details of each stored event.
func (j *eventJournal) taken() (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		all = append(all,
			strings.TrimSuffix(fmt.Sprint(e.Kind, " ", strings.TrimPrefix(fmt.Sprint(e.Details), "map")), " []"))
	}
	return all
}

func closeEvents(t *testing.T, e *journal.Events) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func numbered(kind journal.EventKind, n int) journal.Event {
	return journal.Event{Kind: kind, Details: map[string]string{"n": fmt.Sprint(n)}}
}

func wantTaken(t *testing.T, j *eventJournal, want ...string) {
	t.Helper()
	if got := j.taken(); strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}

func TestEventsAreRecordedInOrder(t *testing.T) {
	t.Parallel()
	j := new(eventJournal)
	e := journal.NewEvents(journal.EventsOptions{Journal: j, Member: "one"})
	for i, kind := range []journal.EventKind{"a", "b", "a"} {
		e.Record(numbered(kind, i))
	}
	e.Record(journal.Event{}) // is dropped without affecting other events
	closeEvents(t, e)
	wantTaken(t, j, "a [member:one n:0]", "b [member:one n:1]", "a [member:one n:2]")
}

func TestAnEventIsTriedAgainWithTheSameID(t *testing.T) {
	t.Parallel()
	away := appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available")
	j := &eventJournal{failing: []error{away, away, appliance.Errorf(appliance.CodeTimeout, "too late")}}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	e.Record(numbered("a", 1))
	e.Record(numbered("b", 2))
	closeEvents(t, e)
	wantTaken(t, j, "a [n:1]", "b [n:2]")
	if j.events[0].ID == j.events[1].ID || j.events[0].ID.Version() != 7 {
		t.Errorf("the ids are %s and %s", j.events[0].ID, j.events[1].ID)
	}
}

func TestAnEventThatCannotBeKeptHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	j := &eventJournal{failing: []error{appliance.Errorf(appliance.CodeInternal, "no")}}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	e.Record(numbered("a", 1))
	e.Record(numbered("a", 2))
	closeEvents(t, e)
	wantTaken(t, j, "a [n:2]")
}

func TestTooManyOfAKindAreCounted(t *testing.T) {
	t.Parallel()
	j := new(eventJournal)
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	for i := range journal.RefusalsPerMinute + 5 {
		e.Record(numbered(journal.EventRefused, i))
		e.Record(numbered("other", i))
	}
	closeEvents(t, e)
	var refused, others []string
	for _, text := range j.taken() {
		if strings.HasPrefix(text, "other") {
			others = append(others, text)
		} else {
			refused = append(refused, text)
		}
	}
	if len(refused) != journal.RefusalsPerMinute+1 || refused[len(refused)-1] != "refused [leftOut:4 n:14]" {
		t.Errorf("of 15 refusals the journal has %q", refused)
	}
	if len(others) != 15 {
		t.Errorf("of 15 others the journal has %q", others)
	}
}

func TestAMinuteLaterTheNextOfAKindFollowsWhatWasHeldBack(t *testing.T) {
	t.Parallel()
	j := new(eventJournal)
	var mu sync.Mutex
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	e := journal.NewEvents(journal.EventsOptions{Journal: j, Now: clock})
	for i := range journal.RefusalsPerMinute + 2 {
		e.Record(numbered(journal.EventRefused, i))
	}
	e.Flush(t.Context()) // all events that are not held back
	if n := len(j.taken()); n != journal.RefusalsPerMinute {
		t.Errorf("within a minute there are %d", n)
	}
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	e.Record(numbered(journal.EventRefused, 99))
	closeEvents(t, e)
	got := j.taken()
	if tail := got[journal.RefusalsPerMinute:]; strings.Join(tail,
		"; ") != "refused [at:2026-01-02T03:04:05Z leftOut:1 n:11]; refused [n:99]" {
		t.Errorf("then come %q", tail)
	}
}

func TestRecordNeverWaits(t *testing.T) {
	t.Parallel()
	j := &eventJournal{stuck: make(chan struct{})}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	const kinds = 4
	for i := range journal.MaxQueuedEvents + 100 { // blocks forever if Record waits
		e.Record(numbered(journal.EventKind(fmt.Sprint("kind", i%kinds)), i))
	}
	ended, end := context.WithCancel(t.Context())
	end()
	e.Flush(ended)
	close(j.stuck)
	closeEvents(t, e)
	leftOut := 0
	for _, event := range j.events {
		n := 0
		_, _ = fmt.Sscan(event.Details[journal.DetailLeftOut], &n)
		leftOut += n
	}
	if n := len(j.events); n != journal.MaxQueuedEvents+kinds || n+leftOut != journal.MaxQueuedEvents+100 {
		t.Errorf("the journal has %d events, which say that %d were left out", n, leftOut)
	}
}

func TestWithoutAJournalTheEndComesAllTheSame(t *testing.T) {
	t.Parallel()
	j := &eventJournal{stuck: make(chan struct{})}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	e.Record(numbered("a", 1))
	e.Record(numbered("b", 2))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); err == nil || !strings.Contains(err.Error(), "2 events were not recorded (first: a") {
		t.Errorf("the end says %v", err)
	}
	e.Flush(t.Context()) // returns although the event is never recorded
}

func TestNoRecorderIsOneToo(t *testing.T) {
	var e *journal.Events
	e.Record(numbered("a", 1))
	e.Flush(t.Context())
	if err := errors.Join(e.Append(t.Context(), numbered("a", 1)), e.RecordOrQueue(numbered("a", 1))); err != nil {
		t.Error(err)
	}
	closeEvents(t, e)
}

// Each action of an operator becomes a leaf, regardless of its rate and even after a flood of events that clients
// caused.
func TestOperatorsActionsAreNeverLeftOut(t *testing.T) {
	t.Parallel()
	j := &eventJournal{stuck: make(chan struct{})}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	for i := range journal.MaxQueuedEvents + 5 {
		e.Record(numbered(journal.EventKind(fmt.Sprint("stranger", i%3)), i))
	}
	const many = journal.EventsPerMinute + 100
	for i := range many {
		if err := e.RecordOrQueue(numbered(journal.EventKeyRevoked, i)); err != nil {
			t.Fatalf("action %d: %v", i, err)
		}
	}
	close(j.stuck)
	closeEvents(t, e)
	next := 0
	for _, event := range j.events {
		if event.Kind == journal.EventKeyRevoked && event.Details["n"] == fmt.Sprint(next) {
			next++
		}
	}
	if next != many {
		t.Errorf("the journal names %d of %d revocations in their order", next, many)
	}
}

func TestAnActionIsRefusedWhereTooManyEventsWait(t *testing.T) {
	t.Parallel()
	j := &eventJournal{stuck: make(chan struct{})}
	e := journal.NewEvents(journal.EventsOptions{Journal: j})
	for i := range 2 * journal.MaxQueuedEvents {
		if err := e.RecordOrQueue(numbered(journal.EventPaused, i)); err != nil {
			t.Fatal(err)
		}
	}
	err := e.RecordOrQueue(numbered(journal.EventPaused, -1))
	refused, _ := errors.AsType[*appliance.Error](err)
	if refused == nil || refused.Code != appliance.CodeOverloaded || refused.RetryAfter == 0 {
		t.Errorf("one more is answered %v", err)
	}
	close(j.stuck)
	closeEvents(t, e)
	if n := len(j.taken()); n != 2*journal.MaxQueuedEvents {
		t.Errorf("the journal has %d events", n)
	}
}

// A reload's event comes before the events of its changed keys. If too many events wait, the reload is refused; the
// queue has room for the events of the last one that was not.
func TestTheQueueHasRoomForTheEventsOfTheLastAction(t *testing.T) {
	t.Parallel()
	j := &eventJournal{stuck: make(chan struct{})}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := journal.NewEvents(journal.EventsOptions{Journal: j, Now: func() time.Time { return now }})
	reloads := 0
	for ; reloads < 3*journal.MaxQueuedEvents; reloads++ {
		if e.RecordOrQueue(numbered(journal.EventConfigReloaded, reloads)) != nil {
			break
		}
		e.Record(numbered(journal.EventSignerAdded, 2*reloads))
		e.Record(numbered(journal.EventSignerRemoved, 2*reloads+1))
	}
	if err := e.RecordOrQueue(numbered(journal.EventConfigReloaded, reloads)); appliance.CodeOf(
		err) != appliance.CodeOverloaded {
		t.Errorf("after %d reloads another is answered %v", reloads, err)
	}
	const more = 4 * journal.MaxQueuedEvents
	for i := range more {
		e.Record(numbered(journal.EventSignerChanged, i))
	}
	close(j.stuck)
	closeEvents(t, e)
	events := j.taken()
	if n, last := len(events), events[len(events)-1]; n != 3*journal.MaxQueuedEvents+1 ||
		!strings.Contains(last, "leftOut:") {
		t.Errorf("the journal has %d events, the last of them %s", n, last)
	}
	for i := range reloads {
		want := fmt.Sprintf("config_reloaded [n:%d]; signer_added [n:%d]; signer_removed [n:%d]", i, 2*i, 2*i+1)
		if got := strings.Join(events[3*i:3*i+3], "; "); got != want {
			t.Fatalf("reload %d has %s", i, got)
		}
	}
}

func TestAnActionThatTheJournalDoesNotTakeIsRefused(t *testing.T) {
	t.Parallel()
	j := new(eventJournal)
	e := journal.NewEvents(journal.EventsOptions{Journal: j, Member: "one"})
	e.Record(numbered("before", 1))
	if err := e.Append(t.Context(), numbered(journal.EventKeyCreated, 2)); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, j, "before [member:one n:1]", "key_created [member:one n:2]") // when Append returns
	j.mu.Lock()
	j.failing = []error{appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available")}
	j.mu.Unlock()
	err := e.Append(t.Context(), numbered(journal.EventKeyCreated, 3))
	if appliance.CodeOf(err) != appliance.CodeJournalUnavailable ||
		!strings.Contains(err.Error(), "was not carried out") {
		t.Errorf("%v", err)
	}
	closeEvents(t, e)
	wantTaken(t, j, "before [member:one n:1]", "key_created [member:one n:2]")
}
