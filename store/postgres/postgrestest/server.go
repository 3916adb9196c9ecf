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
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Owner is the superuser of each server, who needs no password. Other roles do when they come by TCP.
const Owner = "postgres"

// Settings are settings of postgresql.conf.
type Settings map[string]string

// Server is a PostgreSQL server in a folder of its own, which listens on a port of 127.0.0.1 and on a Unix socket. It goes on
// listening on the same port when it is started again.
type Server struct {
	Dir      string // of the data and the socket
	Port     int
	Name     string   // as standby: its application_name
	settings Settings // of all servers that are copies of one
	own      Settings // and of this one
	tools    tools
	watch    *exec.Cmd // the shell that ends the server with this process
	alive    *os.File  // its standard input
}

// NewServer starts a server for as long as the test runs. It syncs to disk, as PostgreSQL does by default.
func NewServer(tb testing.TB, settings Settings) *Server {
	tb.Helper()
	s := newServer(tb, "first", settings)
	check(tb, s.initialise())
	check(tb, s.start())
	return s
}

// NewSmallServer starts a server on a file system of so many bytes, and skips the test where none can be mounted.
func NewSmallServer(tb testing.TB, size int64, settings Settings) *Server {
	tb.Helper()
	s := newServer(tb, "first", settings)
	if err := syscall.Mount("tmpfs", s.Dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		tb.Skipf("no small file system can be mounted here (needs root): %v", err)
	}
	tb.Cleanup(func() { s.kill(); check(tb, syscall.Unmount(s.Dir, syscall.MNT_DETACH)) })
	check(tb, s.tools.give(s.Dir))
	check(tb, s.initialise())
	check(tb, s.start())
	return s
}

// Fill takes all the space that the server's file system has left, until free is called.
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

// Standby starts a copy of the server that follows it for as long as the test runs. It is asynchronous unless Synchronous names it.
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

// prepare makes the server's folder and starts what ends it.
func prepare(name string, settings Settings) (*Server, error) {
	tools, err := findTools()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "attestd-postgres-") // a test's own folder may be too long for a socket, and closed to others
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, Name: name, settings: settings, tools: tools}
	if err := tools.give(dir); err != nil {
		return nil, err
	}
	// However this process ends, the shell's input ends with it.
	s.watch = tools.command("sh", "-c", `read forever; if read pid <"$0/data/postmaster.pid"; then kill -CONT "$pid"; kill -QUIT "$pid"; fi; rm -rf "$0"`, dir)
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
	_ = s.watch.Wait() // its status is that of the last command, and there may be nothing left to remove
}

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// initialise makes an empty database cluster.
func (s *Server) initialise() error {
	if err := s.tools.run("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--auth=trust", "--username="+Owner, s.data()); err != nil {
		return err
	}
	// Replication is the owner's. A role that is not has to show its password, as it does elsewhere.
	const access = "local all all trust\nhost all " + Owner + " 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n" +
		"local replication all trust\nhost replication " + Owner + " 127.0.0.1/32 trust\n"
	return s.write("pg_hba.conf", access)
}

// start starts the server on its port, or on a free one the first time, and waits until it takes connections.
func (s *Server) start() error {
	var err error
	for range 5 { // somebody else may take a port that was free
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
	_ = os.Remove(s.log()) // of the time before
	if err := s.tools.run("pg_ctl", "start", "--wait", "--timeout=60", "--silent", "--pgdata="+s.data(), "--log="+s.log()); err != nil {
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

// write writes a file of the data folder.
func (s *Server) write(name, text string) error {
	path := filepath.Join(s.data(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return s.tools.give(path)
}

// freePort is a port on which nothing listens, below those that the kernel gives to connections and to listeners of port 0.
func freePort() (int, error) {
	const first, last = 10_000, 32_000 // Linux gives 32768 and up
	for range 100 {
		port := first + rand.N(last-first)
		if l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free", first, last)
}

// Log is what the server has logged since it was started.
func (s *Server) Log() []byte {
	text, _ := os.ReadFile(s.log())
	return text
}

func (s *Server) log() string { return filepath.Join(s.Dir, "log") }

// URL is the owner's for a database, over TCP. With more servers, it is for whichever of them is the primary.
func (s *Server) URL(database string, others ...*Server) string {
	return s.RoleURL(url.User(Owner), database, others...)
}

// RoleURL is the URL of another role.
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

// SocketURL is the owner's for a database, over the Unix socket.
func (s *Server) SocketURL(database string) string {
	q := url.Values{"host": {s.Dir}, "port": {strconv.Itoa(s.Port)}, "user": {Owner}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Address is where it listens.
func (s *Server) Address() string { return fmt.Sprintf("127.0.0.1:%d", s.Port) }

func (s *Server) socket() string { return filepath.Join(s.Dir, fmt.Sprintf(".s.PGSQL.%d", s.Port)) }

// Exec runs statements as the owner, each a transaction of its own.
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

// Query returns the one value that a statement gives, as text.
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
