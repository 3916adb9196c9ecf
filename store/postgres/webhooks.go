package postgres

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
)

// holdWebhooksFor is how long an appliance delivers webhooks after its last HoldWebhooks.
const holdWebhooksFor = 6 * time.Second

// Webhooks implements webhooks.Store. Definitions have the secrets of webhooks, so they are encrypted with a key that the
// database's owner does not have. The owner can neither read nor change one, but can delete it.
type Webhooks struct{ store *Store }

// Webhooks returns the webhooks.
func (s *Store) Webhooks() Webhooks { return Webhooks{s} }

// HoldWebhooks implements webhooks.Store. A row with a time limit works through a connection pooler, where an advisory
// lock of a session does not.
func (w Webhooks) HoldWebhooks(ctx context.Context) (held bool, err error) {
	tag, err := w.store.write.Exec(ctx, "UPDATE webhook_holder SET instance = $1, until = clock_timestamp() + $2 "+
		"WHERE id = 1 AND (instance = $1 OR until < clock_timestamp())", w.store.instance, holdWebhooksFor)
	if err != nil {
		return false, answer(ctx, "become the appliance that delivers webhooks", err)
	}
	return tag.RowsAffected() == 1, nil
}

// ReleaseWebhooks implements webhooks.Store.
func (w Webhooks) ReleaseWebhooks(ctx context.Context) error {
	_, err := w.store.write.Exec(ctx,
		"UPDATE webhook_holder SET until = '-infinity' WHERE id = 1 AND instance = $1", w.store.instance)
	if err != nil {
		return answer(ctx, "let another appliance deliver webhooks", err)
	}
	return nil
}

// Webhooks implements webhooks.Store.
func (w Webhooks) Webhooks(ctx context.Context, yield func(name string, definition, state []byte) error) error {
	rows, err := w.store.read.Query(ctx, "SELECT name, definition, state FROM webhooks ORDER BY name")
	if err == nil {
		var all []webhookRow
		if all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[webhookRow]); err == nil {
			return w.open(all, yield)
		}
	}
	return answer(ctx, "read the webhooks", err)
}

type webhookRow struct {
	Name              string
	Definition, State []byte
}

func (w Webhooks) open(all []webhookRow, yield func(name string, definition, state []byte) error) error {
	seal, err := sealOf(w.store.secret)
	if err != nil {
		return err
	}
	for _, row := range all {
		definition, err := seal.open(row.Name, row.Definition)
		if err == nil {
			err = yield(row.Name, definition, row.State)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CreateWebhook implements webhooks.Store.
func (w Webhooks) CreateWebhook(ctx context.Context, name string, definition, state []byte) error {
	n, err := w.write(ctx, name, definition, "INSERT INTO webhooks (name, definition, state) VALUES ($1, $2, $3) "+
		"ON CONFLICT DO NOTHING", state)
	if err == nil && n == 0 {
		return appliance.Errorf(appliance.CodeInvalidField, "a webhook %s exists already", name).In("name")
	}
	return err
}

// ChangeWebhook implements webhooks.Store.
func (w Webhooks) ChangeWebhook(ctx context.Context, name string, definition []byte) error {
	n, err := w.write(ctx, name, definition, "UPDATE webhooks SET definition = $2 WHERE name = $1")
	return orNoWebhook(name, n, err)
}

// write encrypts a definition and executes the statement with the name, the definition and args.
func (w Webhooks) write(ctx context.Context, name string, definition []byte, statement string,
	args ...any) (rows int64, err error) {
	seal, err := sealOf(w.store.secret)
	if err != nil {
		return 0, err
	}
	tag, err := w.store.write.Exec(ctx, statement, append([]any{name, seal.seal(name, definition)}, args...)...)
	if err != nil {
		return 0, answer(ctx, "store the webhook", err)
	}
	return tag.RowsAffected(), nil
}

// DeleteWebhook implements webhooks.Store.
func (w Webhooks) DeleteWebhook(ctx context.Context, name string) error {
	tag, err := w.store.write.Exec(ctx, "DELETE FROM webhooks WHERE name = $1", name)
	if err != nil {
		err = answer(ctx, "delete the webhook", err)
	}
	return orNoWebhook(name, tag.RowsAffected(), err)
}

func orNoWebhook(name string, rows int64, err error) error {
	if err == nil && rows == 0 {
		return appliance.Errorf(appliance.CodeNotFound, "no webhook %q", name)
	}
	return err
}

// SaveWebhookState implements webhooks.Store.
func (w Webhooks) SaveWebhookState(ctx context.Context, name string, state []byte) error {
	tag, err := w.store.write.Exec(ctx, "UPDATE webhooks SET state = $2 WHERE name = $1 AND EXISTS (SELECT FROM "+
		"webhook_holder WHERE instance = $3 AND until > clock_timestamp())", name, state, w.store.instance)
	if err != nil {
		return answer(ctx, "store the state of the webhook", err)
	}
	if tag.RowsAffected() == 0 {
		return errors.New("another appliance delivers webhooks, or the webhook was deleted")
	}
	return nil
}

// resealWebhooks encrypts the definitions for the next log key. A definition that the store cannot decrypt stays as it
// is, so that it does not prevent a new log key.
func (s *Store) resealWebhooks(ctx context.Context, tx pgx.Tx, next []byte) error {
	if s.secret == nil {
		return nil
	}
	before, errBefore := sealOf(s.secret)
	after, errAfter := sealOf(next)
	if err := errors.Join(errBefore, errAfter); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, "SELECT name, definition, state FROM webhooks ORDER BY name FOR UPDATE")
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[webhookRow])
	if err != nil {
		return err
	}
	for _, row := range all {
		definition, err := before.open(row.Name, row.Definition)
		if err != nil {
			continue
		}
		if _, err := tx.Exec(ctx, "UPDATE webhooks SET definition = $2 WHERE name = $1", row.Name,
			after.seal(row.Name, definition)); err != nil {
			return err
		}
	}
	return nil
}

// seal encrypts definitions, each for its name.
type seal struct{ cipher.AEAD }

func sealOf(secret []byte) (seal, error) {
	if secret == nil {
		return seal{}, errors.New("webhooks need the log key, which this store does not have")
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "attestd webhooks v1", sha256.Size)
	if err != nil {
		return seal{}, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return seal{}, err
	}
	gcm, err := cipher.NewGCMWithRandomNonce(block)
	return seal{gcm}, err
}

func (s seal) seal(name string, definition []byte) []byte {
	return s.Seal(nil, nil, definition, []byte(name))
}

func (s seal) open(name string, sealed []byte) ([]byte, error) {
	definition, err := s.Open(nil, nil, sealed, []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%w: the webhook %q. Delete it, and create it again: attestd webhook delete %s",
			ErrForged, name, name)
	}
	return definition, nil
}
