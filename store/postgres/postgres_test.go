package postgres_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// role is the daemon's role in all tests. It owns no table.
const role = "attestd"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newLogKey(t testing.TB) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	return key
}

// newDatabase returns the URL of a new database for the daemon's role.
func newDatabase(t testing.TB) (string, *postgrestest.Database) {
	t.Helper()
	d := postgrestest.NewDatabase(t)
	check(t, postgres.Init(t.Context(), patiently(t, d.URL()), role, "secret"))
	return patiently(t, d.RoleURL(url.UserPassword(role, "secret"), d.Database)), d
}

// patiently sets a long connect_timeout in a URL, enough for the busiest machine.
func patiently(t testing.TB, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	check(t, err)
	q := u.Query()
	q.Set("connect_timeout", "60")
	u.RawQuery = q.Encode()
	return u.String()
}

func open(t testing.TB, url string, o postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(url, o)
	check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func options(key journal.LogKey) postgres.Options {
	return postgres.Options{Signer: key.Signer, Verifier: key.Verifier}
}

func TestConformance(t *testing.T) {
	key := newLogKey(t)
	at := func(t *testing.T, now func() time.Time) *postgres.Store {
		o := options(key)
		// The suite tests that time does not go back. How far it may stand still is tested elsewhere.
		o.Now, o.MaxAhead = now, 24*time.Hour
		url, _ := newDatabase(t)
		return open(t, url, o)
	}
	t.Run("journal", func(t *testing.T) {
		storetest.TestJournal(t, func(t *testing.T, now func() time.Time) audit.Journal {
			return at(t, now).Journal()
		}, key.Verifier)
	})
	t.Run("keys", func(t *testing.T) {
		storetest.TestKeys(t, func(t *testing.T) appliance.Keys { return at(t, time.Now).Keys() })
	})
	t.Run("members", func(t *testing.T) {
		storetest.TestMembers(t, func(t *testing.T, clocks ...func() time.Time) (members []storetest.Member) {
			url, _ := newDatabase(t)
			for _, now := range clocks {
				o := options(key)
				o.Now = now
				members = append(members, member(open(t, url, o)))
			}
			return members
		}, key.Verifier)
	})
	t.Run("conditions", func(t *testing.T) {
		storetest.TestConditions(t, func(t *testing.T, now func() time.Time) (appliance.Keys, audit.Journal) {
			s := at(t, now)
			return s.Keys(), s.Journal()
		})
	})
	t.Run("revocation", func(t *testing.T) {
		storetest.TestRevocation(t, func(t *testing.T, now func() time.Time) (appliance.Keys, audit.Journal) {
			s := at(t, now)
			return s.Keys(), s.Journal()
		})
	})
}

func member(s *postgres.Store) storetest.Member {
	return storetest.Member{Keys: s.Keys(), Journal: s.Journal()}
}
