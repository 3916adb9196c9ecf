package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
)

// usedStep is how exact an API key's last use is: fewer uses within it cost no write.
const usedStep = 30 * time.Second

// Keys implements appliance.Keys. Key is answered from memory, which follows the database within a second; each append looks at the
// database's.
type Keys struct {
	store *Store
	asked flight[struct{}]
	begun atomic.Int64 // when the newest change under way began, in Unix nanoseconds of the system's clock; 0 while there is none

	mu      sync.RWMutex // protects all below; never held while the database is asked
	version int64        // of byID; -1 before it was read
	read    time.Time    // when byID was read, by this process's own clock
	byID    map[string]appliance.APIKey
	dirty   map[string]bool // ids of keys that were used later than the database knows
}

var _ appliance.Keys = (*Keys)(nil)

func newKeys(s *Store) *Keys {
	return &Keys{store: s, version: -1, byID: make(map[string]appliance.APIKey), dirty: make(map[string]bool)}
}

// Create implements appliance.Keys.
func (k *Keys) Create(ctx context.Context, key appliance.APIKey) error {
	key.Scopes, key.AllowFrom = slices.Clone(key.Scopes), slices.Clone(key.AllowFrom)
	text, err := encodeKey(key)
	if err != nil {
		return appliance.Errorf(appliance.CodeInternal, "the API key cannot be stored").Because(err)
	}
	version, err := k.change(ctx, "create an API key", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO api_keys (id, key, expires, revoked, last_used) VALUES ($1, $2, $3, $4, $5)",
			key.ID, text, optional(key.Expires), optional(key.Revoked), optional(key.LastUsed))
		if stateOf(err) != stateUnique {
			return err
		}
		return appliance.Errorf(appliance.CodeInternal, "the API key cannot be stored").Because(fmt.Errorf("id %q is taken", key.ID))
	})
	if err != nil {
		return k.createdBefore(ctx, key, text, err)
	}
	k.changed(version, key)
	return nil
}

// createdBefore looks whether a key that is said to be taken is this one: what was tried before may have been committed.
func (k *Keys) createdBefore(ctx context.Context, key appliance.APIKey, text string, failed error) error {
	if appliance.CodeOf(failed) != appliance.CodeInternal {
		return failed
	}
	var stored string
	if err := k.store.write.QueryRow(ctx, "SELECT key FROM api_keys WHERE id = $1", key.ID).Scan(&stored); err != nil || stored != text {
		return failed
	}
	return nil
}

// Key implements appliance.Keys. The key's slices are shared and must not be changed. A key that is not known is looked for in the
// database, since another appliance may just have created it; those who ask meanwhile share the question.
func (k *Keys) Key(ctx context.Context, id string) (appliance.APIKey, error) {
	if key, found := k.known(id); found {
		return key, nil
	}
	if _, err := k.asked.do(ctx, k.reload); err != nil {
		return appliance.APIKey{}, answer(ctx, "read the API keys", err)
	}
	if key, found := k.known(id); found {
		return key, nil
	}
	return appliance.APIKey{}, appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
}

func (k *Keys) known(id string) (appliance.APIKey, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	key, found := k.byID[id]
	return key, found
}

// List implements appliance.Keys. It asks the database, for what other appliances have done.
func (k *Keys) List(ctx context.Context) ([]appliance.APIKey, error) {
	if _, err := k.asked.do(ctx, k.reread); err != nil {
		return nil, answer(ctx, "read the API keys", err)
	}
	k.mu.RLock()
	all := slices.Collect(maps.Values(k.byID))
	k.mu.RUnlock()
	for i := range all {
		all[i].Scopes, all[i].AllowFrom = slices.Clone(all[i].Scopes), slices.Clone(all[i].AllowFrom)
	}
	slices.SortFunc(all, func(a, b appliance.APIKey) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

// Revoke implements appliance.Keys. It commits under the lock of the head: what was appended before has been committed, and what is
// appended later sees it, on all appliances.
func (k *Keys) Revoke(ctx context.Context, id string, now time.Time) (appliance.APIKey, error) {
	var key appliance.APIKey
	version, err := k.change(ctx, "revoke an API key", func(ctx context.Context, tx pgx.Tx) error {
		row := tx.QueryRow(ctx, "UPDATE api_keys SET revoked = coalesce(revoked, $2) WHERE id = $1 RETURNING "+keyColumns, id, now.UTC().Truncate(time.Millisecond))
		var err error
		key, err = scanKey(row)
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
		}
		return err
	})
	if err != nil {
		return appliance.APIKey{}, err
	}
	k.changed(version, key)
	return key, nil
}

// Bind implements appliance.Keys. Other appliances know of it within a second.
func (k *Keys) Bind(ctx context.Context, id, attestor string) (appliance.APIKey, error) {
	var key appliance.APIKey
	version, err := k.change(ctx, "bind an API key", func(ctx context.Context, tx pgx.Tx) (err error) {
		key, err = scanKey(tx.QueryRow(ctx, "SELECT "+keyColumns+" FROM api_keys WHERE id = $1", id)) // the head's lock is held
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
		}
		if err != nil {
			return err
		}
		key.Attestor = attestor
		text, err := encodeKey(key)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE api_keys SET key = $2 WHERE id = $1", id, text)
		return err
	})
	if err != nil {
		return appliance.APIKey{}, err
	}
	k.changed(version, key)
	if known, found := k.known(id); found {
		key.LastUsed = known.LastUsed // which may not be written yet
	}
	return key, nil
}

// Used implements appliance.Keys.
func (k *Keys) Used(id string, now time.Time) {
	if key, found := k.known(id); !found || now.Sub(key.LastUsed) < usedStep {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := k.byID[id]; now.After(key.LastUsed) {
		key.LastUsed = now.UTC().Truncate(time.Second)
		k.byID[id] = key
		k.dirty[id] = true
	}
}

// change makes a change of the API keys, and tries again what can be. What do returns that is for a client ends
// it. It returns the version of the keys after it.
func (k *Keys) change(ctx context.Context, doing string, do func(ctx context.Context, tx pgx.Tx) error) (version int64, err error) {
	if k.store.opts.ReadOnly {
		return 0, errReadOnly()
	}
	ctx, cancel := context.WithTimeout(ctx, k.store.opts.Timeout)
	defer cancel()
	k.begun.Store(time.Now().UnixNano())
	defer k.begun.Store(0)
	for attempt := 0; ; attempt++ {
		version, err = k.changeOnce(ctx, func(tx pgx.Tx) error { return do(ctx, tx) })
		if _, ready := errors.AsType[*appliance.Error](err); err == nil || ready {
			return version, err
		}
		if !passes(err) || !pause(ctx, attempt) {
			return 0, answer(ctx, doing, err)
		}
	}
}

func (k *Keys) changeOnce(ctx context.Context, do func(tx pgx.Tx) error) (version int64, err error) {
	err = k.store.transaction(ctx, func(tx pgx.Tx) error {
		// The head's lock first, as an append has it.
		if err := tx.QueryRow(ctx, "UPDATE log_head SET keys_version = keys_version + 1 WHERE id = 1 RETURNING keys_version").Scan(&version); err != nil {
			return err
		}
		return do(tx)
	})
	return version, err
}

// changed makes a change known that is committed.
func (k *Keys) changed(version int64, key appliance.APIKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if used := k.byID[key.ID].LastUsed; used.After(key.LastUsed) {
		key.LastUsed = used
	}
	k.byID[key.ID] = key
	if k.version == version-1 {
		k.version = version // else others' changes are yet to be read
	}
}

// refresh reads the keys where the database's are of another version, or others' last uses are old.
func (k *Keys) refresh(ctx context.Context, version int64) error {
	k.mu.RLock()
	current := k.version >= version && time.Since(k.read) < flushEvery
	k.mu.RUnlock()
	if current {
		return nil
	}
	_, err := k.asked.do(ctx, k.reread)
	return err
}

// reload reads the keys where they have changed.
func (k *Keys) reload() (none struct{}, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var version int64
	if err := k.store.read.QueryRow(ctx, "SELECT keys_version FROM log_head WHERE id = 1").Scan(&version); err != nil {
		return none, err
	}
	k.mu.RLock()
	current := k.version >= version
	k.mu.RUnlock()
	if current {
		return none, nil
	}
	return k.reread()
}

// reread reads all keys.
func (k *Keys) reread() (none struct{}, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	read := time.Now()
	var version int64
	// The version first: keys that are newer than it are read again, never the other way round.
	batch := new(pgx.Batch)
	batch.Queue("SELECT keys_version FROM log_head WHERE id = 1").QueryRow(func(row pgx.Row) error { return row.Scan(&version) })
	var all []appliance.APIKey
	batch.Queue("SELECT " + keyColumns + " FROM api_keys").Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (appliance.APIKey, error) { return scanKey(row) })
		return err
	})
	if err := k.store.read.SendBatch(ctx, batch).Close(); err != nil {
		return none, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if version < k.version {
		return none, nil // a change was made known meanwhile, and is newer than what was read
	}
	for _, key := range all {
		before := k.byID[key.ID]
		if before.LastUsed.After(key.LastUsed) {
			key.LastUsed = before.LastUsed
		}
		if key.Revoked.IsZero() {
			key.Revoked = before.Revoked // which is final, and may have been committed since
		}
		k.byID[key.ID] = key // no key is ever removed
	}
	k.version, k.read = version, read
	return none, nil
}

// flush writes the last uses that the database does not know.
func (k *Keys) flush(ctx context.Context) error {
	k.mu.Lock()
	ids := slices.Sorted(maps.Keys(k.dirty)) // all take the rows' locks in one order
	times := make([]time.Time, len(ids))
	for i, id := range ids {
		times[i] = k.byID[id].LastUsed
	}
	clear(k.dirty)
	k.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	batch := new(pgx.Batch)
	for i, id := range ids {
		batch.Queue("UPDATE api_keys SET last_used = $2 WHERE id = $1 AND (last_used IS NULL OR last_used < $2)", id, times[i])
	}
	err := k.store.write.SendBatch(ctx, batch).Close()
	if err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, id := range ids {
			k.dirty[id] = true
		}
	}
	return err
}

const keyColumns = "key, revoked, last_used"

// encodeKey is the JSON of what no column of its own has.
func encodeKey(key appliance.APIKey) (string, error) {
	key.Revoked, key.LastUsed = time.Time{}, time.Time{}
	text, err := json.Marshal(key)
	return string(text), err
}

func scanKey(row pgx.Row) (key appliance.APIKey, err error) {
	var text string
	var revoked, used *time.Time
	if err := row.Scan(&text, &revoked, &used); err != nil {
		return key, err
	}
	if err := json.Unmarshal([]byte(text), &key); err != nil {
		return key, fmt.Errorf("%w: an API key: %w", ErrDamaged, err)
	}
	key.Revoked, key.LastUsed = given(revoked), given(used)
	return key, nil
}

// optional is NULL for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// given is the zero time for NULL.
func given(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
