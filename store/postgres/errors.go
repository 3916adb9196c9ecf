package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs (PostgreSQL, appendix A) that this package handles.
const (
	stateUnique      = "23505"
	stateReadOnly    = "25006" // the primary has become a standby
	stateNoTable     = "42P01"
	stateNoColumn    = "42703"
	stateNoPrivilege = "42501"
	stateNoDatabase  = "3D000"
	stateNoPassword  = "28P01"
	stateNoRole      = "28000"
	stateRoleExists  = "42710"
	stateInternal    = "XX000"
	stateStatement   = "42P05" // a prepared statement of this name exists: another client's
	stateNoStatement = "26000"
)

// stateOf returns the SQLSTATE of a server's error, "" for other errors.
func stateOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// aborted reports whether the server has said that it rolls back. A FATAL error does not say so: it ends the
// connection, and the outcome is unknown.
func aborted(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// passes reports whether a retry can help without an operator.
func passes(err error) bool {
	switch stateOf(err) {
	case stateNoTable, stateNoColumn, stateNoPrivilege, stateNoDatabase, stateNoPassword, stateNoRole:
		return false
	}
	for _, lasting := range []error{ErrNoSchema, ErrNewerSchema, ErrOlderSchema, ErrOtherLog, ErrDamaged, ErrForgot,
		ErrForged, ErrPooled} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return true
}

// explain adds a remedy to a server's error.
func explain(err error) error {
	switch stateOf(err) {
	case stateNoTable:
		return fmt.Errorf("%w: %w: as the database's owner, run: attestd store init", ErrNoSchema, err)
	case stateNoColumn:
		return fmt.Errorf("%w: %w: as the database's owner, run: attestd store migrate", ErrOlderSchema, err)
	case stateStatement, stateNoStatement:
		return fmt.Errorf("%w: %w", ErrPooled, err)
	case stateNoPrivilege:
		return fmt.Errorf("%w: the role lacks privileges. As the database's owner, run: attestd store init --role ROLE",
			err)
	}
	return err
}

// answer returns the error for clients after a failed read.
func answer(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return timeout(ctx, doing)
	}
	return unavailable(fmt.Errorf("%s: %w", doing, explain(err)))
}
