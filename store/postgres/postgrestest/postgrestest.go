// Package postgrestest provides real PostgreSQL servers for tests, from the distribution's package. It creates cheap
// databases on a server that all tests of a process share; primaries and standbys that a test can kill, stop and
// promote; and a proxy that cuts connections before, during and after a COMMIT.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// Database is an empty database for one test. Its owner is the superuser.
type Database struct {
	*Server
	Database string
}

// NewDatabase creates a database on the server that all tests of this process share, and drops it when the test ends.
// That server does not sync to disk: its data survives a kill of its clients, but not a crash.
func NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	s, err := shared()
	check(tb, err)
	d := &Database{s, fmt.Sprintf("test%d", databases.Add(1))}
	d.Server.Exec(tb, Owner, "CREATE DATABASE "+d.Database)
	tb.Cleanup(func() { _ = s.exec(Owner, "DROP DATABASE "+d.Database+" WITH (FORCE)") })
	return d
}

// URL returns the owner's URL over TCP.
func (d *Database) URL() string { return d.Server.URL(d.Database) }

// SocketURL returns the owner's URL over the Unix socket.
func (d *Database) SocketURL() string { return d.Server.SocketURL(d.Database) }

// Exec runs statements as the owner, each in its own transaction.
func (d *Database) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	d.Server.Exec(tb, d.Database, statements...)
}

// Query returns the single value of a query, as text.
func (d *Database) Query(tb testing.TB, statement string) string {
	tb.Helper()
	return d.Server.Query(tb, d.Database, statement)
}

var databases atomic.Int64

// shared starts the shared server of this process once. The server ends with the process.
var shared = sync.OnceValues(func() (*Server, error) {
	s, err := prepare("shared", Settings{"fsync": "off", "full_page_writes": "off"})
	if err == nil {
		err = s.initialise()
	}
	if err == nil {
		err = s.start()
	}
	return s, err
})

// tools locates PostgreSQL's programs and the user that runs them: PostgreSQL refuses to run as root.
type tools struct {
	bin string
	as  *syscall.Credential // nil means the user of this process
}

var findTools = sync.OnceValues(func() (t tools, err error) {
	if t.bin, err = findPrograms(); err == nil && os.Geteuid() == 0 {
		t.as, err = somebody()
	}
	return t, err
})

// findPrograms finds the programs of the newest version. Debian puts only the client programs on the PATH.
func findPrograms() (string, error) {
	patterns := []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/bin"}
	if out, err := exec.CommandContext(context.Background(), "pg_config", "--bindir").Output(); err == nil {
		patterns = append(patterns, strings.TrimSpace(string(out)))
	}
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // fails only for a malformed pattern
		for _, dir := range slices.Backward(found) {
			if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
				return dir, nil
			}
		}
	}
	return "", errors.New("PostgreSQL's server is not installed: run `make test-deps`")
}

// somebody returns a user other than root.
func somebody() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(err, err2)
	}
	return nil, errors.New("PostgreSQL does not run as root, and the users postgres and nobody do not exist")
}

// command prepares a program in its own process group, so that Ctrl-C does not reach it.
func (t tools) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), name, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: t.as, Setpgid: true}
	return cmd
}

// run runs a PostgreSQL program. Its output goes to a file, because a started server keeps its output open.
func (t tools) run(name string, args ...string) error {
	out, err := os.CreateTemp("", "attestd-postgres-")
	if err != nil {
		return err
	}
	defer out.Close()
	defer func() { _ = os.Remove(out.Name()) }()
	cmd := t.command(filepath.Join(t.bin, name), args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s: %w: %s", name, err, text)
	}
	return nil
}

// give makes the user that runs PostgreSQL the owner of a file.
func (t tools) give(path string) error {
	if t.as == nil {
		return nil
	}
	return os.Chown(path, int(t.as.Uid), int(t.as.Gid))
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
}
