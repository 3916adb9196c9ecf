package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"
)

const (
	writers = 3 // connections: the batch, a change of API keys, the watch

	connectTimeout = 2 * time.Second // per host, unless the URL sets connect_timeout
	silence        = 5 * time.Second // a host that sends no acknowledgment for this long counts as gone

	// A batch holds the head's lock until its COMMIT. If it stops in between, PostgreSQL ends it after idleTimeout and
	// grants the lock to the next.
	idleTimeout      = 4 * time.Second
	lockTimeout      = 7 * time.Second
	statementTimeout = 9 * time.Second // includes the wait for a lock; does not apply to COMMIT
)

// Check returns an error unless a URL can be used. A URL is postgres://user@host:port,host:port/database?…, as libpq
// reads it, with the environment (PGHOST, PGSSLMODE, …) and the passfile. Remote hosts need TLS: the default sslmode is
// verify-full, and disable, allow and prefer are accepted for loopback and Unix sockets only. No error contains a
// password.
func Check(url string) error {
	_, err := parse(url)
	return err
}

// Redact returns the URL without its password.
func Redact(raw string) string {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return "(not a URL)"
	}
	end := authorityEnd(rest)
	authority, path := rest[:end], rest[end:]
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, _, secret := strings.Cut(authority[:i], ":")
		if secret {
			user += ":xxxxx"
		}
		authority = user + authority[i:]
	}
	if before, query, found := strings.Cut(path, "?"); found {
		path = before + "?" + redactQuery(query)
	}
	return scheme + "://" + authority + path
}

// authorityEnd is where user, hosts and ports end, behind "://".
func authorityEnd(rest string) int {
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		return i
	}
	return len(rest)
}

func redactQuery(query string) string {
	parts := strings.Split(query, "&")
	for i, part := range parts {
		if name, _, _ := strings.Cut(part, "="); strings.Contains(strings.ToLower(name), "password") {
			parts[i] = name + "=xxxxx"
		}
	}
	return strings.Join(parts, "&")
}

// parse parses a URL and enforces TLS.
func parse(raw string) (*pgx.ConnConfig, error) {
	if !strings.HasPrefix(raw, "postgres://") && !strings.HasPrefix(raw, "postgresql://") {
		return nil, errors.New("the database's URL must begin with postgres://")
	}
	if _, rest, _ := strings.Cut(raw, "://"); strings.Count(rest[:authorityEnd(rest)], "@") > 1 {
		return nil, fmt.Errorf("the database's URL %s: write an @ in the user name or password as %%40", Redact(raw))
	}
	config, err := pgx.ParseConfig(raw)
	if err == nil && !tlsChosen(raw) && len(remote(config)) > 0 {
		separator := "?"
		if strings.Contains(raw, "?") {
			separator = "&"
		}
		config, err = pgx.ParseConfig(raw + separator + "sslmode=verify-full")
	}
	if err != nil {
		return nil, fmt.Errorf("the database's URL %s: %s", Redact(raw), reason(err))
	}
	if hosts := remote(config); len(hosts) > 0 {
		return nil, fmt.Errorf("the database's URL %s: the connection to %s could be without TLS: "+
			"set sslmode=verify-full (disable, allow and prefer are for loopback addresses and Unix sockets)",
			Redact(raw), strings.Join(hosts, ", "))
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	// Regardless of the URL, only a primary has the newest head.
	config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	return config, nil
}

// reason returns pgx's reason without the URL, in which pgx may have missed a password.
func reason(err error) string {
	if _, why, found := strings.Cut(err.Error(), "`: "); found {
		return why
	}
	return "cannot be parsed"
}

// VerifiesHost reports whether each connection by this URL, with the environment (PGSSLMODE), verifies that the
// server's certificate is for its host, as sslmode verify-full does. It is false for a URL that cannot be used.
func VerifiesHost(raw string) bool {
	config, err := parse(raw)
	if err != nil {
		return false
	}
	verifies := func(c *tls.Config) bool { return c != nil && !c.InsecureSkipVerify }
	return verifies(config.TLSConfig) &&
		!slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return !verifies(f.TLSConfig) })
}

// tlsChosen reports whether the URL or the environment sets sslmode.
func tlsChosen(raw string) bool {
	_, query, _ := strings.Cut(raw, "?")
	values, _ := url.ParseQuery(query) // ignores malformed parts
	return values.Has("sslmode") || os.Getenv("PGSSLMODE") != ""
}

// remote returns the remote hosts that may be reached without TLS.
func remote(config *pgx.ConnConfig) (hosts []string) {
	add := func(host string) {
		if !isLocal(host) && (len(hosts) == 0 || hosts[len(hosts)-1] != host) {
			hosts = append(hosts, host)
		}
	}
	if config.TLSConfig == nil {
		add(config.Host)
	}
	for _, f := range config.Fallbacks {
		if f.TLSConfig == nil {
			add(f.Host)
		}
	}
	return hosts
}

// isLocal reports whether a host is a socket's folder, a loopback address, or localhost (RFC 6761).
func isLocal(host string) bool {
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// newPool opens connections on demand. Each new connection parses the URL again, with its passfile and certificates,
// because these may have been rotated. mayCancel allows cancel requests, which a connection that writes must not send.
func (s *Store) newPool(size int, mayCancel bool) (*pgxpool.Pool, error) {
	config, err := parse(s.URL())
	if err != nil {
		return nil, err
	}
	name := s.opts.Member.Name
	c, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, errors.New("the PG… environment variables cannot be parsed: " + reason(err))
	}
	c.ConnConfig = config.Copy()
	c.MaxConns, c.MinConns = int32(size), 0
	c.MaxConnIdleTime, c.HealthCheckPeriod, c.PingTimeout = 5*time.Minute, 30*time.Second, connectTimeout
	if _, set := c.ConnConfig.RuntimeParams["application_name"]; !set {
		c.ConnConfig.RuntimeParams["application_name"] = strings.TrimSuffix("attestd "+name, " ")
	}
	c.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error {
		now, err := parse(s.URL())
		if err != nil {
			return err
		}
		config.Host, config.Port, config.User, config.Password = now.Host, now.Port, now.User, now.Password
		config.TLSConfig, config.Fallbacks = now.TLSConfig, now.Fallbacks
		dial(config, mayCancel)
		return nil
	}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if mayCancel {
			return prepare(ctx, conn, auditTimeout)
		}
		return prepare(ctx, conn, statementTimeout)
	}
	return pgxpool.NewWithConfig(context.Background(), c)
}

// dial configures a connection to notice a lost host.
//
// If a wait fails, pgx sends a cancel request over a second connection. A COMMIT that is cancelled during its wait for
// the synchronous standby is committed on the primary only, and is lost if the standby is promoted. A connection that
// writes therefore refuses to dial a second time.
func dial(config *pgx.ConnConfig, mayCancel bool) {
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 4, Count: 2},
		Control:         noticeSilence,
	}
	names := make(map[string]string) // of hosts, by address
	lookup := config.LookupFunc
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		for _, a := range addresses {
			names[a] = host
		}
		return addresses, err
	}
	var connected atomic.Bool
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() && !mayCancel {
			return nil, errors.New("a writing connection is not cancelled")
		}
		return dialer.DialContext(ctx, network, address)
	}
	config.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		conn.CustomData()[reached] = serverName(conn.Conn().RemoteAddr(), names)
		return nil
	}
	config.OnNotice = noteCancelled
}

// reached is the key in CustomData under which a connection stores its server's name.
const reached = "reached"

// serverName returns host:port with the host as the URL names it, or the path of a Unix socket.
func serverName(remote net.Addr, names map[string]string) string {
	host, port, err := net.SplitHostPort(remote.String())
	if err != nil {
		return remote.String()
	}
	if name, found := names[host]; found {
		host = name
	}
	return net.JoinHostPort(host, port)
}

// noticeSilence sets TCP_USER_TIMEOUT, after which the kernel ends a connection to a peer that sends no
// acknowledgments.
func noticeSilence(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// cancelled is the key in CustomData that marks a COMMIT whose wait for the standby was cancelled.
const cancelled = "cancelled"

// noteCancelled handles the warning that a COMMIT succeeded on the primary only. PostgreSQL reports no error.
func noteCancelled(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[cancelled] = true
	}
}

// backend is the key in CustomData under which a connection stores the process that serves it.
const backend = "backend"

// prepare refuses a pooler that shares sessions, and sets the parameters of the session. Sequential scans are off,
// because a plan that was made for an empty table would keep one. JIT is off, because the high cost that a forced scan
// gets would trigger it, which takes 200 ms.
func prepare(ctx context.Context, conn *pgx.Conn, statements time.Duration) error {
	pid, err := refusePooler(ctx, conn)
	if err != nil {
		return err
	}
	conn.PgConn().CustomData()[backend] = pid
	_, err = conn.Exec(ctx, fmt.Sprintf(
		"SET default_transaction_isolation = 'read committed'; SET lock_timeout = %d; SET statement_timeout = %d; "+
			"SET idle_in_transaction_session_timeout = %d; SET enable_seqscan = off; SET jit = off; "+
			// like noticeSilence, for the server
			"SET tcp_keepalives_idle = 2; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 3; SET tcp_user_timeout = %d",
		lockTimeout.Milliseconds(), statements.Milliseconds(), idleTimeout.Milliseconds(), silence.Milliseconds()),
		pgx.QueryExecModeSimpleProtocol)
	return err
}
