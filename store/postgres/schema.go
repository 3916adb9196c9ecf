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

// grants are what the daemon's role may do, by table. It owns nothing and changes no table.
var grants = map[string]string{
	"log_head":         "SELECT, UPDATE",
	"records":          "SELECT, INSERT",
	"hashes":           "SELECT, INSERT",
	"api_keys":         "SELECT, INSERT, UPDATE",
	"members":          "SELECT, INSERT, UPDATE, DELETE",
	"rates":            "SELECT, INSERT, UPDATE",
	"goose_db_version": "SELECT",
}

const schemaTimeout = 10 * time.Minute // of a migration, which may have to read all records

// Schema is the layout of a database.
type Schema struct {
	Version int64 // of the database; 0 where there is none of attestd
	Newest  int64 // that this attestd knows
}

// checkVersion returns an error unless this attestd knows the schema, or the schema is newer and check has accepted its oldest_schema.
func checkVersion(version int64) error {
	newest := newestVersion()
	switch {
	case version >= newest:
		return nil
	case version == 0:
		return fmt.Errorf("%w: its owner makes it: attestd store init", ErrNoSchema)
	}
	return fmt.Errorf("%w: it has version %d, this attestd needs %d: its owner brings it there: attestd store migrate", ErrOlderSchema, version, newest)
}

// newestVersion is the number of the last migration.
var newestVersion = sync.OnceValue(func() (newest int64) {
	entries, _ := fs.ReadDir(migrations, "migrations") // embedded: never fails
	for _, e := range entries {
		if n, err := goose.NumericComponent(e.Name()); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
})

// Init makes the schema, and a role for the daemons that may use it and not change it. The URL is the owner's. A role that is there
// is taken as it is, unless it may more than it must; a password that is not empty becomes its own. What is there already stays.
func Init(ctx context.Context, url, role, password string) error {
	if role == "" {
		return errors.New("no role is given")
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

// Migrate brings the schema to the version of this attestd, and gives the role its rights on what is new. The URL is the owner's.
func Migrate(ctx context.Context, url, role string) (from, to int64, err error) {
	from, to, err = migrate(ctx, url)
	if err != nil || role == "" {
		return from, to, err
	}
	return from, to, owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error { return grant(ctx, conn, role) })
}

// Status tells the version of the schema. Whoever may read may ask.
func Status(ctx context.Context, url string) (Schema, error) {
	schema := Schema{Newest: newestVersion()}
	err := owner(ctx, url, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&schema.Version)
		if stateOf(err) == stateNoTable {
			return nil
		}
		return err
	})
	return schema, err
}

// owner runs fn on a connection of its own.
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
	return fn(ctx, conn)
}

func migrate(ctx context.Context, url string) (from, to int64, err error) {
	config, err := parse(url)
	if err != nil {
		return 0, 0, err
	}
	db := stdlib.OpenDB(*config)
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
		return from, from, fmt.Errorf("%w: it has version %d, this attestd knows %d", ErrNewerSchema, from, newest)
	}
	if _, err = provider.Up(ctx); err != nil {
		return from, from, err
	}
	return from, newestVersion(), nil
}

// quoted is a name as SQL has it.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// makeRole makes a role that may log in and nothing else.
func makeRole(ctx context.Context, conn *pgx.Conn, role, password string) error {
	var powerful bool
	err := conn.QueryRow(ctx, "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication FROM pg_roles WHERE rolname = $1", role).Scan(&powerful)
	name := quoted(role)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		if _, err := conn.Exec(ctx, "CREATE ROLE "+name+" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"); err != nil && stateOf(err) != stateRoleExists && stateOf(err) != stateUnique {
			return err // else somebody has just made it
		}
	case err != nil:
		return err
	case powerful:
		return errors.New("it may do more than the daemon's role must: take another")
	}
	if password == "" {
		return nil
	}
	secret, err := scramSecret(password)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		_, err = conn.Exec(ctx, "ALTER ROLE "+name+" PASSWORD '"+secret+"'") // which has no quotes in it
		if stateOf(err) != stateInternal || !pause(ctx, attempt) {           // "tuple concurrently updated"
			return err
		}
	}
}

// scramSecret is what PostgreSQL keeps of a password (RFC 5803), so that the password itself reaches neither the server nor its log.
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
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}

// grant gives a role its rights, and no others.
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
