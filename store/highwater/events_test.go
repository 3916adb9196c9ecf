package highwater_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/storetest"
)

// TestNoEventGoesIntoAJournalThatLostSomething restores an older copy of a journal, next to its newer mark.
func TestNoEventGoesIntoAJournalThatLostSomething(t *testing.T) {
	t.Parallel()
	for name, onDemand := range map[string]bool{"in a daemon": false, "in a command beside none": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.store("newer")
			g := r.open(s.Journal())
			r.append(g, 3)
			r.copy("newer", "older")
			if _, err := g.AppendEvent(t.Context(), storetest.Event()); err != nil {
				t.Fatal(err)
			}
			closeAll(t, g, s)

			older, newer := r.store("older"), r.store("newer")
			for _, test := range []struct {
				store *bolt.Store
				code  appliance.Code
			}{{older, appliance.CodeJournalLost}, {newer, ""}} {
				g, err := highwater.Open(t.Context(), r.mark(), test.store.Journal(), highwater.Options{
					Key: r.key, Logger: slog.New(slog.NewTextHandler(r.text, nil)), Every: time.Hour,
					OnDemand: onDemand,
				})
				if err != nil {
					t.Fatal(err)
				}
				_, err = g.AppendEvent(t.Context(), storetest.Event())
				if got := appliance.CodeOf(err); got != test.code {
					t.Errorf("an event is answered with %q (%v), not %q", got, err, test.code)
				}
				closeAll(t, g)
			}
		})
	}
}

// TestAnEmptySharedJournalWithoutAMarkTakesEvents covers the first command on a new database.
func TestAnEmptySharedJournalWithoutAMarkTakesEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g, err := highwater.Open(t.Context(), r.mark(), r.store("empty").Journal(),
		highwater.Options{Key: r.key, Shared: true, OnDemand: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Accept(journal.Frontier{}.Tree()); err != nil {
		t.Errorf("an empty head is refused: %v", err)
	}
	if _, err := g.AppendEvent(t.Context(), storetest.Event()); err != nil {
		t.Errorf("an event is refused: %v", err)
	}
	closeAll(t, g)
}
