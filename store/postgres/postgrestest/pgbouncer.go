package postgrestest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// PgBouncer is a connection pooler in front of a server.
type PgBouncer struct{ port int }

// NewPgBouncer starts PgBouncer until the end of the test, with additional settings, one per line. The users postgres
// and attestd need no password.
func NewPgBouncer(tb testing.TB, server *Server, settings string) *PgBouncer {
	tb.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not on the PATH of every user
	}
	if _, err := os.Stat(program); err != nil {
		tb.Fatal("postgrestest: PgBouncer is not installed: run `make test-deps`")
	}
	dir, err := os.MkdirTemp("", "attestd-pgbouncer-")
	check(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	check(tb, server.tools.give(dir))
	b := &PgBouncer{}
	for range 5 { // another process may take the port first
		b.port, err = freePort()
		check(tb, err)
		if b.start(tb, server, program, dir, settings) {
			return b
		}
	}
	text, _ := os.ReadFile(filepath.Join(dir, "log"))
	tb.Fatalf("postgrestest: PgBouncer does not start:\n%s", text)
	return nil
}

// start starts PgBouncer and reports whether it accepts connections.
func (b *PgBouncer) start(tb testing.TB, server *Server, program, dir, settings string) bool {
	tb.Helper()
	config := filepath.Join(dir, "pgbouncer.ini")
	// The server trusts all users of its socket.
	text := fmt.Sprintf(
		"[databases]\n* = host=%s port=%d\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"+
			"auth_type = trust\nauth_file = %s\nlogfile = %s\n%s\n",
		server.Dir, server.Port, b.port, filepath.Join(dir, "users"), filepath.Join(dir, "log"), settings)
	check(tb, os.WriteFile(config, []byte(text), 0o644))
	check(tb, os.WriteFile(filepath.Join(dir, "users"), []byte("\"postgres\" \"\"\n\"attestd\" \"\"\n"), 0o644))
	cmd := server.tools.command(program, "-q", config)
	check(tb, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	tb.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		conn, err := net.Dial("tcp", b.Address())
		if err == nil {
			_ = conn.Close()
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// Address returns the listening address.
func (b *PgBouncer) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// RoleURL returns the URL of a role, through the pooler.
func (b *PgBouncer) RoleURL(role *url.Userinfo, database string) string {
	return (&url.URL{Scheme: "postgres", User: role, Host: b.Address(), Path: "/" + database,
		RawQuery: "sslmode=disable"}).String()
}
