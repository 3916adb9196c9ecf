package storetest

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
)

// Member is an appliance's view of a shared store.
type Member struct {
	Keys    appliance.Keys
	Journal audit.Journal
}

// OpenMembers returns one member per clock, all of the same empty store.
type OpenMembers func(t *testing.T, clocks ...func() time.Time) []Member

// TestMembers tests that appliances with a shared store behave as one for their clients.
func TestMembers(t *testing.T, open OpenMembers, verifier note.Verifier) {
	for name, test := range map[string]func(t *testing.T, c *cluster){
		"a record of one member is read by another at once":           readBackElsewhere,
		"an idempotency key sent to all members at once appends once": idempotentAcross,
		"all members append to one tree concurrently":                 appendAcross,
		"events of all members are in one tree":                       eventsAcross,
		"caps and first beneficiaries hold across members":            conditionsAcross,
		"a key created by one member is known to another at once":     keyAcross,
		"a name is created once across members":                       namesAcross,
		"a key revoked by one member cannot append at another":        revokedAcross,
		"a revocation is seen by the others within a second":          revocationSeen,
		"time does not go back if the members' clocks differ":         clocksApart,
	} {
		t.Run(name, func(t *testing.T) {
			c := &cluster{verifier: verifier}
			var clocks []func() time.Time
			for i := range c.clocks {
				c.clocks[i].set(time.Now())
				clocks = append(clocks, c.clocks[i].now)
			}
			c.members = open(t, clocks...)
			test(t, c)
			for i := range c.members {
				verifies(t, suite{journal: c.members[i].Journal, verifier: verifier})
			}
		})
	}
}

type cluster struct {
	members  []Member
	verifier note.Verifier
	clocks   [3]clock
}

// each runs fn for all members concurrently.
func (c *cluster) each(fn func(i int, m Member)) {
	var wg sync.WaitGroup
	for i, m := range c.members {
		wg.Go(func() { fn(i, m) })
	}
	wg.Wait()
}

func readBackElsewhere(t *testing.T, c *cluster) {
	for i := range 12 {
		from, to := c.members[i%len(c.members)], c.members[(i+1)%len(c.members)]
		r := Record(t, "key")
		r.IdempotencyKey = fmt.Sprint(i)
		e, _, err := from.Journal.Append(t.Context(), r)
		check(t, err)
		byID, err := to.Journal.ByID(t.Context(), r.ID)
		check(t, err)
		byKey, err := to.Journal.ByIdempotencyKey(t.Context(), "key", r.IdempotencyKey)
		check(t, err)
		if !sameEntry(byID, e) || !sameEntry(byKey, e) {
			t.Errorf("appended %+v, found %+v and %+v", e, byID, byKey)
		}
		proof, err := to.Journal.Prove(t.Context(), e.Index)
		check(t, err)
		check(t, proof.Verify(e.Leaf, c.verifier))
		if tree := (suite{journal: to.Journal, verifier: c.verifier}).tree(t); tree.N != int64(i)+1 {
			t.Errorf("the other's checkpoint is of %d records, not %d", tree.N, i+1)
		}
	}
}

func idempotentAcross(t *testing.T, c *cluster) {
	for round := range 10 {
		entries := make([]journal.Entry, len(c.members))
		var appended atomic.Int64
		records := make([]appliance.Record, len(c.members))
		for i := range records {
			records[i] = Record(t, "key")
			records[i].IdempotencyKey = fmt.Sprint("once ", round)
		}
		c.each(func(i int, m Member) {
			e, replayed, err := m.Journal.Append(t.Context(), records[i])
			if err != nil {
				t.Error(err)
			}
			if !replayed {
				appended.Add(1)
			}
			entries[i] = e
		})
		for _, e := range entries {
			if !sameEntry(e, entries[0]) {
				t.Errorf("one answers with record %d (%s), another with %d (%s)", entries[0].Index,
					entries[0].Record.ID, e.Index, e.Record.ID)
			}
		}
		if appended.Load() != 1 {
			t.Errorf("%d members say that they appended", appended.Load())
		}
	}
}

func appendAcross(t *testing.T, c *cluster) {
	const callers, each = 8, 8
	seen := WatchCheckpoints(t, c.verifier, c.members...)
	c.each(func(i int, m Member) {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					e, _, err := m.Journal.Append(t.Context(), Record(t, fmt.Sprint("key", i)))
					if err != nil {
						t.Error(err)
						return
					}
					if proof, err := m.Journal.Prove(t.Context(), e.Index); err != nil {
						t.Error(err)
					} else if err := proof.Verify(e.Leaf, c.verifier); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
	if n := seen(); n == 0 {
		t.Error("no checkpoint was seen")
	}
	if tree := (suite{journal: c.members[0].Journal, verifier: c.verifier}).tree(t); tree.N != int64(
		callers*each*len(c.members)) {
		t.Errorf("the checkpoint is of %d records", tree.N)
	}
}

// All members append events and records concurrently. Each member finds every entry, in the same order. An event that
// two members append occurs once.
func eventsAcross(t *testing.T, c *cluster) {
	const each = 10
	shared := Event()
	shared.ID = uuid.Must(uuid.NewV7())
	c.each(func(i int, m Member) {
		for range each {
			_, err := m.Journal.AppendEvent(t.Context(), Event())
			if err == nil {
				_, _, err = m.Journal.Append(t.Context(), Record(t, fmt.Sprint("key", i)))
			}
			if err == nil {
				_, err = m.Journal.AppendEvent(t.Context(), shared)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	var first []journal.Entry
	for i, m := range c.members {
		events, err := m.Journal.List(t.Context(), journal.Query{EventsOnly: true, Limit: journal.MaxListed})
		check(t, err)
		if i == 0 {
			first = events
		}
		if len(events) != each*len(c.members)+1 || !reflect.DeepEqual(events, first) {
			t.Errorf("member %d lists %d events, unlike the first member", i, len(events))
		}
	}
}

// WatchCheckpoints reads the members' checkpoints until the returned function is called, which returns the number of
// different checkpoints. Checkpoints of the same size must be equal, and a member's checkpoints must not shrink.
func WatchCheckpoints(t *testing.T, verifier note.Verifier, members ...Member) (end func() int) {
	t.Helper()
	var mu sync.Mutex
	bySize := make(map[int64][]byte)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			for last := int64(0); ; {
				select {
				case <-done:
					return
				default:
				}
				signed, err := m.Journal.Checkpoint(t.Context())
				if err != nil {
					continue // the store may be unreachable for a while
				}
				tree, err := journal.OpenCheckpoint(signed, verifier)
				if err != nil || tree.N < last {
					t.Errorf("member %d: after a checkpoint of %d records one of %d: %v", i, last, tree.N, err)
					return
				}
				last = tree.N
				mu.Lock()
				if before, found := bySize[tree.N]; found && !bytes.Equal(before, signed) {
					t.Errorf("two checkpoints of %d records: %s and %s", tree.N, before, signed)
				}
				bySize[tree.N] = signed
				mu.Unlock()
			}
		})
	}
	return sync.OnceValue(func() int { close(done); wg.Wait(); return len(bySize) })
}

func keyAcross(t *testing.T, c *cluster) {
	for i := range 6 {
		from, to := c.members[i%len(c.members)], c.members[(i+1)%len(c.members)]
		key, token := newKey(t, from.Keys, appliance.KeyRequest{Name: fmt.Sprint("key ", i)}, time.Now())
		got, err := appliance.Authenticate(t.Context(), to.Keys, token)
		check(t, err)
		if got.ID != key.ID {
			t.Errorf("authenticated as %s, not %s", got.ID, key.ID)
		}
		list, err := to.Keys.List(t.Context())
		check(t, err)
		if len(list) != i+1 {
			t.Errorf("%d keys are listed, not %d", len(list), i+1)
		}
	}
}

func namesAcross(t *testing.T, c *cluster) {
	var stores []appliance.Keys
	for _, m := range c.members {
		stores = append(stores, m.Keys)
	}
	nameAcross(t, stores...)
}

// Once Revoke has returned on one member, no member appends another record of the key.
func revokedAcross(t *testing.T, c *cluster) {
	for round := range 8 {
		revoking, others := c.members[round%len(c.members)], c.members
		key, _ := newKey(t, revoking.Keys, appliance.KeyRequest{Name: fmt.Sprint("leaked ", round)}, time.Now())
		begun := make(chan struct{}, 1)
		var appending sync.WaitGroup
		for _, m := range others {
			for range 4 {
				appending.Go(func() { appendUntilRevoked(t, m, key.ID, begun) })
			}
		}
		<-begun
		_, err := revoking.Keys.Revoke(t.Context(), key.ID, time.Now())
		check(t, err)
		count := func() int {
			entries, err := revoking.Journal.List(t.Context(), journal.Query{KeyID: key.ID, Limit: 1000})
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

func appendUntilRevoked(t *testing.T, m Member, keyID string, begun chan<- struct{}) {
	for range 500 { // unless the key is refused earlier
		_, _, err := m.Journal.Append(t.Context(), Record(t, keyID))
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
	t.Error("the key was never refused")
}

func revocationSeen(t *testing.T, c *cluster) {
	key, token := newKey(t, c.members[0].Keys, appliance.KeyRequest{Name: "one"}, time.Now())
	for _, m := range c.members {
		_, err := appliance.Authenticate(t.Context(), m.Keys, token)
		check(t, err)
	}
	_, err := c.members[0].Keys.Revoke(t.Context(), key.ID, time.Now())
	check(t, err)
	begin := time.Now()
	for i, m := range c.members {
		for {
			got, err := m.Keys.Key(t.Context(), key.ID)
			check(t, err)
			if !got.Revoked.IsZero() {
				break
			}
			// The bound is generous for a busy machine. A member that misses the notification rereads all keys only
			// every half minute.
			if took := time.Since(begin); took > 15*time.Second {
				t.Fatalf("member %d has not seen the revocation after %s", i, took)
			}
			time.Sleep(time.Millisecond) // between two polls
		}
	}
}

func clocksApart(t *testing.T, c *cluster) {
	c.clocks[1].add(-time.Minute)
	c.clocks[2].add(time.Minute)
	var last time.Time
	for i := range 30 {
		e, _, err := c.members[i%len(c.members)].Journal.Append(t.Context(), Record(t, "key"))
		check(t, err)
		if e.Record.Time.Before(last) {
			t.Errorf("record %d is of %s, the one before of %s", e.Index, e.Record.Time, last)
		}
		last = e.Record.Time
	}
}
