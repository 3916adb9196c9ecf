package postgrestest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Owner is the superuser of each server. It needs no password. Other roles need one over TCP.
const Owner = "postgres"

// Settings are settings of postgresql.conf.
type Settings map[string]string

// Server is a PostgreSQL server with its own folder. It listens on a port of 127.0.0.1 and on a Unix socket. It keeps
// its port over restarts.
type Server struct {
	Dir      string // folder of the data and the socket
	Port     int
	Name     string   // application_name as a standby
	settings Settings // shared by a server and its copies
	own      Settings // of this server only
	tools    tools
	watch    *exec.Cmd // the shell that ends the server when this process ends
	alive    *os.File  // the shell's standard input
}

// NewServer starts a server until the end of the test. It syncs to disk, which is PostgreSQL's default.
func NewServer(tb testing.TB, settings Settings) *Server {
	tb.Helper()
	s := newServer(tb, "first", settings)
	check(tb, s.initialise())
	check(tb, s.start())
	return s
}

// NewSmallServer starts a server on a file system of size bytes. It skips the test if such a file system cannot be
// mounted.
func NewSmallServer(tb testing.TB, size int64, settings Settings) *Server {
	tb.Helper()
	s := newServer(tb, "first", settings)
	if err := syscall.Mount("tmpfs", s.Dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		tb.Skipf("cannot mount a small file system (needs root): %v", err)
	}
	tb.Cleanup(func() { s.kill(); check(tb, syscall.Unmount(s.Dir, syscall.MNT_DETACH)) })
	check(tb, s.tools.give(s.Dir))
	check(tb, s.initialise())
	check(tb, s.start())
	return s
}

// Fill fills the server's file system until free is called.
func (s *Server) Fill(tb testing.TB) (free func()) {
	tb.Helper()
	ballast := filepath.Join(s.Dir, "ballast")
	f, err := os.Create(ballast)
	check(tb, err)
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) >= 512; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	return func() { check(tb, os.Remove(ballast)) }
}

// Standby starts a copy of the server that follows it until the end of the test. Replication is asynchronous, unless
// Synchronous names it.
func (s *Server) Standby(tb testing.TB, name string) *Server {
	tb.Helper()
	standby := newServer(tb, name, s.settings)
	standby.Follow(tb, s)
	return standby
}

func newServer(tb testing.TB, name string, settings Settings) *Server {
	tb.Helper()
	s, err := prepare(name, settings)
	check(tb, err)
	tb.Cleanup(s.end)
	return s
}

// prepare creates the server's folder and starts the shell that ends the server.
func prepare(name string, settings Settings) (*Server, error) {
	tools, err := findTools()
	if err != nil {
		return nil, err
	}
	// A test's own folder may be too long for a socket's path, and inaccessible to other users.
	dir, err := os.MkdirTemp("", "attestd-postgres-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, Name: name, settings: settings, tools: tools}
	if err := tools.give(dir); err != nil {
		return nil, err
	}
	// The shell's input ends with this process, however the process ends.
	s.watch = tools.command("sh", "-c",
		`read forever; if read pid <"$0/data/postmaster.pid"; then kill -CONT "$pid"; kill -QUIT "$pid"; fi; rm -rf "$0"`, dir)
	input, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	s.watch.Stdin, s.alive = input, alive
	return s, s.watch.Start()
}

// end ends the server and removes its folder.
func (s *Server) end() {
	s.kill()
	_ = s.alive.Close()
	// The status is that of the last command, and the folder may already be empty.
	_ = s.watch.Wait()
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// initialise creates an empty database cluster, as a copy of one that initdb made for all tests of this process.
func (s *Server) initialise() error {
	from, err := initialised()
	if err != nil {
		return err
	}
	if out, err := s.tools.command("cp", "-a", from.data(), s.Dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy a database cluster: %w: %s", err, out)
	}
	return nil
}

// initialised returns a server that is never started, with an empty database cluster. Its folder is removed when the
// process ends.
var initialised = sync.OnceValues(func() (*Server, error) {
	s, err := prepare("initialised", nil)
	if err != nil {
		return nil, err
	}
	if err := s.tools.run("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username="+Owner,
		s.data()); err != nil {
		return nil, err
	}
	// Only the owner may replicate. Other roles need a password over TCP, as in production.
	const access = "local all all trust\nhost all " + Owner +
		" 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n" +
		"local replication all trust\nhost replication " + Owner + " 127.0.0.1/32 trust\n"
	return s, s.write("pg_hba.conf", access)
})

// start starts the server and waits until it accepts connections. The first start chooses a free port.
func (s *Server) start() error {
	var err error
	for range 5 { // another process may take the port first
		if s.Port == 0 {
			if s.Port, err = freePort(); err != nil {
				return err
			}
		}
		if err = s.tryStart(); err == nil || !bytes.Contains(s.Log(), []byte("could not bind")) {
			return err
		}
		s.Port = 0
	}
	return err
}

func (s *Server) tryStart() error {
	if err := s.configure(); err != nil {
		return err
	}
	_ = os.Remove(s.log()) // from the previous run
	if err := s.tools.run("pg_ctl", "start", "--wait", "--timeout=60", "--silent", "--pgdata="+s.data(),
		"--log="+s.log()); err != nil {
		return fmt.Errorf("%w\n%s", err, s.Log())
	}
	return nil
}

// configure writes postgresql.conf.
func (s *Server) configure() error {
	all := Settings{
		"port": strconv.Itoa(s.Port), "listen_addresses": "127.0.0.1", "unix_socket_directories": s.Dir,
		"max_connections": "200", "wal_level": "replica", "log_line_prefix": "%m %p %u %d ", "cluster_name": s.Name,
	}
	maps.Copy(all, s.settings)
	maps.Copy(all, s.own)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, all[name])
	}
	return s.write("postgresql.conf", text.String())
}

// write writes a file into the data folder.
func (s *Server) write(name, text string) error {
	path := filepath.Join(s.data(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return s.tools.give(path)
}

// freePort returns a free port below the range that the kernel assigns to connections and to listeners on port 0.
func freePort() (int, error) {
	const first, last = 10_000, 32_000 // Linux assigns ports from 32768
	for range 100 {
		port := first + rand.N(last-first)
		if l, err := new(net.ListenConfig).Listen(context.Background(),
			"tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free", first, last)
}

// Log returns the server's log since its last start.
func (s *Server) Log() []byte {
	text, _ := os.ReadFile(s.log())
	return text
}

func (s *Server) log() string { return filepath.Join(s.Dir, "log") }

// URL returns the owner's URL for a database, over TCP. With further servers, it leads to the current primary.
func (s *Server) URL(database string, others ...*Server) string {
	return s.RoleURL(url.User(Owner), database, others...)
}

// RoleURL returns the URL of another role.
func (s *Server) RoleURL(role *url.Userinfo, database string, others ...*Server) string {
	u := url.URL{Scheme: "postgres", User: role, Host: s.Address(), Path: "/" + database}
	q := url.Values{"sslmode": {"disable"}}
	for _, other := range others {
		u.Host += "," + other.Address()
		q.Set("target_session_attrs", "read-write")
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// SocketURL returns the owner's URL for a database, over the Unix socket.
func (s *Server) SocketURL(database string) string {
	q := url.Values{"host": {s.Dir}, "port": {strconv.Itoa(s.Port)}, "user": {Owner}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Address returns the listening address.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

func (s *Server) socket() string { return filepath.Join(s.Dir, fmt.Sprintf(".s.PGSQL.%d", s.Port)) }

// Exec runs statements as the owner, each in its own transaction.
func (s *Server) Exec(tb testing.TB, database string, statements ...string) {
	tb.Helper()
	check(tb, s.exec(database, statements...))
}

func (s *Server) exec(database string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Query returns the single value of a query, as text.
func (s *Server) Query(tb testing.TB, database, statement string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketURL(database))
	check(tb, err)
	defer func() { _ = conn.Close(ctx) }()
	var value *string
	check(tb, conn.QueryRow(ctx, "SELECT ("+statement+")::text").Scan(&value))
	return *cmp.Or(value, new(string))
}
