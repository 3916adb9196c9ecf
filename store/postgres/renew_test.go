package postgres_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// ownRole creates a role for one test, which may change its password.
func ownRole(t *testing.T, d *postgrestest.Database, password string) (name string) {
	t.Helper()
	name = "role_" + d.Database
	check(t, postgres.Init(t.Context(), d.URL(), name, password))
	return name
}

func TestAPasswordThatChangesInItsFileIsReadForTheNextConnection(t *testing.T) {
	t.Parallel()
	_, d := newDatabase(t)
	name := ownRole(t, d, "first")
	passfile := filepath.Join(t.TempDir(), "passfile")
	write := func(password string) {
		check(t, os.WriteFile(passfile, []byte("*:*:*:*:"+password+"\n"), 0o600))
	}
	write("first")
	u, err := url.Parse(patiently(t, d.RoleURL(url.User(name), d.Database)))
	check(t, err)
	q := u.Query()
	q.Set("passfile", passfile)
	u.RawQuery = q.Encode()
	store := open(t, u.String(), patient(newLogKey(t)))
	_, _, err = store.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)

	check(t, postgres.Init(t.Context(), d.URL(), name, "second"))
	write("second")
	d.Query(t, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '"+name+"'")
	await(t, "records are appended with the new password", func() bool {
		_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
		return err == nil
	})
}

func TestAnotherURLIsUsedOnceItLeadsToTheJournal(t *testing.T) {
	t.Parallel()
	_, d := newDatabase(t)
	name := ownRole(t, d, "first")
	as := func(password, database string) string {
		return patiently(t, d.RoleURL(url.UserPassword(name, password), database))
	}
	key := newLogKey(t)
	store := open(t, as("first", d.Database), patient(key))
	_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)

	check(t, postgres.Init(t.Context(), d.URL(), name, "second"))
	if err := store.CheckURL(t.Context(), as("wrong", d.Database)); err == nil ||
		strings.Contains(err.Error(), "wrong@") {
		t.Errorf("a wrong password: %v", err)
	}
	elsewhere, _ := newDatabase(t)
	open(t, elsewhere, options(newLogKey(t)))
	await(t, "another journal is refused", func() bool {
		return errors.Is(store.CheckURL(t.Context(), elsewhere), postgres.ErrOtherLog)
	})
	check(t, store.CheckURL(t.Context(), as("second", d.Database)))
	store.UseURL(as("second", d.Database))
	for i := range 3 {
		d.Query(t, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '"+name+"'")
		await(t, fmt.Sprint("record ", i), func() bool {
			_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
			return err == nil
		})
	}
}
