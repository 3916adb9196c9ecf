package postgrestest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// A client inserts a row in a transaction, with both ways to send COMMIT.
func TestCutsAroundCommit(t *testing.T) {
	d := postgrestest.NewDatabase(t)
	p := postgrestest.NewProxy(t, d.Server)
	d.Exec(t, "CREATE TABLE seen (n int)")
	simple := func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "COMMIT")
		return err
	}
	prepared := func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.PgConn().ExecParams(ctx, "commit", nil, nil, nil, nil).Close()
		return err
	}
	batch := func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.PgConn().Exec(ctx, "SELECT 1; COMMIT;").ReadAll()
		return err
	}
	ways := map[string]func(context.Context, *pgx.Conn) error{"simple": simple, "prepared": prepared, "batch": batch}
	for _, c := range []struct {
		name      string
		cut       postgrestest.Cut
		committed string
		answered  bool
	}{
		{"never", postgrestest.Never, "1", true},
		{"before", postgrestest.BeforeCommit, "0", false},
		{"in", postgrestest.InCommit, "1", false},
		{"after", postgrestest.AfterCommit, "1", true},
	} {
		for way, commit := range ways {
			t.Run(c.name+" "+way, func(t *testing.T) {
				d.Exec(t, "TRUNCATE seen")
				conn, err := pgx.Connect(t.Context(), p.URL(d.Database))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.Background())
				p.Fail(postgrestest.Faults{Cut: c.cut, CutsLeft: 1})
				for _, statement := range []string{"BEGIN", "INSERT INTO seen VALUES (1)"} {
					if _, err := conn.Exec(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
				if err := commit(t.Context(), conn); (err == nil) != c.answered {
					t.Errorf("COMMIT: %v", err)
				}
				if _, err := conn.Exec(t.Context(), "SELECT 1"); (err == nil) != (c.cut == postgrestest.Never) {
					t.Errorf("after it: %v", err)
				}
				if got := d.Query(t, "SELECT count(*) FROM seen"); got != c.committed {
					t.Errorf("%s rows, want %s", got, c.committed)
				}
			})
		}
	}
	if got := p.Commits(); got != 12 {
		t.Errorf("%d COMMITs, want 12", got)
	}
}

func TestANetworkThatFails(t *testing.T) {
	d := postgrestest.NewDatabase(t)
	p := postgrestest.NewProxy(t, d.Server)
	const soon = 300 * time.Millisecond // for clients without an answer
	ask := func(conn *pgx.Conn, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := conn.Exec(ctx, "SELECT 1")
		return err
	}
	dial := func(limit time.Duration) (*pgx.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return pgx.Connect(ctx, p.URL(d.Database))
	}
	for name, faults := range map[string]postgrestest.Faults{"refused": {Refuse: true}, "silent": {Silent: true}} {
		t.Run(name, func(t *testing.T) {
			conn, err := dial(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			p.Fail(faults)
			if err := ask(conn, soon); err == nil {
				t.Error("the connection answers")
			}
			if _, err := dial(soon); err == nil {
				t.Error("a new connection is made")
			}
			p.Fail(postgrestest.Faults{})
			conn, err = dial(time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if err := ask(conn, time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	conn, err := dial(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	p.Fail(postgrestest.Faults{CommitDelay: 100 * time.Millisecond})
	began := time.Now()
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("a slow COMMIT took %s: %v", time.Since(began), err)
	}
}
