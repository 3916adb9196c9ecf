package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// LogOf returns the name and hash of the log key of a database's journal, "" for an empty database. Any role that may
// read the tables can call it.
func LogOf(ctx context.Context, url string) (log string, err error) {
	err = owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT log FROM log_head WHERE id = 1").Scan(&log)
	})
	if err != nil {
		return "", explain(err)
	}
	return log, nil
}

// Pending returns the migrations that Migrate runs from a version. Each has the file's name and its first comment.
func Pending(version int64) (pending []string) {
	files, _ := fs.Glob(migrations, "migrations/*.sql") // embedded: never fails
	for _, name := range files {
		if n, err := goose.NumericComponent(name); err != nil || n <= version {
			continue
		}
		text, _ := fs.ReadFile(migrations, name)
		_, base, _ := strings.Cut(name, "/")
		pending = append(pending, strings.TrimSuffix(base+": "+purpose(string(text)), ": "))
	}
	return pending
}

// purpose returns the first comment after "-- +goose Up" on one line.
func purpose(migration string) string {
	_, up, _ := strings.Cut(migration, "-- +goose Up\n")
	var words []string
	for line := range strings.Lines(strings.TrimLeft(up, "\n")) {
		comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "--")
		if !isComment {
			break
		}
		words = append(words, strings.Fields(comment)...)
	}
	return strings.Join(words, " ")
}

// Server describes a server and its settings for durability.
type Server struct {
	Address string // host:port of the primary, or the folder of its socket
	Version string
	TLS     string        // the protocol's version; "" without TLS
	Remote  bool          // it is reached over a network
	Offset  time.Duration // its clock minus this machine's

	InRecovery                        bool // a standby
	Fsync, FullPageWrites             bool
	SynchronousCommit, SynchronousFor string // synchronous_commit, synchronous_standby_names

	Role        string   // of the daemons
	Owned       []string // tables of attestd that the role owns
	Powers      []string // privileges that the role does not need: SUPERUSER, CREATE in the schema, …
	Missing     []string // privileges that the role lacks
	Connections int      // in use, in all databases
	Most        int      // max_connections without the reserved ones
}

// Synchronous reports whether a COMMIT waits for a standby.
func (s Server) Synchronous() bool {
	return s.SynchronousFor != "" && (s.SynchronousCommit == "on" || s.SynchronousCommit == "remote_apply")
}

const serverQuery = `SELECT current_user::text, split_part(version(), ' ', 2), coalesce((SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()), ''),
	clock_timestamp(), pg_is_in_recovery(), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
	current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
	(SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database),
	current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int`

// powersQuery returns the privileges that the daemon's role must not have.
const powersQuery = `SELECT array_remove(ARRAY[
	CASE WHEN rolsuper THEN 'SUPERUSER' END, CASE WHEN rolcreaterole THEN 'CREATEROLE' END, CASE WHEN rolcreatedb THEN 'CREATEDB' END,
	CASE WHEN rolreplication THEN 'REPLICATION' END, CASE WHEN rolbypassrls THEN 'BYPASSRLS' END,
	CASE WHEN has_schema_privilege(current_schema(), 'CREATE') THEN 'CREATE in the schema ' || current_schema() END], NULL)
	FROM pg_roles WHERE rolname = current_user`

// Server queries the server.
func (s *Store) Server(ctx context.Context) (server Server, err error) {
	conn, err := s.read.Acquire(ctx)
	if err != nil {
		return server, answer(ctx, "query the database", err)
	}
	defer conn.Release()
	server.Address, _ = conn.Conn().PgConn().CustomData()[reached].(string)
	host, _, err := net.SplitHostPort(server.Address)
	if err != nil { // a socket
		host, server.Address = "", filepath.Dir(server.Address)
	}
	server.Remote = host != "" && !isLocal(host)
	var clock time.Time
	before := s.opts.Now()
	err = conn.QueryRow(ctx, serverQuery).Scan(&server.Role, &server.Version, &server.TLS, &clock, &server.InRecovery,
		&server.Fsync, &server.FullPageWrites,
		&server.SynchronousCommit, &server.SynchronousFor, &server.Connections, &server.Most)
	if err != nil {
		return server, answer(ctx, "query the database", err)
	}
	after := s.opts.Now()
	server.Offset = clock.Sub(before.Add(after.Sub(before) / 2))
	if err := s.rights(ctx, conn.Conn(), &server); err != nil {
		return server, answer(ctx, "query the role's privileges", err)
	}
	return server, nil
}

// Commit commits once, waits for the synchronous standbys as an append does, and returns how long that took.
func (s *Store) Commit(ctx context.Context) (took time.Duration, err error) {
	begun := time.Now()
	if _, err := s.confirmer.shared.do(ctx, s.confirmer.commit); err != nil {
		return 0, fmt.Errorf("%w: %w", errUnconfirmed, explain(err))
	}
	return time.Since(begun), nil
}

// rights compares the privileges of the role with grants.
func (s *Store) rights(ctx context.Context, conn *pgx.Conn, server *Server) error {
	if err := conn.QueryRow(ctx, powersQuery).Scan(&server.Powers); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	const owned = `SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = current_schema() AND c.relkind = 'r' AND pg_has_role(c.relowner, 'MEMBER') ORDER BY 1`
	rows, err := conn.Query(ctx, owned)
	if err == nil {
		server.Owned, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return err
	}
	for table, rights := range grants {
		for right := range strings.SplitSeq(rights, ", ") {
			var has bool
			if err := conn.QueryRow(ctx, "SELECT coalesce(has_table_privilege(to_regclass($1), $2), false)", table,
				right).Scan(&has); err != nil {
				return err
			}
			if !has {
				server.Missing = append(server.Missing, right+" on "+table)
			}
		}
	}
	return nil
}
