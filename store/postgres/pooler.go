package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrPooled is returned behind a connection pooler that gives the transactions of one client to several connections of
// the server, such as PgBouncer with pool_mode = transaction. The session's settings would apply to other clients'
// transactions, and not to this one's: among them is the timeout that ends an appliance which hangs with the head's
// lock. Prepared statements would be missing, too.
var ErrPooled = errors.New("a connection pooler shares PostgreSQL sessions between clients, for example PgBouncer " +
	"with pool_mode = transaction: " +
	"set store.url to the PostgreSQL server itself, or set pool_mode = session in the pooler")

// secondTimeout bounds the wait for the second connection of refusePooler. A pooler that keeps sessions may have no
// further connection.
const secondTimeout = time.Second

// refusePooler returns the server's process that serves a connection, or ErrPooled if that process changes or serves
// another connection, too.
//
// A pooler gives its clients process IDs that differ from PostgreSQL's. Without a pooler, refusePooler therefore makes
// one query.
func refusePooler(ctx context.Context, conn *pgx.Conn) (backend uint32, err error) {
	if backend, err = backendOf(ctx, conn); err != nil || backend == conn.PgConn().PID() {
		return backend, err
	}
	limited, cancel := context.WithTimeout(ctx, secondTimeout)
	defer cancel()
	config := conn.Config()
	config.DialFunc = new(net.Dialer).DialContext // the DialFunc of a connection that writes refuses a second dial
	second, err := pgx.ConnectConfig(limited, config)
	if err != nil {
		return backend, nil // a pooler that shares sessions would use the process of the first, which is idle
	}
	defer func() { _ = second.Close(ctx) }()
	for range 4 { // other clients of the pooler may get the process in between
		other, err := backendOf(limited, second)
		if err != nil {
			return backend, nil // for the same reason
		}
		now, err := backendOf(ctx, conn)
		if err != nil {
			return 0, err
		}
		if now != backend || now == other {
			return 0, ErrPooled
		}
	}
	return backend, nil
}

// backendOf returns the server's process that serves a connection. It prepares no statement.
func backendOf(ctx context.Context, conn *pgx.Conn) (backend uint32, err error) {
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()",
		pgx.QueryExecModeSimpleProtocol).Scan(&backend); err != nil {
		return 0, fmt.Errorf("read the backend's process id: %w", err)
	}
	return backend, nil
}
