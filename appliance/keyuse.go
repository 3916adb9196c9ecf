package appliance

import (
	"slices"
	"sync"
	"time"
)

// How KeyUse counts.
const (
	KeyUseStep  = 15 * time.Minute
	KeyUseSteps = 96 // a day
)

// KeyUse counts what API keys have had signed, by quarters of an hour over the past day. It is in memory alone: a daemon that
// starts begins anew, and appliances that share a store each count their own. The zero value is ready, and nil counts nothing.
// All methods are safe for concurrent use.
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
	if step > k.newest-KeyUseSteps { // else the clock went back by more than a day
		k.counts[step%KeyUseSteps]++
	}
}

// Days returns the counts of each API key that was used in the past day, the oldest step first, and when the newest ends.
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

// advance makes step the newest, unless a later one is. What is a day older is forgotten.
func (k *keySteps) advance(step int64) {
	if step-k.newest >= KeyUseSteps {
		k.counts, k.newest = [KeyUseSteps]uint32{}, step
	}
	for k.newest < step {
		k.newest++
		k.counts[k.newest%KeyUseSteps] = 0
	}
}
