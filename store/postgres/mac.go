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

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// The Merkle tree covers neither the API keys nor the stop state, and the database's owner can write both. A MAC in
// log_head covers them. Its key is derived from the log key, which the owner does not have. Each version number only
// grows, and each appliance remembers the highest it has seen, so that an older row with its MAC is refused, too.

// keysDigest is the SHA-256 over all API keys, sorted by id. Each contributes its id, its JSON, and its time of
// revocation in microseconds, 0 if it is not revoked. The time of the last use is left out.
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

// writeFields prefixes each field with its length, so that different lists of fields give different bytes.
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

// checkState returns ErrForged if the MAC of h is wrong, and ErrForgot if a version in h is lower than one seen before.
// known must have been read before h; it may be nil. A store without the log key makes no check.
func (s *Store) checkState(h, known *head) error {
	begun := h.log != "" || len(h.mac) > 0 || h.keys != 0 || h.stops != 0 || h.stopped != ""
	switch {
	case s.secret == nil:
		return nil
	case begun && !hmac.Equal(h.mac, stateMAC(s.secret, h)):
		return fmt.Errorf("%w: log_head: wrong MAC of the API keys and the stop state", ErrForged)
	}
	seen := s.seen.of(h.log)
	if known != nil && known.log == h.log {
		seen.Keys, seen.Stops = max(seen.Keys, known.keys), max(seen.Stops, known.stops)
	}
	if h.keys < seen.Keys || h.stops < seen.Stops {
		return fmt.Errorf(
			"%w: the API keys have version %d and the stop state has %d; this appliance has seen %d and %d. "+
				"Restore the newer database. To use the older one, review the API keys (attestd key list), remove %s and "+
				"restart attestd",
			ErrForgot, h.keys, h.stops, seen.Keys, seen.Stops, s.seen.path)
	}
	return nil
}

// versions are the highest versions of the API keys and the stop state that this appliance has seen in a log.
type versions struct {
	Log   string `json:"log"`
	Keys  int64  `json:"keys"`
	Stops int64  `json:"stops"`
}

// seenFile stores versions on disk, so that a restart does not forget them.
type seenFile struct {
	path string // empty: the versions are not stored

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
		return fmt.Errorf("%s: %w: this file records which versions of the database the appliance has seen", f.path,
			err)
	}
	return nil
}

// of returns the versions seen in a log, zero if it is another log.
func (f *seenFile) of(log string) versions {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept.Log != log {
		return versions{Log: log}
	}
	return f.kept
}

// store stores the versions of a checked head if they are higher.
func (f *seenFile) store(h *head) error {
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

// openSecret derives the MAC key from the log key.
func (s *Store) openSecret() (err error) {
	if s.opts.Signer == nil {
		return nil
	}
	s.secret, err = journal.StoreSecret(s.opts.Signer)
	return err
}
