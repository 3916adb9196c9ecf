package attest

import (
	"slices"
	"sync"
	"time"
)

// KeyUse counts per step, for KeyUseSteps steps.
const (
	KeyUseStep  = 15 * time.Minute
	KeyUseSteps = 96 // one day
)

// KeyUse counts the signatures of each API key, per quarter of an hour over the past day. It is in memory only: a
// restart resets it, and appliances that share a store count separately. The zero value is ready. A nil
// KeyUse counts no signatures. All methods are safe for concurrent use.
type KeyUse struct {
	mu   sync.Mutex
	keys map[string]*keySteps
}

type keySteps struct {
	newest int64 // number of the newest step since 1970
	counts [KeyUseSteps]uint32
}

// Count notes one signature for an API key.
func (u *KeyUse) Count(keyID string, now time.Time) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	k := u.keys[keyID]
	if k == nil {
		if u.keys == nil {
			u.keys = make(map[string]*keySteps)
		}
		k = &keySteps{newest: stepOf(now)}
		u.keys[keyID] = k
	}
	step := stepOf(now)
	k.advance(step)
	if step > k.newest-KeyUseSteps { // otherwise the clock was set back by more than a day
		k.counts[step%KeyUseSteps]++
	}
}

// Days returns the counts of each API key that was used in the past day, oldest step first, and the end of the newest
// step.
func (u *KeyUse) Days(now time.Time) (counts map[string][]uint32, until time.Time) {
	counts = make(map[string][]uint32)
	newest := stepOf(now)
	until = time.Unix((newest+1)*int64(KeyUseStep/time.Second), 0).UTC()
	if u == nil {
		return counts, until
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, k := range u.keys {
		k.advance(newest)
		if k.counts == [KeyUseSteps]uint32{} {
			delete(u.keys, id)
			continue
		}
		oldest := (k.newest + 1) % KeyUseSteps
		counts[id] = slices.Concat(k.counts[oldest:], k.counts[:oldest])
	}
	return counts, until
}

func stepOf(t time.Time) int64 { return t.Unix() / int64(KeyUseStep/time.Second) }

// advance makes step the newest one, unless a later one exists, and clears the counts that are a day older.
func (k *keySteps) advance(step int64) {
	if step-k.newest >= KeyUseSteps {
		k.counts, k.newest = [KeyUseSteps]uint32{}, step
	}
	for k.newest < step {
		k.newest++
		k.counts[k.newest%KeyUseSteps] = 0
	}
}
