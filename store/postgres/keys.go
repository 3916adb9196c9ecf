package postgres

import (
	"bytes"
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

// usedStep is the resolution of an API key's last use. Further uses within it cost no write.
const usedStep = 30 * time.Second

// Keys implements appliance.Keys. Key reads a cache, which follows the database within a second. Each append checks the
// version of the keys under the head's lock.
type Keys struct {
	store *Store
	asked sharedCall[struct{}]
	// start of the running change, in Unix nanoseconds of the system's clock; 0 if no change is running
	begun atomic.Int64

	mu      sync.RWMutex // protects the fields below; not held during queries
	version int64        // of byID; -1 before the first read
	digest  []byte       // keysDigest of byID; a failover can use a version again for other keys
	read    time.Time    // when byID was read, by this process's own clock
	byID    map[string]appliance.APIKey
	dirty   map[string]bool // ids with a last use that is not stored yet
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
	_, err = k.change(ctx, "create an API key", key.ID, func(stored *keyRow, all []appliance.APIKey) (keyRow, error) {
		if stored != nil && stored.text != text { // equal if an earlier attempt was committed without an answer
			return keyRow{}, appliance.Errorf(appliance.CodeInternal,
				"the API key cannot be stored").Because(fmt.Errorf("id %q exists already", key.ID))
		}
		if stored == nil && !k.store.opts.Copying {
			if err := appliance.CheckNewName(all, key.Name, k.store.opts.Now()); err != nil {
				return keyRow{}, err
			}
		}
		return keyRow{id: key.ID, text: text, revoked: optional(key.Revoked), used: optional(key.LastUsed)}, nil
	})
	return err
}

// Key implements appliance.Keys. The key's slices are shared and must not be changed. If the cache lacks the key, Key
// reads the database, because another appliance may just have created it. Concurrent callers share the query.
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

// List implements appliance.Keys. It reads the database.
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

// Revoke implements appliance.Keys. It commits under the head's lock, so that every later append on any appliance sees
// it.
func (k *Keys) Revoke(ctx context.Context, id string, now time.Time) (appliance.APIKey, error) {
	return k.change(ctx, "revoke an API key", id, func(stored *keyRow, _ []appliance.APIKey) (keyRow, error) {
		if stored == nil {
			return keyRow{}, appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
		}
		next := *stored
		if next.revoked == nil {
			next.revoked = optional(now.UTC().Truncate(time.Millisecond))
		}
		return next, nil
	})
}

// Bind implements appliance.Keys. Other appliances know of it within a second.
func (k *Keys) Bind(ctx context.Context, id, attestor string) (appliance.APIKey, error) {
	return k.change(ctx, "bind an API key", id, func(stored *keyRow, _ []appliance.APIKey) (keyRow, error) {
		if stored == nil {
			return keyRow{}, appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
		}
		key, err := stored.key()
		if err != nil {
			return keyRow{}, err
		}
		key.Attestor = attestor
		next := *stored
		next.text, err = encodeKey(key)
		return next, err
	})
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

// change replaces the row of an API key by the one that next returns. next gets the stored row, or nil if the key does
// not exist, and all keys. The head's lock is held from their reading to the commit, so that no other appliance changes
// a key in between. Transient failures are retried; an *appliance.Error from next ends the attempts.
func (k *Keys) change(ctx context.Context, doing, id string,
	next func(stored *keyRow, all []appliance.APIKey) (keyRow, error)) (key appliance.APIKey, err error) {
	if k.store.opts.ReadOnly {
		return key, errReadOnly()
	}
	ctx, cancel := context.WithTimeout(ctx, k.store.opts.Timeout)
	defer cancel()
	k.begun.Store(time.Now().UnixNano())
	defer k.begun.Store(0)
	for attempt := 0; ; attempt++ {
		if key, err = k.changeOnce(ctx, id, next); err == nil {
			return key, nil
		}
		if _, ready := errors.AsType[*appliance.Error](err); ready {
			return key, err
		}
		if !passes(err) || !pause(ctx, attempt) {
			return key, answer(ctx, doing, err)
		}
	}
}

func (k *Keys) changeOnce(ctx context.Context, id string,
	next func(stored *keyRow, all []appliance.APIKey) (keyRow, error)) (key appliance.APIKey, err error) {
	var before, after head
	err = k.store.transaction(ctx, func(tx pgx.Tx) error {
		h, err := k.store.lock(ctx, tx) // first, in the order of an append
		if err != nil && !errors.Is(err, errUnclaimed) {
			return err
		}
		rows, err := readKeys(ctx, tx, h)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(rows, func(r keyRow) bool { return r.id == id })
		var stored *keyRow
		if i >= 0 {
			stored = &rows[i]
		}
		all := make([]appliance.APIKey, len(rows))
		for i := range rows {
			if all[i], err = rows[i].key(); err != nil {
				return err
			}
		}
		changed, err := next(stored, all)
		if err == nil {
			key, err = changed.key()
		}
		if err != nil {
			return err
		}
		if stored != nil {
			*stored = changed
		} else {
			rows = append(rows, changed)
		}
		// The MAC covers the verified rows and this change. It does not cover the rows as stored, because a trigger
		// could have altered them.
		before = *h
		h.keys, h.keysDigest = h.keys+1, keysDigest(rows)
		after = *h
		q := new(pgx.Batch)
		q.Queue("INSERT INTO api_keys (id, key, expires, revoked, last_used) VALUES ($1, $2, $3, $4, $5) "+
			"ON CONFLICT (id) DO UPDATE SET key = excluded.key, expires = excluded.expires, revoked = excluded.revoked",
			changed.id, changed.text, optional(key.Expires), changed.revoked, changed.used)
		q.Queue("UPDATE log_head SET keys_version = $1, keys_digest = $2, state_mac = $3 WHERE id = 1", h.keys,
			h.keysDigest, stateMAC(k.store.secret, h))
		return tx.SendBatch(ctx, q).Close()
	})
	if err == nil {
		key = k.changed(&before, &after, key)
	}
	return key, err
}

// changed updates the cache after a commit. It returns the key with the time of its last use, which may not be stored
// yet.
func (k *Keys) changed(before, after *head, key appliance.APIKey) appliance.APIKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	if used := k.byID[key.ID].LastUsed; used.After(key.LastUsed) {
		key.LastUsed = used
	}
	k.byID[key.ID] = key
	if k.isOf(before) { // otherwise changes by others are still to be read
		k.version, k.digest = after.keys, after.keysDigest
	}
	return key
}

// refresh reads the keys if the cache is not that of h or the last read is old.
func (k *Keys) refresh(ctx context.Context, h *head) error {
	k.mu.RLock()
	current := k.isOf(h) && time.Since(k.read) < flushEvery
	k.mu.RUnlock()
	if current {
		return nil
	}
	_, err := k.asked.do(ctx, k.reread)
	return err
}

// isOf reports whether the cache has the keys of h. The caller holds mu.
func (k *Keys) isOf(h *head) bool { return k.version == h.keys && bytes.Equal(k.digest, h.keysDigest) }

// reload reads the keys if their version has changed.
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

// reread reads the head and all keys in one snapshot.
func (k *Keys) reread() (none struct{}, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	read := time.Now()
	return none, pgx.BeginTxFunc(ctx, k.store.read,
		pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			known := k.store.safe.Load()
			var r row
			if err := tx.QueryRow(ctx, selectHead).Scan(r.into()...); err != nil {
				return err
			}
			h, err := r.head()
			if err == nil {
				err = k.store.checkState(h, known)
			}
			if err != nil {
				return err
			}
			rows, err := readKeys(ctx, tx, h)
			if err != nil {
				return err
			}
			return k.set(h, rows, read)
		})
}

// at returns the keys that belong to h. The caller holds the lock of h.
func (k *Keys) at(ctx context.Context, tx querier, h *head) (map[string]appliance.APIKey, error) {
	k.mu.RLock()
	current := k.isOf(h)
	keys := maps.Clone(k.byID)
	k.mu.RUnlock()
	if current {
		return keys, nil
	}
	rows, err := readKeys(ctx, tx, h)
	if err == nil {
		err = k.set(h, rows, time.Now())
	}
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if keys[row.id], err = row.key(); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// set replaces the cached keys by verified rows.
func (k *Keys) set(h *head, rows []keyRow, read time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.keys < k.version {
		return nil // a newer change is in the cache already
	}
	for _, row := range rows {
		key, err := row.key()
		if err != nil {
			return err
		}
		before := k.byID[key.ID]
		if before.LastUsed.After(key.LastUsed) {
			key.LastUsed = before.LastUsed
		}
		if key.Revoked.IsZero() {
			key.Revoked = before.Revoked // a revocation is final and may be newer than rows
		}
		k.byID[key.ID] = key // keys are never removed
	}
	k.version, k.digest, k.read = h.keys, h.keysDigest, read
	return nil
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// stored returns all keys in the database without checking their digest.
func (k *Keys) stored(ctx context.Context) (keys []appliance.APIKey, err error) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := keyRows(limited, k.store.read)
	if err != nil {
		return nil, answer(ctx, "read the API keys", err)
	}
	for _, row := range rows {
		key, err := row.key()
		if err != nil {
			return nil, answer(ctx, "read the API keys", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKeys reads all keys. It returns ErrForged if their digest is not the one in h.
func readKeys(ctx context.Context, from querier, h *head) ([]keyRow, error) {
	rows, err := keyRows(ctx, from)
	if err == nil && !bytes.Equal(keysDigest(rows), h.keysDigest) {
		err = fmt.Errorf("%w: api_keys: wrong digest. To list the affected API keys, run: attestd log verify",
			ErrForged)
	}
	return rows, err
}

func keyRows(ctx context.Context, from querier) ([]keyRow, error) {
	rows, err := from.Query(ctx, "SELECT id, key, revoked, last_used FROM api_keys ORDER BY id")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r keyRow, err error) {
		return r, row.Scan(&r.id, &r.text, &r.revoked, &r.used)
	})
}

// flush stores the times of last use.
func (k *Keys) flush(ctx context.Context) error {
	k.mu.Lock()
	ids := slices.Sorted(maps.Keys(k.dirty)) // sorted, so that all appliances lock rows in the same order
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
		batch.Queue("UPDATE api_keys SET last_used = $2 WHERE id = $1 AND (last_used IS NULL OR last_used < $2)", id,
			times[i])
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

// keyRow is a row of api_keys.
type keyRow struct {
	id, text      string // text is encodeKey's
	revoked, used *time.Time
}

func (r keyRow) key() (key appliance.APIKey, err error) {
	if err := json.Unmarshal([]byte(r.text), &key); err != nil {
		return key, fmt.Errorf("%w: an API key: %w", ErrDamaged, err)
	}
	key.Revoked, key.LastUsed = given(r.revoked), given(r.used)
	return key, nil
}

// encodeKey returns the JSON for the column key, without the fields that have columns of their own.
func encodeKey(key appliance.APIKey) (string, error) {
	key.Revoked, key.LastUsed = time.Time{}, time.Time{}
	text, err := json.Marshal(key)
	return string(text), err
}

// optional returns nil (NULL) for the zero time.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// given returns the zero time for nil (NULL).
func given(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
