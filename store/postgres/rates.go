package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
)

// Rates implements appliance.SharedRates with one bucket per API key.
type Rates struct{ store *Store }

var _ appliance.SharedRates = Rates{}

// Rates returns the shared rates.
func (s *Store) Rates() Rates { return Rates{s} }

// leaseQuery locks the buckets in a fixed order, takes the tokens available by the database's clock, and returns how
// many.
const leaseQuery = `WITH want AS (
	SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[]) AS w (key_id, seconds, burst)
), held AS (
	SELECT key_id, greatest(paid, clock_timestamp()) AS paid FROM rates WHERE key_id = ANY($1) ORDER BY key_id FOR UPDATE
), given AS (
	SELECT key_id, paid, least(seconds, greatest(0, burst - greatest(0, extract(epoch FROM paid - clock_timestamp())::float8))) AS seconds
	FROM held JOIN want USING (key_id)
)
UPDATE rates SET paid = given.paid + make_interval(secs => given.seconds) FROM given WHERE rates.key_id = given.key_id
RETURNING rates.key_id, given.seconds`

// Lease implements appliance.SharedRates. It commits asynchronously, because a lease lost in a failover does no harm.
func (r Rates) Lease(ctx context.Context, wants []appliance.RateWant) ([]time.Duration, error) {
	at := make(map[string]int, len(wants))
	ids, seconds, bursts := make([]string, len(wants)), make([]float64, len(wants)), make([]float64, len(wants))
	for i, w := range wants {
		at[w.KeyID], ids[i], seconds[i], bursts[i] = i, w.KeyID, w.Time.Seconds(), w.Burst.Seconds()
	}
	given := make([]time.Duration, len(wants))
	batch := new(pgx.Batch)
	batch.Queue("BEGIN")
	batch.Queue("SET LOCAL synchronous_commit = off")
	batch.Queue(
		"INSERT INTO rates (key_id, paid) SELECT id, clock_timestamp() FROM unnest($1::text[]) AS n (id) ORDER BY id ON CONFLICT DO NOTHING", ids)
	batch.Queue(leaseQuery, ids, seconds, bursts).Query(func(rows pgx.Rows) error {
		var id string
		var secs float64
		_, err := pgx.ForEachRow(rows, []any{&id, &secs}, func() error {
			given[at[id]] = time.Duration(secs * float64(time.Second))
			return nil
		})
		return err
	})
	batch.Queue("COMMIT")
	if err := r.send(ctx, batch); err != nil {
		return nil, fmt.Errorf("lease rates: %w", explain(err))
	}
	return given, nil
}

// send sends a batch that is one transaction, and closes the connection if that fails.
func (r Rates) send(ctx context.Context, batch *pgx.Batch) error {
	conn, err := r.store.read.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		_ = conn.Conn().Close(ctx)
		return err
	}
	return nil
}
