package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

// ErrRetired is returned for a log key whose log was continued as another one.
var ErrRetired = errors.New("this log key is retired")

// retiredFile returns the file name of a retired log key in data_dir.
func retiredFile(key journal.LogKey) string {
	return fmt.Sprintf("%s.retired-%08x", LogKeyFile, key.Verifier.KeyHash())
}

// IsRetired reports whether a key is retired in a folder.
func IsRetired(dir string, key journal.LogKey) bool {
	return files.Exists(filepath.Join(dir, retiredFile(key)))
}

// ReplaceLogKey replaces log.key and keeps the old key under the name of a retired one. A kill leaves the old key or
// the new one.
func ReplaceLogKey(dir string, old journal.LogKey, secret string) error {
	path, retired := filepath.Join(dir, LogKeyFile), filepath.Join(dir, retiredFile(old))
	err := os.Link(path, retired)
	if errors.Is(err, fs.ErrNotExist) { // only its public half is known here, which is enough to mark it as retired
		err = files.Write(retired, []byte(old.VerifierText+"\n"), 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("retire the log key: %w", err)
	}
	if err := files.Write(path, []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("log key: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, nextKeyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("log key: %w", err)
	}
	return files.HandOver(dir, LogKeyFile, retiredFile(old))
}

// nextKeyFile holds the independent key of a new log until it is in log.key.
const nextKeyFile = LogKeyFile + ".next"

// KeepNextKey stores the secret text of the next log key, so that a kill does not lose it.
func KeepNextKey(dir, secret string) error {
	if err := files.Write(filepath.Join(dir, nextKeyFile), []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("log key: %w", err)
	}
	return files.HandOver(dir, nextKeyFile)
}

// successorOf returns the key of the log that begins with these events. It derives the key from the old one or reads
// nextKeyFile.
func successorOf(dir string, key journal.LogKey,
	events []journal.Event) (next journal.LogKey, secret string, err error) {
	if next, secret, err = key.Follow(events); !errors.Is(err, journal.ErrNewLogKey) {
		return next, secret, err
	}
	if kept, secret, readErr := NextKey(dir); readErr == nil {
		return kept, secret, nil
	}
	return next, "", err
}

// NextKey reads the key that KeepNextKey stored.
func NextKey(dir string) (next journal.LogKey, secret string, err error) {
	kept, err := os.ReadFile(filepath.Join(dir, nextKeyFile))
	if err != nil {
		return next, "", err
	}
	secret = strings.TrimSpace(string(kept))
	next, err = journal.ParseLogKey(secret)
	return next, secret, err
}

// followed opens the journal in a folder with a log key or, if the journal was continued as another log, with that
// log's key. It returns the key.
func followed(dir string, key journal.LogKey,
	open func(journal.LogKey) (*bolt.Store, error)) (*bolt.Store, journal.LogKey, error) {
	store, _, key, err := openFollowing(dir, key, open)
	return store, key, err
}

func openFollowing(dir string, key journal.LogKey, open func(journal.LogKey) (*bolt.Store, error)) (
	store *bolt.Store, secret string, _ journal.LogKey, err error) {
	store, err = open(key)
	if !errors.Is(err, bolt.ErrOtherLog) {
		return store, "", key, err
	}
	_, events, otherErr := bolt.Beginning(filepath.Join(dir, StoreFile))
	next, secret, followErr := successorOf(dir, key, events)
	if errors.Is(followErr, journal.ErrNewLogKey) {
		err = errors.Join(err, followErr)
	}
	if otherErr != nil || followErr != nil {
		return nil, "", key, err
	}
	store, err = open(next) // which verifies that the key signed the journal
	return store, secret, next, err
}

// OpenFollowing opens the journal in a folder with its log key. If a kill has left a continued journal with the old
// log.key, it replaces log.key now. A retired key is refused, so that it cannot sign a second history.
func OpenFollowing(dir string, key journal.LogKey,
	open func(journal.LogKey) (*bolt.Store, error)) (*bolt.Store, journal.LogKey, error) {
	store, secret, next, err := openFollowing(dir, key, open)
	switch {
	case err != nil:
		return nil, key, err
	case secret != "":
		err = ReplaceLogKey(dir, key, secret)
	case IsRetired(dir, key):
		err = fmt.Errorf("%w: %s in %s is the key of %s, which was continued as another log (see %s): put the "+
			"journal and log.key of that log back, or "+
			"restore the older ones with attestd restore, which starts another log", ErrRetired, LogKeyFile, dir,
			journal.LogName(key.Verifier), retiredFile(key))
	}
	if err != nil {
		return nil, key, errors.Join(err, store.Close())
	}
	return store, next, nil
}
