package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// TestConditions tests that a journal evaluates the conditions of a record on its state at the time of the append.
func TestConditions(t *testing.T, open OpenStore) {
	for name, test := range map[string]func(t *testing.T, j audit.Journal, clock *clock){
		"a record that a condition refuses is not appended":   refusedIsNotAppended,
		"attestations of an API key are counted since a time": countedSince,
		"the first attestation of an address is found":        firstIsFound,
		"concurrent requests respect a cap":                   capHolds,
		"of two concurrent beneficiaries one is the first":    oneIsFirst,
		"a replay skips the conditions":                       replayIsNotAsked,
		"counts are right during concurrent appends":          countedAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(clock)
			clock.set(epoch().Truncate(time.Millisecond)) // the resolution of records
			_, journal := open(t, clock.now)
			test(t, journal, clock)
		})
	}
}

// asked is a condition made of functions.
type asked struct {
	asks   func(appliance.Record) journal.PastQuery
	decide func(appliance.Record, journal.Past) error
}

func (a asked) Asks(r appliance.Record) journal.PastQuery          { return a.asks(r) }
func (a asked) Decide(r appliance.Record, past journal.Past) error { return a.decide(r, past) }

// atMost limits the number of an API key's attestations since a time.
func atMost(n int64, since time.Time) journal.Condition {
	return asked{
		asks: func(r appliance.Record) journal.PastQuery {
			return journal.PastQuery{KeyID: r.KeyID, Since: []time.Time{since}}
		},
		decide: func(_ appliance.Record, past journal.Past) error {
			if past.Counts[0] >= n {
				return appliance.Errorf(appliance.CodePolicyCap, "%d is the cap, and there are %d", n, past.Counts[0])
			}
			return nil
		},
	}
}

// sameBeneficiary refuses a second beneficiary.
var sameBeneficiary journal.Condition = asked{
	asks: func(r appliance.Record) journal.PastQuery {
		return journal.PastQuery{Unspendable: &r.UnspendableAddress}
	},
	decide: func(r appliance.Record, past journal.Past) error {
		if past.First != nil && past.First.Beneficiary != r.Beneficiary {
			return appliance.Errorf(appliance.CodePolicySecond, "it was %s's", past.First.Beneficiary)
		}
		return nil
	},
}

func refusedIsNotAppended(t *testing.T, j audit.Journal, _ *clock) {
	var passed bool
	pass := asked{
		asks: func(appliance.Record) journal.PastQuery { return journal.PastQuery{} },
		decide: func(r appliance.Record, past journal.Past) error {
			passed = !r.Time.IsZero() && past.Counts == nil && past.First == nil
			return nil
		},
	}
	refuse := asked{asks: pass.asks, decide: func(appliance.Record, journal.Past) error {
		return appliance.Errorf(appliance.CodePaused, "no")
	}}
	r := Record(t, "key")
	_, _, err := j.Append(t.Context(), r, pass, refuse)
	wantCode(t, err, appliance.CodePaused)
	if !passed {
		t.Error("the first condition did not get the record's time or got unrequested data")
	}
	_, err = j.ByID(t.Context(), r.ID)
	wantCode(t, err, appliance.CodeNotFound)
	_, _, err = j.Append(t.Context(), r, pass)
	check(t, err)
}

func countedSince(t *testing.T, j audit.Journal, clock *clock) {
	times := make([]time.Time, 6)
	for i := range times {
		clock.add(time.Minute)
		times[i] = clock.now()
		for _, key := range []string{"one", "another"} {
			_, _, err := j.Append(t.Context(), Record(t, key))
			check(t, err)
		}
		_, err := j.AppendEvent(t.Context(), Event())
		check(t, err)
		for range 2 { // the second time from the cache
			past, err := j.Past(t.Context(), journal.PastQuery{KeyID: "one", Since: times[:i+1]})
			check(t, err)
			for k, n := range past.Counts {
				if n != int64(i-k+1) {
					t.Fatalf("after %d records, %d are counted since the time of number %d", i+1, n, k)
				}
			}
		}
	}
	past, err := j.Past(t.Context(),
		journal.PastQuery{KeyID: "none", Since: []time.Time{epoch(), clock.now().Add(time.Hour)}})
	check(t, err)
	if past.Counts[0] != 0 || past.Counts[1] != 0 || past.First != nil {
		t.Errorf("a key without records has %+v", past)
	}
}

func firstIsFound(t *testing.T, j audit.Journal, _ *clock) {
	first := Record(t, "key")
	q := journal.PastQuery{Unspendable: &first.UnspendableAddress}
	past, err := j.Past(t.Context(), q)
	check(t, err)
	if past.First != nil {
		t.Errorf("there is %s before any", past.First.ID)
	}
	later := RecordOf(t,
		"key", appliance.Request{UnspendableAddress: first.UnspendableAddress, Beneficiary: appliance.Address{1}})
	for _, r := range []appliance.Record{Record(t, "key"), first, later} {
		_, _, err := j.Append(t.Context(), r)
		check(t, err)
	}
	past, err = j.Past(t.Context(), q)
	check(t, err)
	if past.First == nil || past.First.ID != first.ID || past.First.Beneficiary != first.Beneficiary {
		t.Errorf("the first is %+v, not %s", past.First, first.ID)
	}
}

// appendAtOnce appends records concurrently, and returns how many succeeded. The others must fail with the code. Before
// them it appends a record whose condition waits until all have begun, so that many of them share a batch.
func appendAtOnce(t *testing.T, journals []audit.Journal, records []appliance.Record, code appliance.Code,
	c journal.Condition) int64 {
	t.Helper()
	var appended atomic.Int64
	var all, begun sync.WaitGroup
	begun.Add(len(records))
	deciding := make(chan struct{})
	begins := sync.OnceFunc(func() { close(deciding) })
	before := asked{
		asks: func(appliance.Record) journal.PastQuery { return journal.PastQuery{} },
		decide: func(appliance.Record, journal.Past) error {
			begins()
			begun.Wait()
			return nil
		},
	}
	all.Go(func() {
		defer begins() // after an error
		if _, _, err := journals[0].Append(t.Context(), Record(t, "before"), before); err != nil {
			t.Errorf("append the record before them: %v", err)
		}
	})
	<-deciding
	for i, r := range records {
		all.Go(func() {
			begun.Done()
			switch _, _, err := journals[i%len(journals)].Append(t.Context(), r, c); {
			case err == nil:
				appended.Add(1)
			case appliance.CodeOf(err) != code:
				t.Errorf("append: %v", err)
			}
		})
	}
	all.Wait()
	return appended.Load()
}

func capHolds(t *testing.T, j audit.Journal, clock *clock) {
	const limit, tries = 7, 40
	capAcross(t, []audit.Journal{j}, limit, tries, clock.now())
	clock.add(time.Hour)
	capAcross(t, []audit.Journal{j}, limit, tries, clock.now()) // the next period
}

func capAcross(t *testing.T, journals []audit.Journal, limit, tries int, since time.Time) {
	t.Helper()
	records := make([]appliance.Record, tries)
	for i := range records {
		records[i] = Record(t, "capped")
	}
	if n := appendAtOnce(t, journals, records, appliance.CodePolicyCap,
		atMost(int64(limit), since)); n != int64(limit) {
		t.Errorf("%d were appended, the cap is %d", n, limit)
	}
	past, err := journals[0].Past(t.Context(), journal.PastQuery{KeyID: "capped", Since: []time.Time{since}})
	check(t, err)
	if past.Counts[0] != int64(limit) {
		t.Errorf("%d are counted, the cap is %d", past.Counts[0], limit)
	}
}

func oneIsFirst(t *testing.T, j audit.Journal, _ *clock) {
	firstAcross(t, []audit.Journal{j})
}

func firstAcross(t *testing.T, journals []audit.Journal) {
	t.Helper()
	for round := range 5 {
		records := make([]appliance.Record, 12)
		unspendable := Record(t, "key").UnspendableAddress
		for i := range records {
			records[i] = RecordOf(t, fmt.Sprint("key", i),
				appliance.Request{UnspendableAddress: unspendable, Beneficiary: appliance.Address{byte(i + 1)}})
		}
		if n := appendAtOnce(t, journals, records, appliance.CodePolicySecond, sameBeneficiary); n != 1 {
			t.Fatalf("round %d: %d beneficiaries", round, n)
		}
	}
}

func replayIsNotAsked(t *testing.T, j audit.Journal, clock *clock) {
	r := Record(t, "key")
	r.IdempotencyKey = "once"
	since := clock.now()
	_, _, err := j.Append(t.Context(), r, atMost(1, since))
	check(t, err)
	again := Record(t, "key")
	again.IdempotencyKey = "once"
	e, replayed, err := j.Append(t.Context(), again, atMost(1, since))
	check(t, err)
	if !replayed || e.Record.ID != r.ID {
		t.Errorf("replayed %v: %s, want %s", replayed, e.Record.ID, r.ID)
	}
}

func countedAtOnce(t *testing.T, j audit.Journal, clock *clock) {
	q := journal.PastQuery{KeyID: "key", Since: []time.Time{clock.now()}}
	const writers, each = 4, 25
	var appending sync.WaitGroup
	for range writers {
		appending.Go(func() {
			for range each {
				if _, _, err := j.Append(t.Context(), Record(t, "key")); err != nil {
					t.Error(err)
				}
				if _, err := j.Past(t.Context(), q); err != nil {
					t.Error(err)
				}
			}
		})
	}
	appending.Wait()
	past, err := j.Past(t.Context(), q)
	check(t, err)
	if past.Counts[0] != writers*each {
		t.Errorf("%d are counted of %d", past.Counts[0], writers*each)
	}
}

// A cap holds for all members together, and they agree on the first beneficiary.
func conditionsAcross(t *testing.T, c *cluster) {
	var journals []audit.Journal
	for _, m := range c.members {
		journals = append(journals, m.Journal)
	}
	capAcross(t, journals, 10, 45, c.clocks[0].now().Truncate(time.Hour))
	firstAcross(t, journals)
}
