package postgres_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

func TestAPoolerThatSharesSessionsIsRefused(t *testing.T) {
	for _, settings := range []string{"pool_mode = transaction", "pool_mode = transaction\nserver_round_robin = 1",
		"pool_mode = statement"} {
		t.Run(settings, func(t *testing.T) {
			_, d := newDatabase(t)
			bouncer := postgrestest.NewPgBouncer(t, d.Server, settings)
			raw := patiently(t, bouncer.RoleURL(url.UserPassword(role, "secret"), d.Database))
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, postgres.ErrPooled) || !strings.Contains(err.Error(), "pool_mode = session") {
					t.Errorf("%s: %v", what, err)
				}
			}
			store := open(t, raw, options(newLogKey(t)))
			refused("the first look", store.Journal().Ready(t.Context()))
			_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
			refused("an append", err)
			refused("store init",
				postgres.Init(t.Context(), bouncer.RoleURL(url.User(postgrestest.Owner), d.Database), role, ""))
			_, err = postgres.Status(t.Context(), raw)
			refused("doctor", err)
			if n := d.Query(t, "SELECT size FROM log_head"); n != "0" {
				t.Errorf("the journal has %s records", n)
			}
		})
	}
}

func TestAPoolerThatKeepsSessionsServes(t *testing.T) {
	_, d := newDatabase(t)
	bouncer := postgrestest.NewPgBouncer(t, d.Server, "pool_mode = session")
	store := open(t, patiently(t, bouncer.RoleURL(url.UserPassword(role, "secret"), d.Database)), options(newLogKey(t)))
	check(t, store.Journal().Ready(t.Context()))
	for range 3 {
		_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
		check(t, err)
	}
	if _, err := store.Server(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAPoolerThatKeepsSessionsMayHaveOnlyOneLeft(t *testing.T) {
	_, d := newDatabase(t)
	bouncer := postgrestest.NewPgBouncer(t, d.Server, "pool_mode = session\ndefault_pool_size = 1")
	_, err := postgres.Status(t.Context(), bouncer.RoleURL(url.UserPassword(role, "secret"), d.Database))
	check(t, err)
}
