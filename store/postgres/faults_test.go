package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// answered collects the answered entries by id.
type answered struct {
	mu      sync.Mutex
	entries map[uuid.UUID]journal.Entry
}

func (a *answered) add(e journal.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.entries == nil {
		a.entries = make(map[uuid.UUID]journal.Entry)
	}
	a.entries[e.ID()] = e
}

// wantKept checks that the journal has each answered entry once and unchanged, and that the tree is sound.
func (a *answered) wantKept(t *testing.T, j audit.Journal, key journal.LogKey) {
	t.Helper()
	found := make(map[uuid.UUID]int)
	size := 0
	check(t, j.Entries(t.Context(), 0, func(e journal.Entry) error {
		found[e.ID()]++
		if want, ok := a.entries[e.ID()]; ok && (want.Index != e.Index || string(want.Leaf) != string(e.Leaf)) {
			t.Errorf("%s was answered as record %d, and is %d", e.ID(), want.Index, e.Index)
		}
		size++
		return nil
	}))
	for id := range a.entries {
		if found[id] != 1 {
			t.Errorf("%s was answered, and is there %d times", id, found[id])
		}
	}
	wantClean(t, j, size)
}

// load appends from the given number of callers until the context ends. It sends each failure to failed.
func (a *answered) load(ctx context.Context, t *testing.T, journal audit.Journal, callers int,
	failed func(error)) *sync.WaitGroup {
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
				e, _, err := journal.Append(limited, storetest.Record(t, "key"))
				cancel()
				if err != nil {
					failed(err)
					continue
				}
				a.add(e)
			}
		})
	}
	return &wg
}

// through returns the URL of a new database through a faulty network, and its direct URL.
func through(t *testing.T) (proxy *postgrestest.Proxy, cut, direct string, d *postgrestest.Database) {
	t.Helper()
	direct, d = newDatabase(t)
	proxy = postgrestest.NewProxy(t, d.Server)
	return proxy, proxy.RoleURL(url.UserPassword(role, "secret"), d.Database), direct, d
}

// patient returns options that retry a change for as long as the test waits.
func patient(key journal.LogKey) postgres.Options {
	o := options(key)
	o.Timeout = patience
	return o
}

func TestNoRecordIsLostOrDoubledWhenTheConnectionIsCutAroundACommit(t *testing.T) {
	for name, cut := range map[string]postgrestest.Cut{
		"before": postgrestest.BeforeCommit, "in": postgrestest.InCommit, "after": postgrestest.AfterCommit,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newLogKey(t)
			proxy, cutURL, direct, _ := through(t)
			store, other := open(t, patiently(t, cutURL), patient(key)), open(t, direct, options(key))
			check(t, store.Journal().Ready(t.Context()))
			end := storetest.WatchCheckpoints(t, key.Verifier, member(other))
			proxy.Fail(postgrestest.Faults{Cut: cut, CutsLeft: 5})
			var kept answered
			for round := range 8 {
				var wg sync.WaitGroup
				for i := range 8 {
					wg.Go(func() {
						if i == 0 {
							e, err := store.Journal().AppendEvent(t.Context(), storetest.Event())
							if err != nil {
								t.Errorf("append an event: %v", err)
								return
							}
							kept.add(e)
							return
						}
						r := withIdempotencyKey(t, fmt.Sprint(round, " ", i))
						e, replayed, err := store.Journal().Append(t.Context(), r)
						if err != nil || replayed || e.Record.ID != r.ID {
							t.Errorf("append: replayed %v: %v", replayed, err)
							return
						}
						kept.add(e)
					})
				}
				wg.Wait()
			}
			wantCuts(t, proxy, cut)
			end()
			kept.wantKept(t, other.Journal(), key)
			if head, err := other.Head(t.Context()); err != nil || head.Size != 64 {
				t.Errorf("%d records, not 64: %v", head.Size, err)
			}
		})
	}
}

// wantCuts checks that five COMMITs of eight rounds of appends were cut, and that appends without an answer were sent
// again.
func wantCuts(t *testing.T, proxy *postgrestest.Proxy, cut postgrestest.Cut) {
	t.Helper()
	if left := proxy.CutsLeft(); left > 0 {
		t.Errorf("%d COMMITs were not cut", left)
	}
	want := int64(8 + 5) // the appends of a round may share a COMMIT
	if cut == postgrestest.AfterCommit {
		want = 8 // the client has the answers
	}
	if n := proxy.Commits(); n < want {
		t.Errorf("%d COMMITs were sent, not %d", n, want)
	}
}

func TestTheConnectionMayBeCutAtAnyMoment(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	proxy, cutURL, direct, _ := through(t)
	store, other := open(t, patiently(t, cutURL), patient(key)), open(t, direct, patient(key))
	check(t, store.Journal().Ready(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var kept answered
	loads := []*sync.WaitGroup{
		kept.load(ctx, t, store.Journal(), 8, func(err error) { t.Errorf("what is cut now and then: %v", err) }),
		kept.load(ctx, t, other.Journal(), 2, func(err error) { t.Errorf("who is not cut: %v", err) }),
	}
	for i := range 40 {
		for before := proxy.Commits(); proxy.Commits() < before+int64(i%3); { // some commits later
			time.Sleep(time.Millisecond)
		}
		proxy.Cut()
	}
	cancel()
	for _, l := range loads {
		l.Wait()
	}
	kept.wantKept(t, other.Journal(), key)
}

func TestWithoutItsDatabaseAStoreAnswersWithinItsDeadlineAndGoesOnByItself(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]postgrestest.Faults{"refused": {Refuse: true}, "silent": {Silent: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := newLogKey(t)
			proxy, cutURL, _, _ := through(t)
			o := options(key)
			o.Timeout = time.Second
			store := open(t, cutURL, o)
			appended := func() bool {
				_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
				return err == nil
			}
			await(t, "a record is appended", appended)
			proxy.Fail(faults)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, _, err := store.Journal().Append(ctx, storetest.Record(t, "key"))
			if code := appliance.CodeOf(err); code != appliance.CodeJournalUnavailable &&
				code != appliance.CodeTimeout {
				t.Errorf("without a database: %v", err)
			}
			if _, err := store.Journal().ByID(ctx, uuid.New()); err == nil ||
				appliance.CodeOf(err) == appliance.CodeNotFound {
				t.Errorf("a read without a database: %v", err)
			}
			await(t, "Ready fails", func() bool { return store.Journal().Ready(t.Context()) != nil })
			proxy.Fail(postgrestest.Faults{})
			await(t, "Ready", func() bool { return store.Journal().Ready(t.Context()) == nil })
			await(t, "a record is appended again", appended)
		})
	}
}

// patience bounds every wait of a test. The waits normally end far earlier.
const patience = time.Minute

// await polls until a condition holds.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("in %s not: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // between two polls
	}
}

func TestASerialisationFailureIsTriedAgain(t *testing.T) {
	for _, state := range []string{"40001", "40P01", "55P03"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			key := newLogKey(t)
			direct, d := newDatabase(t)
			d.Exec(t, "CREATE SEQUENCE failures", fmt.Sprintf(`CREATE FUNCTION fail() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql AS $$ BEGIN
				IF nextval('failures') %% 3 <> 0 THEN RAISE EXCEPTION 'as the test wants' USING ERRCODE = '%s'; END IF; RETURN NEW; END $$`, state),
				"CREATE TRIGGER fail BEFORE UPDATE OF size ON log_head FOR EACH ROW EXECUTE FUNCTION fail()")
			store := open(t, direct, options(key))
			var kept answered
			for range 5 {
				e, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
				check(t, err)
				kept.add(e)
			}
			kept.wantKept(t, store.Journal(), key)
			if n := d.Query(t, "SELECT last_value FROM failures"); n != "15" {
				t.Errorf("%s tries, not 15", n)
			}
		})
	}
}

// The primary becomes read-only under its clients, as after a demotion, and the synchronous standby replaces it.
func TestAppendsGoOnAtThePromotedStandby(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	first := postgrestest.NewServer(t, postgrestest.Settings{"fsync": "off"})
	check(t, postgres.Init(t.Context(), first.URL(postgrestest.Owner), role, "secret"))
	second := first.Standby(t, "second")
	first.Synchronous(t, "second")
	store := open(t, first.RoleURL(url.UserPassword(role, "secret"), postgrestest.Owner, second), options(key))
	check(t, store.Journal().Ready(t.Context()))
	var kept answered
	var mu sync.Mutex
	var failures []error
	ctx, cancel := context.WithCancel(t.Context())
	load := kept.load(ctx, t, store.Journal(), 8, func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failures = append(failures, err)
	})
	size := func() int {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return len(kept.entries)
	}
	await(t, "records are appended", func() bool { return size() > 20 })
	first.Set(t, postgrestest.Settings{"default_transaction_read_only": "on"})
	second.Detach(t)
	second.Promote(t)
	promoted, before := time.Now(), size()
	await(t, "records are appended again", func() bool { return size() > before+20 })
	t.Logf("attests again %s after the promotion", time.Since(promoted).Round(time.Millisecond))
	cancel()
	load.Wait()
	for _, err := range failures {
		if appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
			t.Errorf("at the failover: %v", err)
		}
	}
	kept.wantKept(t, store.Journal(), key)
	if on := second.Query(t, postgrestest.Owner, "SELECT size FROM log_head"); on == "0" || errors.Is(ctx.Err(), nil) {
		t.Errorf("the promoted standby has %s records", on)
	}
}
