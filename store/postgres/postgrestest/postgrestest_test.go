package postgrestest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/store/postgres/postgrestest"
)

func TestDatabasesAreApart(t *testing.T) {
	a, b := postgrestest.NewDatabase(t), postgrestest.NewDatabase(t)
	a.Exec(t, "CREATE TABLE seen (n int)", "INSERT INTO seen VALUES (1)")
	if got := a.Query(t, "SELECT count(*) FROM seen"); got != "1" {
		t.Errorf("%s rows", got)
	}
	if got := b.Query(t, "SELECT to_regclass('seen')"); got != "" {
		t.Errorf("%s is in the other database, too", got)
	}
}

func TestAStandbyHasWhatWasCommitted(t *testing.T) {
	primary := postgrestest.NewServer(t, nil)
	standby := primary.Standby(t, "second")
	primary.Synchronous(t, "second")
	primary.Exec(t, postgrestest.Owner, "CREATE TABLE seen (n int)", "INSERT INTO seen VALUES (1)")
	primary.Kill(t)
	standby.Promote(t)
	standby.Exec(t, postgrestest.Owner, "INSERT INTO seen VALUES (2)")
	if got := standby.Query(t, postgrestest.Owner, "SELECT count(*) FROM seen"); got != "2" {
		t.Errorf("%s rows", got)
	}
	// The killed server returns as the standby, and a client of both servers finds the primary.
	primary.Follow(t, standby)
	standby.Synchronous(t, "first")
	conn, err := pgx.Connect(t.Context(), primary.URL(postgrestest.Owner, standby))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "INSERT INTO seen VALUES (3)"); err != nil {
		t.Error(err)
	}
}

func TestAStandbyThatIsDetachedLosesTheTail(t *testing.T) {
	primary := postgrestest.NewServer(t, nil)
	primary.Exec(t, postgrestest.Owner, "CREATE TABLE seen (n int)")
	standby := primary.Standby(t, "second")
	standby.Detach(t)
	primary.Exec(t, postgrestest.Owner, "INSERT INTO seen VALUES (1)")
	primary.Kill(t)
	standby.Promote(t)
	if got := standby.Query(t, postgrestest.Owner, "SELECT count(*) FROM seen"); got != "0" {
		t.Errorf("%s rows", got)
	}
}

func TestAFrozenServerAnswersNothing(t *testing.T) {
	server := postgrestest.NewServer(t, nil)
	conn, err := pgx.Connect(t.Context(), server.URL(postgrestest.Owner))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	server.Freeze(t)
	frozen, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(frozen, "SELECT 1"); err == nil {
		t.Error("it answers")
	}
	server.Thaw(t)
	if got := server.Query(t, postgrestest.Owner, "SELECT 1"); got != "1" {
		t.Errorf("it answers %s after", got)
	}
	server.Stop(t)
	server.Start(t)
	if _, err := os.Stat(server.Dir); err != nil {
		t.Error(err)
	}
}

func TestAServerWhoseDiskIsFull(t *testing.T) {
	server := postgrestest.NewSmallServer(t, 200<<20, nil)
	server.Exec(t, postgrestest.Owner, "CREATE TABLE seen (text text)")
	free := server.Fill(t)
	insert := func() error {
		conn, err := pgx.Connect(t.Context(), server.URL(postgrestest.Owner))
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(),
			"INSERT INTO seen SELECT repeat(md5(random()::text), 1000) FROM generate_series(1, 2000)")
		return err
	}
	if err := insert(); err == nil {
		t.Error("it takes what it has no room for")
	}
	free()
	if server.PID() == 0 { // the server ends if its log cannot grow
		server.Start(t)
	}
	if err := insert(); err != nil {
		t.Error(err)
	}
}
