package postgres

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// grants are the privileges of the daemon's role, by table. The role owns no table.
var grants = map[string]string{
	"log_head":         "SELECT, UPDATE",
	"records":          "SELECT, INSERT",
	"hashes":           "SELECT, INSERT",
	"api_keys":         "SELECT, INSERT, UPDATE",
	"members":          "SELECT, INSERT, UPDATE, DELETE",
	"rates":            "SELECT, INSERT, UPDATE",
	"webhooks":         "SELECT, INSERT, UPDATE, DELETE",
	"webhook_holder":   "SELECT, UPDATE",
	"goose_db_version": "SELECT",
}

const schemaTimeout = 10 * time.Minute // a migration may read all records

// Schema is the schema version of a database.
type Schema struct {
	Version int64 // of the database; 0 without attestd's tables
	Newest  int64 // the newest that this attestd knows
	Oldest  int64 // the oldest whose attestd may use the database; unknown, 0, if Version is less than Newest
}

// Check returns an error if this attestd must not use the database.
func (s Schema) Check() error { return checkVersion(s.Version, s.Oldest) }

// checkVersion returns an error if this attestd must not use a schema of that version. A schema may be newer than this
// attestd, unless a migration has set log_head.oldest_schema to a newer version. It must not be older.
func checkVersion(version, oldest int64) error {
	newest := newestVersion()
	switch {
	case version == 0:
		return fmt.Errorf("%w. As the database's owner, run: attestd store init", ErrNoSchema)
	case version < newest:
		return fmt.Errorf(
			"%w: it has version %d, this attestd needs %d. As the database's owner, run: attestd store migrate",
			ErrOlderSchema, version, newest)
	case oldest > newest:
		return fmt.Errorf(
			"%w: the database requires schema version %d or newer, this attestd has %d: install the newer attestd",
			ErrNewerSchema, oldest, newest)
	}
	return nil
}

// newestVersion returns the number of the last migration.
var newestVersion = sync.OnceValue(func() (newest int64) {
	entries, _ := fs.ReadDir(migrations, "migrations") // embedded: never fails
	for _, e := range entries {
		if n, err := goose.NumericComponent(e.Name()); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
})

// Init creates the schema and a role for the daemons, which may use the tables but not alter them. url is the owner's.
// An existing role is used unless it has too many privileges. A password that is not empty is set. Existing tables
// stay.
func Init(ctx context.Context, url, role, password string) error {
	if role == "" {
		return errors.New("the role is empty")
	}
	if _, _, err := migrate(ctx, url); err != nil {
		return err
	}
	return owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		if err := makeRole(ctx, conn, role, password); err != nil {
			return fmt.Errorf("role %q: %w", role, err)
		}
		return grant(ctx, conn, role)
	})
}

// Migrate migrates the schema to this attestd's version and grants the role its privileges on new tables. url is the
// owner's.
func Migrate(ctx context.Context, url, role string) (from, to int64, err error) {
	from, to, err = migrate(ctx, url)
	if err != nil || role == "" {
		return from, to, err
	}
	return from, to, owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error { return grant(ctx, conn, role) })
}

// Status returns the version of the schema. Any role that may read the tables can call it.
func Status(ctx context.Context, url string) (Schema, error) {
	schema := Schema{Newest: newestVersion()}
	err := owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx,
			"SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&schema.Version)
		switch {
		case stateOf(err) == stateNoTable:
			return nil
		case err != nil || schema.Version < schema.Newest:
			return err
		}
		return conn.QueryRow(ctx, "SELECT oldest_schema FROM log_head WHERE id = 1").Scan(&schema.Oldest)
	})
	return schema, err
}

// owner runs fn on a new connection.
func owner(ctx context.Context, url string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	config, err := parse(url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := refusePooler(ctx, conn); err != nil {
		return err
	}
	return fn(ctx, conn)
}

func migrate(ctx context.Context, url string) (from, to int64, err error) {
	config, err := parse(url)
	if err != nil {
		return 0, 0, err
	}
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := refusePooler(ctx, conn)
		return err
	}))
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return 0, 0, err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files)
	if err != nil {
		return 0, 0, err
	}
	if from, err = provider.GetDBVersion(ctx); err != nil {
		return 0, 0, err
	}
	if newest := newestVersion(); from > newest {
		return from, from, fmt.Errorf("%w: it has version %d, this attestd supports %d", ErrNewerSchema, from, newest)
	}
	if _, err = provider.Up(ctx); err != nil {
		return from, from, err
	}
	return from, newestVersion(), nil
}

// quoted returns a name as a quoted SQL identifier.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// makeRole creates a role with the privilege to log in and no other.
func makeRole(ctx context.Context, conn *pgx.Conn, role, password string) error {
	var powerful bool
	err := conn.QueryRow(ctx,
		"SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication FROM pg_roles WHERE rolname = $1", role).Scan(&powerful)
	name := quoted(role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if _, err := conn.Exec(ctx, "CREATE ROLE "+name+
			" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"); err != nil && stateOf(
			err) != stateRoleExists && stateOf(err) != stateUnique {
			return err // otherwise another process has just created it
		}
	case err != nil:
		return err
	case powerful:
		return errors.New("the role has more privileges than the daemon needs: use another role")
	}
	if password == "" {
		return nil
	}
	secret, err := scramSecret(password)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		_, err = conn.Exec(ctx, "ALTER ROLE "+name+" PASSWORD '"+secret+"'") // a SCRAM verifier contains no quotes
		if stateOf(err) != stateInternal || !pause(ctx, attempt) {           // "tuple concurrently updated"
			return err
		}
	}
}

// scramSecret returns the SCRAM verifier that PostgreSQL stores (RFC 5803). The password itself reaches neither the
// server nor its log.
func scramSecret(password string) (string, error) {
	const rounds = 4096 // PostgreSQL's own
	salt := make([]byte, 16)
	rand.Read(salt) // never fails (Go 1.24)
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", err
	}
	sign := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, encode(salt), encode(stored[:]),
		encode(sign("Server Key"))), nil
}

// grant sets the privileges of a role and revokes all others.
func grant(ctx context.Context, conn *pgx.Conn, role string) error {
	name := quoted(role)
	var database, schema string
	if err := conn.QueryRow(ctx, "SELECT current_database(), current_schema()").Scan(&database, &schema); err != nil {
		return err
	}
	statements := []string{
		"GRANT CONNECT ON DATABASE " + quoted(database) + " TO " + name,
		"GRANT USAGE ON SCHEMA " + quoted(schema) + " TO " + name,
	}
	for table, rights := range grants {
		statements = append(statements, "REVOKE ALL ON "+table+" FROM "+name, "GRANT "+rights+" ON "+table+" TO "+name)
	}
	slices.Sort(statements[2:])
	slices.Reverse(statements[2:]) // REVOKE before GRANT
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, strings.Join(statements, "; "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}
