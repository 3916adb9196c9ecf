package postgres_test

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

func TestAURLIsRefusedThatWouldGoWithoutTLS(t *testing.T) {
	for raw, fault := range map[string]string{
		"postgres://attestd@db.example.com/attestd":                                         "", // verify-full by default
		"postgres://attestd@db1.example.com:5432,db2.example.com:5433/attestd":              "",
		"postgres://attestd@db.example.com/attestd?sslmode=verify-full":                     "",
		"postgres://attestd@db.example.com/attestd?sslmode=require":                         "",
		"postgres://attestd@127.0.0.1/attestd?sslmode=disable":                              "",
		"postgres://attestd@[::1]:5432/attestd?sslmode=disable":                             "",
		"postgres://attestd@localhost/attestd":                                              "",
		"postgres:///attestd?host=/var/run/postgresql":                                      "",
		"postgres://attestd:hidden@db.example.com/attestd?sslmode=disable":                  "the connection to db.example.com could be without TLS",
		"postgres://attestd:hidden@db.example.com/attestd?sslmode=prefer":                   "the connection to db.example.com could be without TLS",
		"postgres://attestd:hidden@db.example.com/attestd?sslmode=allow":                    "the connection to db.example.com could be without TLS",
		"postgres://attestd:hidden@127.0.0.1,db.example.com/attestd?sslmode=disable":        "the connection to db.example.com could be without TLS",
		"postgres://attestd:hidden@db.example.com:port/attestd":                             "port",
		"postgres://attestd:hidden@db.example.com/attestd?sslmode=sometimes":                "failed to",
		"postgres://attestd@db.example.com/attestd?password=hidden&sslmode=sometimes":       "sslmode",
		"postgres://attestd:hidden%zz@db.example.com/attestd":                               "failed to",
		"postgres://attestd:hid@den@db.example.com/attestd?sslmode=disable":                 "as %40",
		"mysql://attestd:hidden@db.example.com/attestd":                                     "must begin with postgres://",
		"host=db.example.com password=hidden":                                               "must begin with postgres://",
		"postgres://attestd:hidden@db.example.com/attestd?sslrootcert=/no/such/hidden-file": "failed to",
	} {
		err := postgres.Check(raw)
		switch {
		case fault == "" && err != nil:
			t.Errorf("%s: %v", raw, err)
		case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
			t.Errorf("%s: %v, not %q", raw, err, fault)
		case err != nil && (strings.Contains(err.Error(), "hidden@") || strings.Contains(err.Error(), "=hidden&") || strings.Contains(err.Error(), "hidden%") || strings.Contains(err.Error(), "den@")):
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestOnlyVerifyFullVerifiesTheHost(t *testing.T) {
	for _, test := range []struct {
		environment, query string
		verifies           bool
	}{
		{"", "", true}, // verify-full by default
		{"", "?sslmode=verify-full", true},
		{"", "?sslmode=verify-ca", false},
		{"", "?sslmode=require", false},
		{"", "?sslmode=sometimes", false},
		{"require", "", false},
		{"verify-ca", "", false},
		{"verify-full", "", true},
		{"require", "?sslmode=verify-full", true},
		{"verify-full", "?sslmode=require", false},
	} {
		t.Setenv("PGSSLMODE", test.environment)
		if got := postgres.VerifiesHost("postgres://attestd@db1.example.com,db2.example.com/attestd" + test.query); got != test.verifies {
			t.Errorf("PGSSLMODE=%s, %s: %v", test.environment, test.query, got)
		}
	}
}

func TestAPasswordIsInNoError(t *testing.T) {
	d := postgrestest.NewDatabase(t)
	key := newLogKey(t)
	store := open(t, d.RoleURL(url.UserPassword("nobody", "hidden"), d.Database), options(key))
	err := store.Journal().Ready(t.Context())
	if err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("a wrong password: %v", err)
	}
	for raw, want := range map[string]string{
		"postgres://u:hidden@h:1,i:2/db?sslmode=require": "postgres://u:xxxxx@h:1,i:2/db?sslmode=require",
		"postgres://u@h/db?password=hidden&x=y":          "postgres://u@h/db?password=xxxxx&x=y",
		"postgres:///db?host=/tmp":                       "postgres:///db?host=/tmp",
		"hidden":                                         "(not a URL)",
	} {
		if got := postgres.Redact(raw); got != want {
			t.Errorf("%s becomes %s, not %s", raw, got, want)
		}
	}
}

func TestTheDaemonsRoleChangesNoTableAndNoRecord(t *testing.T) {
	raw, d := newDatabase(t)
	key := newLogKey(t)
	_, _, err := open(t, raw, options(key)).Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
	conn, err := pgx.Connect(t.Context(), raw)
	check(t, err)
	defer conn.Close(t.Context())
	for _, statement := range []string{
		"UPDATE records SET leaf = ''", "DELETE FROM records", "TRUNCATE records", "UPDATE hashes SET hash = ''", "DELETE FROM hashes",
		"DELETE FROM log_head", "INSERT INTO log_head (id) VALUES (1)", "DELETE FROM api_keys", "CREATE TABLE another (id int)",
		"ALTER TABLE records ADD COLUMN another int", "DROP TABLE records", "UPDATE goose_db_version SET version_id = 0", "CREATE ROLE another",
	} {
		if _, err := conn.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if owned := d.Query(t, "SELECT count(*) FROM pg_class WHERE relowner = 'attestd'::regrole"); owned != "0" {
		t.Errorf("the role owns %s tables", owned)
	}
	check(t, postgres.Init(t.Context(), d.URL(), role, "another")) // a second time
}

func TestAStoreStartsOnADatabaseInAnyStateAndServesOnceItCan(t *testing.T) {
	d := postgrestest.NewDatabase(t)
	d.Server.Exec(t, postgrestest.Owner, "DROP ROLE IF EXISTS later") // created below
	key := newLogKey(t)
	raw := d.RoleURL(url.UserPassword("later", "secret"), d.Database)
	store := open(t, raw, options(key))
	wantState := func(what string, want error) {
		t.Helper()
		await(t, what, func() bool {
			err := store.Journal().Ready(t.Context())
			return want == nil && err == nil || want != nil && errors.Is(err, want)
		})
	}
	if err := store.Journal().Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("without a role: %v", err)
	}
	d.Exec(t, "CREATE ROLE later LOGIN PASSWORD 'secret'")
	defer d.Exec(t, "DROP OWNED BY later", "DROP ROLE later")
	wantState("there is no schema", postgres.ErrNoSchema)
	check(t, postgres.Init(t.Context(), d.URL(), "later", ""))
	wantState("the schema is there", nil)
	schema, err := postgres.Status(t.Context(), raw)
	check(t, err)
	if schema.Version != schema.Newest || schema.Version == 0 {
		t.Errorf("the schema is %+v", schema)
	}
	d.Exec(t, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (1 + (SELECT max(version_id) FROM goose_db_version), true)")
	time.Sleep(time.Second) // two polls, after which the state must be unchanged
	wantState("old and new appliances work side by side", nil)
	_, _, err = store.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
	// Each transaction reads oldest_schema: an append must notice before Ready does.
	d.Exec(t, "UPDATE log_head SET oldest_schema = 1 + "+strconv.FormatInt(schema.Newest, 10))
	if _, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key")); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Errorf("an append into a schema that is too new: %v", err)
	}
	if _, err := store.Keys().Revoke(t.Context(), "aaaaaaaaaaaaaaaa", time.Now()); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Errorf("a change of an API key: %v", err)
	}
	if err := store.ChangeStopped(t.Context(), func(s string) (string, error) { return s, nil }); !errors.Is(err, postgres.ErrNewerSchema) {
		t.Errorf("a pause: %v", err)
	}
	wantState("the schema is too new", postgres.ErrNewerSchema)
	d.Exec(t, "UPDATE log_head SET oldest_schema = 1", "DELETE FROM goose_db_version WHERE version_id >= "+strconv.FormatInt(schema.Newest, 10))
	if _, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key")); !errors.Is(err, postgres.ErrOlderSchema) {
		t.Errorf("an append into a schema that is too old: %v", err)
	}
	if _, err := store.Journal().Verify(t.Context(), audit.Options{}); !errors.Is(err, postgres.ErrOlderSchema) {
		t.Errorf("an audit of a schema that is too old: %v", err)
	}
	wantState("the schema is too old", postgres.ErrOlderSchema)
	d.Exec(t, "DELETE FROM goose_db_version WHERE version_id > 0")
	wantState("the schema is not told", postgres.ErrNoSchema)
	d.Exec(t, "DELETE FROM goose_db_version")
}

func TestTwoLogKeysDoNotShareAJournal(t *testing.T) {
	raw, _ := newDatabase(t)
	check(t, open(t, raw, options(newLogKey(t))).Journal().Ready(t.Context()))
	second := open(t, raw, options(newLogKey(t)))
	if err := second.Journal().Ready(t.Context()); !errors.Is(err, postgres.ErrOtherLog) {
		t.Errorf("another log key: %v", err)
	}
	if _, _, err := second.Journal().Append(t.Context(), storetest.Record(t, "key")); !errors.Is(err, postgres.ErrOtherLog) {
		t.Errorf("another log key appends: %v", err)
	}
}

func TestAFastClockBindsNobodyElse(t *testing.T) {
	raw, _ := newDatabase(t)
	key := newLogKey(t)
	o := options(key)
	o.Now = func() time.Time { return time.Now().Add(time.Hour) }
	fast := open(t, raw, o)
	if err := fast.Journal().Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("ready an hour ahead of the database: %v", err)
	}
	if _, _, err := fast.Journal().Append(t.Context(), storetest.Record(t, "key")); appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("appended an hour ahead of the database: %v", err)
	}
	_, _, err := open(t, raw, options(key)).Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
}

func TestAMemberShowsItself(t *testing.T) {
	raw, _ := newDatabase(t)
	o := options(newLogKey(t))
	o.Member = postgres.Identity{Name: "one", Version: "1.2.3", Settings: func() postgres.Settings {
		return postgres.Settings{Signer: "0xabc", Scheme: "keccak256", Policy: "12", Screening: "34"}
	}}
	store := open(t, raw, o)
	_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
	var members []postgres.Member
	await(t, "it is a member that has appended", func() bool {
		members, err = store.Members(t.Context())
		check(t, err)
		return len(members) == 1 && members[0].Size == 1 && !members[0].LastAppend.IsZero()
	})
	m := members[0]
	if m.Name != "one" || m.Version != "1.2.3" || m.Instance == "" || !m.Live || m.Shared || time.Since(m.LastSeen).Abs() > time.Minute {
		t.Errorf("the member is %+v", m)
	}
	if want := (postgres.Settings{Signer: "0xabc", Scheme: "keccak256", Policy: "12", Screening: "34"}); m.Settings != want {
		t.Errorf("the member is %+v", m)
	}
}

func TestASecondProcessUnderTheNameOfAMemberIsNoticed(t *testing.T) {
	raw, d := newDatabase(t)
	o := options(newLogKey(t))
	o.Member = postgres.Identity{Name: "one"}
	member := func(s *postgres.Store) postgres.Member {
		t.Helper()
		members, err := s.Members(t.Context())
		check(t, err)
		if len(members) != 1 {
			t.Fatalf("members: %+v", members)
		}
		return members[0]
	}
	beat := func(s *postgres.Store) {
		t.Helper()
		_, err := s.Commit(t.Context())
		check(t, err)
	}
	first := open(t, raw, o)
	check(t, first.Journal().Ready(t.Context()))
	beat(first)
	beat(first)
	check(t, first.Close())
	second := open(t, raw, o) // a restart
	check(t, second.Journal().Ready(t.Context()))
	beat(second)
	if m := member(second); m.Shared {
		t.Errorf("a restart is taken for a second process: %+v", m)
	}
	third := open(t, raw, o)
	check(t, third.Journal().Ready(t.Context()))
	beat(third)
	beat(second)
	if m := member(third); !m.Shared {
		t.Errorf("a second process is not noticed: %+v", m)
	}
	d.Exec(t, "UPDATE members SET last_seen = last_seen - interval '1 hour', shared_seen = shared_seen - interval '1 hour', name = 'gone'")
	members, err := third.Members(t.Context())
	check(t, err)
	for _, m := range members {
		if m.Name == "gone" && (m.Live || m.Shared) {
			t.Errorf("an hour later: %+v", m)
		}
	}
	d.Exec(t, "UPDATE members SET last_seen = last_seen - interval '1 day' WHERE name = 'gone'")
	beat(third)
	if m := member(third); m.Name == "gone" {
		t.Errorf("a day later: %+v", m)
	}
}
