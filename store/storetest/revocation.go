package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// OpenStore returns the keys and the journal of an empty store with now as its clock.
type OpenStore func(t *testing.T, now func() time.Time) (appliance.Keys, audit.Journal)

// TestRevocation tests that a journal appends no record of a revoked or expired API key.
func TestRevocation(t *testing.T, open OpenStore) {
	hour := time.Hour
	for name, c := range map[string]struct {
		request appliance.KeyRequest
		change  func(t *testing.T, keys appliance.Keys, id string, clock *clock)
		code    appliance.Code // empty: the record is appended
	}{
		"a key that may be used": {change: func(*testing.T, appliance.Keys, string, *clock) {}},
		"a revoked key": {change: func(t *testing.T, keys appliance.Keys, id string, clock *clock) {
			_, err := keys.Revoke(t.Context(), id, clock.now())
			check(t, err)
		}, code: appliance.CodeAPIKeyRevoked},
		"a key that expires later": {
			request: appliance.KeyRequest{Expires: epoch().Add(hour)},
			change:  func(_ *testing.T, _ appliance.Keys, _ string, clock *clock) { clock.add(hour - time.Second) },
		},
		"a key that has expired": {
			request: appliance.KeyRequest{Expires: epoch().Add(hour)},
			change: func(_ *testing.T, _ appliance.Keys, _ string, clock *clock) {
				clock.add(hour + time.Millisecond)
			},
			code: appliance.CodeAPIKeyExpired,
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(clock)
			clock.set(epoch())
			keys, journal := open(t, clock.now)
			c.request.Name = name
			key, _ := newKey(t, keys, c.request, clock.now())
			r := Record(t, key.ID)
			r.IdempotencyKey = "once"
			_, _, err := journal.Append(t.Context(), r)
			check(t, err)
			c.change(t, keys, key.ID, clock)
			for _, idempotencyKey := range []string{"", "once"} { // a replay has the same result
				r := Record(t, key.ID)
				r.IdempotencyKey = idempotencyKey
				_, _, err := journal.Append(t.Context(), r)
				wantCode(t, err, c.code)
			}
		})
	}
	t.Run("while others append", func(t *testing.T) { revokedWhileAppending(t, open) })
	t.Run("an API key matches its events", func(t *testing.T) { eventsOfKeys(t, open) })
	t.Run("a key older than the first event needs no event", func(t *testing.T) { keysBeforeEvents(t, open) })
}

// Once Revoke has returned, no further record of the key is appended.
func revokedWhileAppending(t *testing.T, open OpenStore) {
	keys, j := open(t, time.Now)
	for range 20 {
		key, _ := newKey(t, keys, appliance.KeyRequest{Name: "leaked"}, time.Now())
		var appending sync.WaitGroup
		begun := make(chan struct{}, 1)
		for range 8 {
			appending.Go(func() {
				for range 500 { // unless the key is refused earlier
					_, _, err := j.Append(t.Context(), Record(t, key.ID))
					if err != nil {
						if appliance.CodeOf(err) != appliance.CodeAPIKeyRevoked {
							t.Errorf("append: %v", err)
						}
						return
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		<-begun
		_, err := keys.Revoke(t.Context(), key.ID, time.Now())
		check(t, err)
		count := func() int {
			entries, err := j.List(t.Context(), journal.Query{KeyID: key.ID, Limit: 1000})
			check(t, err)
			return len(entries)
		}
		before := count()
		appending.Wait()
		if after := count(); after != before {
			t.Fatalf("%d records, %d of them after the revocation", after, after-before)
		}
	}
}

// eventsOfKeys audits API keys that match their events, and API keys that do not.
func eventsOfKeys(t *testing.T, open OpenStore) {
	keys, j := open(t, time.Now)
	create := func(name string) appliance.APIKey {
		key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: name}, time.Now())
		check(t, err)
		check(t, keys.Create(t.Context(), key))
		return key
	}
	tell := func(kind journal.EventKind, key appliance.APIKey) {
		_, err := j.AppendEvent(t.Context(), journal.Event{Kind: kind, By: "root", Details: key.Details()})
		check(t, err)
	}
	sound, planted, other, revoked, bound := create("sound"), create("planted"), create("other"), create("revoked"),
		create("bound")
	tell(journal.EventKeyCreated, sound)
	tell(journal.EventKeyCreated, revoked)
	tell(journal.EventKeyRevoked, revoked) // the key itself is not revoked
	tell(journal.EventKeyCreated, bound)
	told := other
	told.SecretHash[0]++ // another secret
	tell(journal.EventKeyCreated, told)
	bound.Attestor = "second"
	tell(journal.EventKeyBound, bound)
	_, err := keys.Bind(t.Context(), bound.ID, bound.Attestor)
	check(t, err)

	report, err := j.Verify(t.Context(), audit.Options{})
	check(t, err)
	var found []string
	for _, d := range report.Damages {
		if d.Part != "api_key" {
			t.Error(d)
		}
		found = append(found, d.Detail)
	}
	slices.Sort(found)
	want := []string{
		fmt.Sprintf("%s (%q): %s", planted.ID, "planted",
			"no event records its creation: revoke it, and review its attestations (attestd log list --key)"),
		fmt.Sprintf("%s (%q): %s", other.ID, "other", "its secretHash differs from its newest event: revoke it"),
		fmt.Sprintf("%s (%q): %s", revoked.ID,
			"revoked", "an event records its revocation, but it still works: revoke it again"),
	}
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("the audit finds\n%s\nnot\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	for _, key := range []appliance.APIKey{planted, other, revoked} {
		tell(journal.EventKeyRevoked, key)
		_, err := keys.Revoke(t.Context(), key.ID, time.Now())
		check(t, err)
	}
	report, err = j.Verify(t.Context(), audit.Options{})
	check(t, err)
	for _, d := range report.Damages {
		t.Errorf("after they were revoked: %s", d)
	}
}

// keysBeforeEvents audits a journal that begins with an attestation, from an attestd before the introduction of events.
func keysBeforeEvents(t *testing.T, open OpenStore) {
	keys, j := open(t, time.Now)
	_, _, err := j.Append(t.Context(), Record(t, "key"))
	check(t, err)
	_, err = j.AppendEvent(t.Context(), journal.Event{Kind: journal.EventStarted})
	check(t, err)
	newKey(t, keys, appliance.KeyRequest{Name: "before"}, time.Now().Add(-time.Hour))
	planted, _ := newKey(t, keys, appliance.KeyRequest{Name: "after"}, time.Now().Add(time.Hour))
	report, err := j.Verify(t.Context(), audit.Options{})
	check(t, err)
	if len(report.Damages) != 1 || !strings.Contains(report.Damages[0].Detail, planted.ID) {
		t.Errorf("the audit finds %v, not only %s", report.Damages, planted.ID)
	}
}
