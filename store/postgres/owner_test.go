package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// The attacker in these tests can write every table and has no log key.

// owned is a store with one API key, in a database that the attacker can write.
type owned struct {
	t     *testing.T
	url   string
	d     *postgrestest.Database
	log   journal.LogKey
	o     postgres.Options
	store *postgres.Store
	key   appliance.APIKey
}

func newOwned(t *testing.T) *owned {
	t.Helper()
	w := &owned{t: t, log: newLogKey(t)}
	w.o = options(w.log)
	w.url, w.d = newDatabase(t)
	w.o.Versions = filepath.Join(t.TempDir(), "versions.json")
	w.restart()
	check(t, w.store.Journal().Ready(t.Context()))
	w.key = w.create("first")
	return w
}

// restart closes the store and opens it again.
func (w *owned) restart() {
	w.t.Helper()
	if w.store != nil {
		check(w.t, w.store.Close())
	}
	w.store = open(w.t, w.url, w.o)
}

func (w *owned) create(name string) appliance.APIKey {
	w.t.Helper()
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: name}, time.Now())
	check(w.t, err)
	check(w.t, w.store.Keys().Create(w.t.Context(), key))
	return key
}

// attest appends a record of an API key.
func (w *owned) attest(id string) error {
	r := storetest.Record(w.t, id)
	_, _, err := w.store.Journal().Append(w.t.Context(), r)
	return err
}

// refused waits until Ready fails with want, and expects the same error from an append.
func (w *owned) refused(want error) {
	w.t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		err := w.store.Journal().Ready(w.t.Context())
		if errors.Is(err, want) {
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the journal is ready: %v, not %v", err, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := w.attest(w.key.ID); !errors.Is(err, want) || appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		w.t.Errorf("a record is appended: %v, not %v", err, want)
	}
}

func TestAnAPIKeyThatTheDatabasesOwnerMadeIsRefused(t *testing.T) {
	t.Parallel()
	const planted = "INSERT INTO api_keys (id, key) SELECT 'aaaaaaaaaaaaaaaa', replace(key, id, 'aaaaaaaaaaaaaaaa') FROM api_keys LIMIT 1"
	for name, statements := range map[string][]string{
		"a row":                  {planted},
		"a row and a version":    {planted, "UPDATE log_head SET keys_version = keys_version + 1"},
		"a secret":               {"UPDATE api_keys SET key = replace(key, '\"secretHash\":\"0x', '\"secretHash\":\"0x0')", "UPDATE log_head SET keys_version = keys_version + 1"},
		"a key that was removed": {"DELETE FROM api_keys"},
		"all as in the beginning": {"DELETE FROM api_keys",
			"UPDATE log_head SET keys_version = 0, keys_digest = '', state_mac = ''"},
		"a MAC that was removed":        {planted, "UPDATE log_head SET keys_digest = '', state_mac = ''"},
		"a digest that fits":            {planted, "UPDATE log_head SET keys_digest = sha256(keys_digest)"},
		"an unclaimed journal's origin": {"UPDATE log_head SET log = '', state_mac = ''"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newOwned(t)
			check(t, w.attest(w.key.ID))
			w.d.Exec(t, statements...)
			w.restart()
			if name == "an unclaimed journal's origin" {
				if err := w.attest(w.key.ID); err == nil {
					t.Error("a record is appended")
				}
				return
			}
			w.refused(postgres.ErrForged)
			if _, err := w.store.Keys().Key(t.Context(), "aaaaaaaaaaaaaaaa"); err == nil {
				t.Error("the planted key is known")
			}
		})
	}
}

// TestARevokedKeyStaysRevoked restores the rows from before a revocation, with their MAC.
func TestARevokedKeyStaysRevoked(t *testing.T) {
	t.Parallel()
	w := newOwned(t)
	w.d.Exec(t, "CREATE TABLE saved_keys AS TABLE api_keys", "CREATE TABLE saved_head AS TABLE log_head")
	_, err := w.store.Keys().Revoke(t.Context(), w.key.ID, time.Now())
	check(t, err)
	waitVersions(t, w, `"keys":2`)
	w.d.Exec(t, "DELETE FROM api_keys", "INSERT INTO api_keys SELECT * FROM saved_keys",
		"UPDATE log_head SET (keys_version, keys_digest, state_mac) = (SELECT keys_version, keys_digest, state_mac FROM saved_head)")
	w.refused(postgres.ErrForgot)
	w.restart()
	w.refused(postgres.ErrForgot)
}

func TestAPauseThatTheDatabasesOwnerLiftsHolds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lift string
		want error
	}{
		"the text alone": {"UPDATE log_head SET stopped = ''", postgres.ErrForged},
		"with a version": {"UPDATE log_head SET stopped = '', stopped_version = stopped_version + 1",
			postgres.ErrForged},
		"as it was before it": {"UPDATE log_head SET (stopped, stopped_version, state_mac) = (SELECT stopped, stopped_version, state_mac FROM saved_head)", postgres.ErrForgot},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newOwned(t)
			w.d.Exec(t, "CREATE TABLE saved_head AS TABLE log_head")
			check(t, w.store.ChangeStopped(t.Context(), func(string) (string, error) { return `{"paused":{}}`, nil }))
			waitVersions(t, w, `"stops":1`)
			w.d.Exec(t, test.lift)
			w.refused(test.want)
			if got := w.store.Stopped(); got != `{"paused":{}}` {
				t.Errorf("stopped is %q", got)
			}
			w.restart()
			w.refused(test.want)
		})
	}
}

func waitVersions(t *testing.T, w *owned, want string) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		text, err := os.ReadFile(w.o.Versions)
		if err == nil && strings.Contains(string(text), want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %q, %v", w.o.Versions, text, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestARecordThatAnotherKeySignedIsNotAnswered replaces a record, in all columns, by one signed with another key.
func TestARecordThatAnotherKeySignedIsNotAnswered(t *testing.T) {
	t.Parallel()
	w := newOwned(t)
	j := w.store.Journal()
	fill(t, j, 20)
	real, err := j.ByIdempotencyKey(t.Context(), "key", "7")
	check(t, err)
	forged := real.Record
	forged.Attestation = storetest.Record(t, "key").Attestation // by another key
	forged.ID = real.Record.ID
	leaf, err := journal.EncodeLeaf(forged)
	check(t, err)
	if bytes.Equal(leaf, real.Leaf) {
		t.Fatal("nothing is forged")
	}
	w.d.Exec(t, "CREATE TABLE saved_records AS TABLE records")
	w.d.Exec(t,
		fmt.Sprintf(
			"UPDATE records SET leaf = '\\x%x', hash = sha256('\\x00%[1]x'), digest = '\\x%[2]x' WHERE id = '%[3]s'",
			leaf, forged.Hash[:], forged.ID))

	refused := func(what string, err error) {
		t.Helper()
		if appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
			t.Errorf("%s is answered: %v", what, err)
		}
	}
	_, err = j.ByIdempotencyKey(t.Context(), "key", "7")
	refused("a repeat", err)
	_, err = j.ByID(t.Context(), forged.ID)
	refused("the id", err)
	_, err = j.List(t.Context(), journal.Query{Hash: &forged.Hash})
	refused("a search by hash", err)
	_, err = j.Past(t.Context(), journal.PastQuery{KeyID: "key", Unspendable: &forged.UnspendableAddress})
	refused("who came first", err)
	again := storetest.Record(t, "key")
	again.IdempotencyKey = "7"
	_, _, err = j.Append(t.Context(), again)
	refused("a repeat that another appliance made first", err)

	// A record beyond the head, with an unused idempotency key.
	w.d.Exec(t,
		"INSERT INTO records (index, id, key_id, idempotency_key, time, hash, leaf) SELECT 1000, gen_random_uuid(), key_id, 'planted', time, hash, leaf FROM records WHERE index = 1")
	_, err = j.ByIdempotencyKey(t.Context(), "key", "planted")
	refused("a record beyond the head", err)
	w.d.Exec(t, "DELETE FROM records", "INSERT INTO records SELECT * FROM saved_records")
	if _, err := j.ByIdempotencyKey(t.Context(), "key", "7"); err != nil {
		t.Errorf("the record that was put back: %v", err)
	}
}

// TestMembersAgreeOnWhatTheMACCovers changes API keys and the stop state from two stores in turn.
func TestMembersAgreeOnWhatTheMACCovers(t *testing.T) {
	t.Parallel()
	w := newOwned(t)
	other := open(t, w.url, options(w.log))
	for i := range 6 {
		s := []*postgres.Store{w.store, other}[i%2]
		key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: fmt.Sprint(i)}, time.Now())
		check(t, err)
		check(t, s.Keys().Create(t.Context(), key))
		_, err = s.Keys().Bind(t.Context(), w.key.ID, fmt.Sprint("k", i))
		check(t, err)
		check(t, s.ChangeStopped(t.Context(), func(string) (string, error) { return fmt.Sprint(i), nil }))
		check(t, w.attest(w.key.ID))
		_, err = s.Keys().Revoke(t.Context(), key.ID, time.Now())
		check(t, err)
		for _, reader := range []*postgres.Store{w.store, other} {
			all, err := reader.Keys().List(t.Context())
			check(t, err)
			if len(all) != i+2 {
				t.Errorf("after %d keys there are %d", i+2, len(all))
			}
		}
	}
}
