package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs (PostgreSQL, appendix A) that mean something here.
const (
	stateUnique      = "23505"
	stateReadOnly    = "25006" // a primary that has become a standby
	stateNoTable     = "42P01"
	stateNoColumn    = "42703"
	stateNoPrivilege = "42501"
	stateNoDatabase  = "3D000"
	stateNoPassword  = "28P01"
	stateNoRole      = "28000"
	stateRoleExists  = "42710"
	stateInternal    = "XX000"
)

// stateOf is the SQLSTATE of an error, "" where the server did not send it.
func stateOf(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// aborted says whether the server has said that the transaction will not be committed. A fatal error ends the connection, whatever
// the transaction came to.
func aborted(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR"
}

// passes says whether trying again can help before an operator does something.
func passes(err error) bool {
	switch stateOf(err) {
	case stateNoTable, stateNoColumn, stateNoPrivilege, stateNoDatabase, stateNoPassword, stateNoRole:
		return false
	}
	for _, lasting := range []error{ErrNoSchema, ErrNewerSchema, ErrOlderSchema, ErrOtherLog, ErrDamaged, ErrForgot, ErrForged} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return true
}

// explain adds to an error of the server what to do about it.
func explain(err error) error {
	switch stateOf(err) {
	case stateNoTable, stateNoColumn:
		return fmt.Errorf("%w: %w: its owner makes it: attestd store init, attestd store migrate", ErrNoSchema, err)
	case stateNoPrivilege:
		return fmt.Errorf("%w: the owner of the database gives the role its rights: attestd store init --role", err)
	}
	return err
}

// answer is what a client is told when a read failed.
func answer(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return timeout(ctx, doing)
	}
	return unavailable(fmt.Errorf("%s: %w", doing, explain(err)))
}
