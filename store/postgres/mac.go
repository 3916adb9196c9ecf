package postgres

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
)

// The database's owner may write every table. What the tree does not cover is covered by a MAC instead: the list of API keys, by its
// digest, and whether attesting is stopped. The versions of both never go down: each appliance remembers the highest that it has seen.

// keysDigest is the SHA-256 of all API keys: of each, in the order of the ids, id, JSON and time of revocation in microseconds (0 for
// none). The time of the last use is not covered.
func keysDigest(rows []keyRow) []byte {
	rows = slices.SortedFunc(slices.Values(rows), func(a, b keyRow) int { return strings.Compare(a.id, b.id) })
	h := sha256.New()
	for _, r := range rows {
		var revoked uint64
		if r.revoked != nil {
			revoked = uint64(r.revoked.UnixMicro())
		}
		writeFields(h, []byte(r.id), []byte(r.text), binary.BigEndian.AppendUint64(nil, revoked))
	}
	return h.Sum(nil)
}

// writeFields writes each field behind its length, so that no two lists of fields are the same bytes.
func writeFields(h hash.Hash, fields ...[]byte) {
	for _, f := range fields {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f)))) // a hash never fails
		_, _ = h.Write(f)
	}
}

// stateMAC is log_head.state_mac.
func stateMAC(secret []byte, h *head) []byte {
	mac := hmac.New(sha256.New, secret)
	version := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	writeFields(mac, []byte("attestd log_head v1"), version(h.keys), h.keysDigest, version(h.stops), []byte(h.stopped))
	return mac.Sum(nil)
}

// checkState returns ErrForged unless an appliance of this log wrote the head's API keys and stop state, and ErrForgot where either is
// older than what was seen before. known was read before h. A store without the log key cannot tell.
func (s *Store) checkState(h, known *head) error {
	begun := h.log != "" || len(h.mac) > 0 || h.keys != 0 || h.stops != 0 || h.stopped != ""
	switch {
	case s.secret == nil:
		return nil
	case begun && !hmac.Equal(h.mac, stateMAC(s.secret, h)):
		return fmt.Errorf("%w: log_head: the list of API keys, or whether attesting is stopped, has a wrong MAC", ErrForged)
	}
	seen := s.seen.of(h.log)
	if known != nil && known.log == h.log {
		seen.Keys, seen.Stops = max(seen.Keys, known.keys), max(seen.Stops, known.stops)
	}
	if h.keys < seen.Keys || h.stops < seen.Stops {
		return fmt.Errorf("%w: its API keys are of version %d and its stop state of %d, and were of %d and %d: "+
			"put the newer database back; to go on with the older one, check 'attestd key list', remove %s and restart",
			ErrForgot, h.keys, h.stops, seen.Keys, seen.Stops, s.seen.path)
	}
	return nil
}

// versions are the highest versions of API keys and stop state that this appliance has seen of a log.
type versions struct {
	Log   string `json:"log"`
	Keys  int64  `json:"keys"`
	Stops int64  `json:"stops"`
}

// seenFile keeps versions in a file, for the next start.
type seenFile struct {
	path string // "" keeps nothing

	mu   sync.Mutex
	kept versions
}

func (f *seenFile) load() error {
	if f.path == "" {
		return nil
	}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &f.kept)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: it has the versions of the database that this appliance has seen", f.path, err)
	}
	return nil
}

// of returns what was seen of a log.
func (f *seenFile) of(log string) versions {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept.Log != log {
		return versions{Log: log}
	}
	return f.kept
}

// keep writes the versions of a head that was checked, where they are higher.
func (f *seenFile) keep(h *head) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := versions{Log: h.log, Keys: h.keys, Stops: h.stops}
	if next.Log == f.kept.Log {
		next.Keys, next.Stops = max(next.Keys, f.kept.Keys), max(next.Stops, f.kept.Stops)
	}
	if f.path == "" || next == f.kept {
		f.kept = next
		return nil
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = files.Write(f.path, append(text, '\n'), 0o600)
	}
	if err == nil {
		err = files.HandOver(filepath.Dir(f.path), filepath.Base(f.path))
	}
	if err == nil {
		f.kept = next
	}
	return err
}

// openSecret sets the key of the MACs.
func (s *Store) openSecret() (err error) {
	if s.opts.Signer == nil {
		return nil
	}
	s.secret, err = appliance.StoreSecret(s.opts.Signer)
	return err
}
