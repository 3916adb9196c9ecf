package storetest

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
)

// eventTests are the tests of TestJournal about events and about searches of the journal.
var eventTests = map[string]func(t *testing.T, s suite){
	"an event is a leaf at its index":                   eventInPlace,
	"an event is appended once":                         eventOnce,
	"an invalid event does not affect others":           badEvent,
	"events and records are listed separately":          listOfEvents,
	"events stand in the order of time":                 eventsInTime,
	"many append events and records":                    eventsAtOnce,
	"a list can select a hash":                          listOfHash,
	"a list can select an unspendable address":          listOfUnspendable,
	"a list can combine filters":                        listOfAll,
	"a journal that begins with an event continues":     eventFirst,
	"events and records have separate idempotency keys": eventHasNoKeys,
	"an appended event is proven at once":               eventProven,
	"an event and a record have the same time format":   eventTime,
	"each event has its own salt":                       eventSalted,
}

// Event returns a new event.
func Event() journal.Event {
	return journal.Event{Kind: "key_created", By: "root", Details: map[string]string{"id": "k1", "name": `<&>"\`}}
}

func (s suite) appendEvent(t *testing.T) journal.Entry {
	t.Helper()
	e, err := s.journal.AppendEvent(t.Context(), Event())
	check(t, err)
	return e
}

func eventInPlace(t *testing.T, s suite) {
	var appended []journal.Entry
	for range 3 {
		appended = append(appended, s.append(t, Record(t, "key")), s.appendEvent(t))
	}
	for i, e := range appended {
		if e.Index != int64(i) {
			t.Errorf("leaf %d has index %d", i, e.Index)
		}
		found, err := s.journal.ByID(t.Context(), e.ID())
		check(t, err)
		if !sameEntry(found, e) {
			t.Errorf("appended %+v, found %+v", e, found)
		}
	}
	var read []journal.Entry
	check(t, s.journal.Entries(t.Context(), 0, func(e journal.Entry) error { read = append(read, e); return nil }))
	for i := range appended {
		if len(read) != len(appended) || !sameEntry(read[i], appended[i]) {
			t.Fatalf("appended %+v, read %+v", appended, read)
		}
	}
	leaf, err := journal.EncodeEvent(*appended[1].Event)
	check(t, err)
	if string(leaf) != string(appended[1].Leaf) || !journal.IsEvent(leaf) {
		t.Errorf("the leaf is %s, not %s", appended[1].Leaf, leaf)
	}
	report, err := s.journal.Verify(t.Context(), audit.Options{})
	check(t, err)
	if report.Events != 3 || report.Size != 6 {
		t.Errorf("the audit found %d events among %d leaves", report.Events, report.Size)
	}
	verifies(t, s)
}

func eventOnce(t *testing.T, s suite) {
	event := Event()
	event.ID = uuid.Must(uuid.NewV7())
	first, err := s.journal.AppendEvent(t.Context(), event)
	check(t, err)
	s.append(t, Record(t, "key"))
	again, err := s.journal.AppendEvent(t.Context(), event)
	check(t, err)
	if !sameEntry(first, again) || s.tree(t).N != 2 {
		t.Errorf("appended %+v, then %+v; there are %d leaves", first, again, s.tree(t).N)
	}
	r := Record(t, "key")
	r.ID = event.ID
	if _, _, err := s.journal.Append(t.Context(), r); err == nil {
		t.Error("a record was appended with an event's id")
	}
	verifies(t, s)
}

func badEvent(t *testing.T, s suite) {
	bad := map[string]journal.Event{
		"no kind":             {},
		"a kind with a space": {Kind: "a b"},
		"a log's first leaf":  {Kind: journal.EventLogContinued},
		"who is not UTF-8":    {Kind: "x", By: "\xff"},
		"a name not UTF-8":    {Kind: "x", Details: map[string]string{"\xff": ""}},
		"a detail not UTF-8":  {Kind: "x", Details: map[string]string{"a": "\xff"}},
		"text without bound":  {Kind: "x", Details: map[string]string{"a": strings.Repeat("a", journal.MaxEvent)}},
	}
	var wg sync.WaitGroup
	for name, event := range bad {
		r := Record(t, "key")
		wg.Go(func() {
			if _, err := s.journal.AppendEvent(t.Context(), event); err == nil {
				t.Errorf("%s: was appended", name)
			}
		})
		wg.Go(func() {
			if _, _, err := s.journal.Append(t.Context(), r); err != nil {
				t.Errorf("beside %s: %v", name, err)
			}
		})
	}
	wg.Wait()
	if n := s.tree(t).N; n != int64(len(bad)) {
		t.Errorf("%d leaves were appended, not %d", n, len(bad))
	}
	verifies(t, s)
}

func listOfEvents(t *testing.T, s suite) {
	for range 4 {
		s.appendEvent(t)
		s.append(t, Record(t, "key"))
	}
	wantIndexes(t, s.list(t, journal.Query{EventsOnly: true}), 6, 4, 2, 0)
	wantIndexes(t, s.list(t, journal.Query{EventsOnly: true, Limit: 2, Before: 6}), 4, 2)
	wantIndexes(t, s.list(t, journal.Query{AttestationsOnly: true}), 7, 5, 3, 1)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "key"}), 7, 5, 3, 1)
	wantIndexes(t, s.list(t, journal.Query{}), 7, 6, 5, 4, 3, 2, 1, 0)
	wantIndexes(t, s.list(t, journal.Query{EventsOnly: true, AttestationsOnly: true}))
}

func eventsInTime(t *testing.T, s suite) {
	start := epoch().Truncate(time.Second)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for i := range 4 { // a record and an event in each second
		s.clock.set(at(i))
		s.append(t, Record(t, "key"))
		s.appendEvent(t)
	}
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3)}), 5, 4, 3, 2)
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3), EventsOnly: true}), 5, 3)
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3), AttestationsOnly: true}), 4, 2)
	s.clock.set(at(-9))
	if late := s.appendEvent(t); late.Time().Before(at(3)) {
		t.Errorf("the time of an event went back to %s", late.Time())
	}
	verifies(t, s)
}

func eventsAtOnce(t *testing.T, s suite) {
	const callers, each = 16, 8
	var wg sync.WaitGroup
	for c := range callers {
		r := make([]appliance.Record, each)
		for i := range r {
			r[i] = Record(t, fmt.Sprint("key", c))
		}
		wg.Go(func() {
			for i := range each {
				_, _, err := s.journal.Append(t.Context(), r[i])
				if err == nil && i%2 == 0 {
					_, err = s.journal.AppendEvent(t.Context(), Event())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	report, err := s.journal.Verify(t.Context(), audit.Options{})
	check(t, err)
	if want := int64(callers * each / 2); report.Events != want || report.Size != 3*want {
		t.Errorf("the audit found %d events among %d leaves, not %d among %d", report.Events, report.Size, want, 3*want)
	}
	verifies(t, s)
}

func listOfHash(t *testing.T, s suite) {
	twice := Record(t, "key")
	other := twice
	other.Hash[0] ^= 1 // the only difference
	for _, r := range []appliance.Record{twice, Record(t, "key"), twice, other, Record(t, "b"), twice} {
		r.ID = uuid.Must(uuid.NewV7())
		s.append(t, r)
	}
	hash := twice.Hash
	wantIndexes(t, s.list(t, journal.Query{Hash: &hash}), 5, 2, 0)
	wantIndexes(t, s.list(t, journal.Query{Hash: &hash, Limit: 1, Before: 5}), 2)
	wantIndexes(t, s.list(t, journal.Query{Hash: &other.Hash}), 3)
	wantIndexes(t, s.list(t, journal.Query{Hash: &appliance.Digest{}}))
	wantIndexes(t, s.list(t, journal.Query{Hash: &hash, EventsOnly: true}))
}

func listOfUnspendable(t *testing.T, s suite) {
	mine := Record(t, "key")
	other := mine
	other.UnspendableAddress[0] ^= 1
	for _, r := range []appliance.Record{mine, other, Record(t, "key"), mine} {
		r.ID = uuid.Must(uuid.NewV7())
		s.append(t, r)
		s.appendEvent(t)
	}
	wantIndexes(t, s.list(t, journal.Query{Unspendable: &mine.UnspendableAddress}), 6, 0)
	wantIndexes(t, s.list(t, journal.Query{Unspendable: &mine.UnspendableAddress, Before: 6}), 0)
	wantIndexes(t, s.list(t, journal.Query{Unspendable: &other.UnspendableAddress}), 2)
	wantIndexes(t, s.list(t, journal.Query{Unspendable: &appliance.Address{}}))
}

func listOfAll(t *testing.T, s suite) {
	r := Record(t, "a")
	for i, keyID := range []string{"a", "b", "a", "a"} {
		s.clock.set(epoch().Add(time.Duration(i) * time.Second))
		r.ID, r.KeyID = uuid.Must(uuid.NewV7()), keyID
		s.append(t, r)
	}
	q := journal.Query{Hash: &r.Hash, Unspendable: &r.UnspendableAddress, KeyID: "a",
		From: epoch().Add(time.Second), AttestationsOnly: true}
	wantIndexes(t, s.list(t, q), 3, 2)
	q.Until = epoch().Add(2500 * time.Millisecond)
	wantIndexes(t, s.list(t, q), 2)
	q.Unspendable = &appliance.Address{}
	wantIndexes(t, s.list(t, q))
}

func eventFirst(t *testing.T, s suite) {
	s.appendEvent(t)
	s.clock.add(time.Hour)
	s.append(t, Record(t, "key"))
	wantIndexes(t, s.list(t, journal.Query{From: epoch().Add(time.Minute)}), 1)
	wantIndexes(t, s.list(t, journal.Query{Until: epoch().Add(time.Minute)}), 0)
	verifies(t, s)
}

func eventHasNoKeys(t *testing.T, s suite) {
	s.appendEvent(t)
	_, err := s.journal.ByIdempotencyKey(t.Context(), "", "")
	wantCode(t, err, appliance.CodeNotFound)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "k1"}))
}

func eventProven(t *testing.T, s suite) {
	s.appendMany(t, 300)
	e := s.appendEvent(t)
	proof, err := s.journal.Prove(t.Context(), e.Index)
	check(t, err)
	check(t, proof.Verify(e.Leaf, s.verifier))
}

func eventTime(t *testing.T, s suite) {
	event := Event()
	event.Time = epoch().Add(-time.Hour) // the caller must not set it
	e, err := s.journal.AppendEvent(t.Context(), event)
	check(t, err)
	if r := s.append(t, Record(t, "key")); !e.Time().Equal(r.Time()) || e.Event.Time.Location() != time.UTC {
		t.Errorf("the event is of %v, the record of %v", e.Event.Time, r.Record.Time)
	}
}

// The hash of an event does not reveal the event, even if all of its other fields are known: events are salted.
func eventSalted(t *testing.T, s suite) {
	a, b := s.appendEvent(t).Event, s.appendEvent(t).Event
	if a.Salt == b.Salt || a.Salt == (appliance.Salt{}) || a.ID == b.ID {
		t.Errorf("two events have salts %x and %x, ids %s and %s", a.Salt, b.Salt, a.ID, b.ID)
	}
	if !reflect.DeepEqual(a.Details, b.Details) || !maps.Equal(a.Details, Event().Details) || a.By != "root" {
		t.Errorf("appended %+v, then %+v", a, b)
	}
}
