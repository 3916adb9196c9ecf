package daemon

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm"
)

const (
	eventsTimeout  = 3 * time.Second // for the last events of a daemon, or for the event of a command
	startedTimeout = time.Second     // how long a start waits for its event
	tokensPause    = 3 * time.Second // between two checks of the tokens

	maxWhy = 1000 // maximum size of an error in an event, in bytes
)

// openEvents starts to record events in the journal, also those of approvals.
func (r *running) openEvents() {
	member := ""
	if r.store.Database != nil {
		member, _ = MemberName(r.config) // opening the store has validated it
	}
	r.events = journal.NewEvents(
		journal.EventsOptions{Journal: r.attestor.Journal, Logger: r.logger, Member: member})
	r.attestor.Events = r.events
	r.openApprovals()
}

// closeEvents records the last events. An unavailable journal is not an error.
func (r *running) closeEvents() {
	ctx, cancel := context.WithTimeout(context.Background(), eventsTimeout)
	defer cancel()
	if r.eventsRefused {
		cancel()
	}
	if err := r.events.Close(ctx); err != nil {
		r.logger.Warn("cannot record events in the journal", "error", err.Error())
	}
}

// began records the start of the daemon, with its keys. It waits up to startedTimeout for the journal, so that the
// event usually precedes all others.
func (r *running) began() {
	r.events.Record(journal.Event{Kind: journal.EventStarted, Details: map[string]string{
		"version": r.options.Version, journal.DetailSigners: r.recordedKeys.begin(),
	}})
	ctx, cancel := context.WithTimeout(context.Background(), startedTimeout)
	defer cancel()
	r.events.Flush(ctx)
}

// ended records the end of the daemon, with the reason if it failed.
func (r *running) ended(why error) {
	details := map[string]string{"version": r.options.Version}
	if why != nil {
		details["why"] = shorten(why.Error())
	}
	r.events.Record(journal.Event{Kind: journal.EventStopped, Details: details})
}

func shorten(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxWhy {
		text = strings.ToValidUTF8(text[:maxWhy], "") + "…"
	}
	return text
}

// watchTokens records each loss and return of a token of the HSM, until ctx ends.
func (r *running) watchTokens(ctx context.Context) {
	tick := time.NewTicker(tokensPause)
	defer tick.Stop()
	watch := tokenWatch{lost: make(map[int]time.Time)}
	for {
		for _, event := range watch.changes(r.signer.Standings(), time.Now()) {
			r.events.Record(event)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// tokenWatch holds the lost tokens by position, with the time of the loss.
type tokenWatch struct{ lost map[int]time.Time }

// changes returns the events of all changes since the last call.
func (w *tokenWatch) changes(all []hsm.Standing, now time.Time) (events []journal.Event) {
	ready := 0
	for _, s := range all {
		if s.Ready {
			ready++
		}
	}
	for _, s := range all {
		since, lost := w.lost[s.Position]
		if s.Ready != lost {
			continue
		}
		details := map[string]string{"token": s.Name, "position": strconv.Itoa(s.Position),
			"ready": strconv.Itoa(ready)}
		event := journal.Event{Kind: journal.EventHSMLost, Details: details}
		if lost {
			event.Kind = journal.EventHSMFound
			details["away"] = now.Sub(since).Round(time.Millisecond).String()
			delete(w.lost, s.Position)
		} else {
			w.lost[s.Position] = now
			details["why"] = shorten(s.Reason)
		}
		events = append(events, event)
	}
	return events
}

// RecordEvent appends an event to the journal of an appliance whose daemon is not running.
func RecordEvent(ctx context.Context, c *config.Config, event journal.Event) (err error) {
	s, err := OpenStore(c, StoreOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.RecordEvent(ctx, event)
}

// RecordEvent appends an event to the journal. It waits at most eventsTimeout.
func (s *Store) RecordEvent(ctx context.Context, event journal.Event) error {
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	_, err := s.Journal.AppendEvent(ctx, event)
	return err
}

// offeredEvents returns the streams of events that the API offers.
func (r *running) offeredEvents() *api.Events {
	o := events.Options{Journal: r.store.Journal, Verifier: r.store.LogKey.Verifier, Attesting: r.attestor.Active,
		Logger: r.logger}
	offered := &api.Events{MostPerClient: r.config.Limits.Streams, Origins: r.config.Server.Origins}
	if r.reads.replica != nil { // a nil *Kept in an interface is not nil
		o.Changes = r.reads.replica
		offered.Packets, offered.OpenPackets = true, !r.config.GraphQL.RequireKey
	}
	if offered.OpenPackets {
		offered.Origins = graphqlOrigins(r.config)
	}
	offered.Hub = events.NewHub(o)
	return offered
}
