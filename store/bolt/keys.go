package bolt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt/pages"
	"go.etcd.io/bbolt"
)

// usedStep is the resolution of an API key's last use. Further uses within it cost no write.
const usedStep = 30 * time.Second

// Keys implements appliance.Keys. Reads come from memory; changes go through the store's writer.
type Keys struct {
	store *Store

	mu    sync.RWMutex                // protects the fields below; not held during disk access
	byID  map[string]appliance.APIKey // all keys; their slices are immutable
	dirty map[string]bool             // ids of keys that differ from the file
}

var _ appliance.Keys = (*Keys)(nil)

// Create implements appliance.Keys.
func (k *Keys) Create(ctx context.Context, key appliance.APIKey) error {
	key.Scopes, key.AllowFrom = slices.Clone(key.Scopes), slices.Clone(key.AllowFrom)
	return k.store.submit(ctx, &op{Value: change{newKey: &key}})
}

// Key implements appliance.Keys. The key's slices are shared and must not be changed.
func (k *Keys) Key(_ context.Context, id string) (appliance.APIKey, error) {
	k.mu.RLock()
	key, found := k.byID[id]
	k.mu.RUnlock()
	if !found {
		return appliance.APIKey{}, appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
	}
	return key, nil
}

// List implements appliance.Keys.
func (k *Keys) List(context.Context) ([]appliance.APIKey, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	all := make([]appliance.APIKey, 0, len(k.byID))
	for _, key := range k.byID {
		key.Scopes, key.AllowFrom = slices.Clone(key.Scopes), slices.Clone(key.AllowFrom)
		all = append(all, key)
	}
	slices.SortFunc(all, func(a, b appliance.APIKey) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all, nil
}

// Revoke implements appliance.Keys. The key is revoked at once, even if an error says that the disk does not have it
// yet. The next successful write stores it.
func (k *Keys) Revoke(ctx context.Context, id string, now time.Time) (appliance.APIKey, error) {
	return k.change(ctx, id, func(key *appliance.APIKey) {
		if key.Revoked.IsZero() {
			key.Revoked = now.UTC().Truncate(time.Millisecond) // the resolution of a record's time
		}
	})
}

// Bind implements appliance.Keys. As with Revoke, the key is bound at once, even after an error.
func (k *Keys) Bind(ctx context.Context, id, attestor string) (appliance.APIKey, error) {
	return k.change(ctx, id, func(key *appliance.APIKey) { key.Attestor = attestor })
}

// change changes a key in memory, then on disk.
func (k *Keys) change(ctx context.Context, id string, change func(*appliance.APIKey)) (appliance.APIKey, error) {
	if k.store.writer == nil {
		return appliance.APIKey{}, errReadOnly()
	}
	k.mu.Lock()
	key, found := k.byID[id]
	if found {
		change(&key)
		k.byID[id] = key
		k.dirty[id] = true // also without a change: an earlier one may not be on the disk yet
	}
	k.mu.Unlock()
	if !found {
		return appliance.APIKey{}, appliance.Errorf(appliance.CodeNotFound, "no API key %q", id)
	}
	return key, k.store.submit(ctx, &op{})
}

// Used implements appliance.Keys.
func (k *Keys) Used(id string, now time.Time) {
	k.mu.RLock()
	key, found := k.byID[id]
	k.mu.RUnlock()
	if !found || now.Sub(key.LastUsed) < usedStep {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if key = k.byID[id]; now.After(key.LastUsed) {
		key.LastUsed = now.UTC().Truncate(time.Second)
		k.byID[id] = key
		k.dirty[id] = true
	}
}

// load reads all keys.
func (k *Keys) load(p *pages.Reader) error {
	return p.Walk(bucketKeys, nil, func(id, value []byte) error {
		key, err := decodeKey(id, value)
		if err != nil {
			return err
		}
		k.byID[key.ID] = key
		return nil
	}, nil)
}

// created adds a stored key to memory.
func (k *Keys) created(key appliance.APIKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byID[key.ID] = key
}

// takeDirty returns the keys to write and marks them as written. setDirty undoes that.
func (k *Keys) takeDirty() []appliance.APIKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.dirty) == 0 {
		return nil
	}
	keys := make([]appliance.APIKey, 0, len(k.dirty))
	for id := range k.dirty {
		keys = append(keys, k.byID[id])
	}
	clear(k.dirty)
	return keys
}

// setDirty marks keys as not written.
func (k *Keys) setDirty(keys []appliance.APIKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		k.dirty[key.ID] = true
	}
}

// writeKeys writes the new and due API keys into the file. If the disk is full, it returns the error to the waiters
// only, because leaves may still find room.
func (b *batch) writeKeys() error {
	flush := b.dueKeys()
	if len(flush) == 0 && !slices.ContainsFunc(b.ops, func(o *op) bool { return o.Value.newKey != nil }) {
		return nil
	}
	keys, w := b.writer.store.keys, b.writer
	created, err := b.putKeys(flush)
	if err == nil {
		for _, key := range created {
			keys.created(key)
		}
		return nil
	}
	keys.setDirty(flush)
	if !notWritten(err) {
		return w.fail(err)
	}
	for _, o := range b.ops {
		if !o.Value.appends() {
			o.Err = passing(fmt.Errorf("the disk is not writable: %w", err))
		}
	}
	return nil
}

// dueKeys returns the API keys to write now: at once if a caller waits, otherwise at most every flushInterval.
func (b *batch) dueKeys() []appliance.APIKey {
	w := b.writer
	now := time.Now()
	due := b.last || now.Sub(w.flushed) >= flushInterval
	for _, o := range b.ops {
		due = due || !o.Value.appends() && o.Value.newKey == nil
	}
	if !due {
		return nil
	}
	w.flushed = now
	return w.store.keys.takeDirty()
}

// putKeys writes API keys in one transaction and returns the new ones.
func (b *batch) putKeys(flush []appliance.APIKey) (created []appliance.APIKey, err error) {
	s := b.writer.store
	err = s.update(func(tx *bbolt.Tx) error {
		t, err := openTables(tx)
		if err != nil {
			return err
		}
		names, _ := s.keys.List(context.Background()) // from memory: it never fails
		for _, o := range b.ops {
			key := o.Value.newKey
			if key == nil {
				continue
			}
			if t.keys.Get([]byte(key.ID)) != nil {
				o.Err = appliance.Errorf(appliance.CodeInternal,
					"the API key cannot be stored").Because(fmt.Errorf("id %q exists already", key.ID))
				continue
			}
			if !s.opts.Copying {
				if o.Err = appliance.CheckNewName(names, key.Name, s.opts.Now()); o.Err != nil {
					continue
				}
			}
			names = append(names, *key)
			flush, created = append(flush, *key), append(created, *key)
		}
		for _, key := range flush {
			if err := putKey(t.keys, key); err != nil {
				return err
			}
		}
		return nil
	})
	return created, err
}

func putKey(b *bbolt.Bucket, key appliance.APIKey) error {
	text, err := json.Marshal(key)
	if err != nil {
		return fmt.Errorf("API key %s: %w", key.ID, err)
	}
	sum := keySum([]byte(key.ID), text)
	return b.Put([]byte(key.ID), append(sum[:], text...))
}

func decodeKey(id, value []byte) (appliance.APIKey, error) {
	var key appliance.APIKey
	if len(value) < sha256.Size {
		return key, fmt.Errorf("%w: API key %q: %d bytes", ErrDamaged, id, len(value))
	}
	sum, text := value[:sha256.Size], value[sha256.Size:]
	if want := keySum(id, text); !bytes.Equal(sum, want[:]) {
		return key, fmt.Errorf("%w: API key %q: wrong checksum", ErrDamaged, id)
	}
	if err := json.Unmarshal(text, &key); err != nil {
		return key, fmt.Errorf("%w: API key %q: %w", ErrDamaged, id, err)
	}
	if key.ID != string(id) {
		return key, fmt.Errorf("%w: API key %q: stored as %q", ErrDamaged, key.ID, id)
	}
	return key, nil
}

func keySum(id, text []byte) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat(id, text))
}
