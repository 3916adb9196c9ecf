package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/bolt"
)

// ErrRetired is a log key whose log goes on as another one.
var ErrRetired = errors.New("this log key is retired")

// retiredFile is the name of a log key in data_dir that signs nothing any more.
func retiredFile(key appliance.LogKey) string {
	return fmt.Sprintf("%s.retired-%08x", LogKeyFile, key.Verifier.KeyHash())
}

// IsRetired says whether the log of a key went on as another one in a folder.
func IsRetired(dir string, key appliance.LogKey) bool {
	return files.Exists(filepath.Join(dir, retiredFile(key)))
}

// ReplaceLogKey puts another log key in the place of log.key, which stays under the name of a retired one. A kill leaves either in
// place.
func ReplaceLogKey(dir string, old appliance.LogKey, secret string) error {
	path, retired := filepath.Join(dir, LogKeyFile), filepath.Join(dir, retiredFile(old))
	err := os.Link(path, retired)
	if errors.Is(err, fs.ErrNotExist) { // the old key is not here; its public half says that it signs nothing any more
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

// nextKeyFile has the new key of a journal that goes on as another log, from before the journal is in place until log.key has it.
const nextKeyFile = LogKeyFile + ".next"

// KeepNextKey keeps the secret text of the key with which the journal in a folder is about to go on: a kill does not lose it.
func KeepNextKey(dir, secret string) error {
	if err := files.Write(filepath.Join(dir, nextKeyFile), []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("log key: %w", err)
	}
	return files.HandOver(dir, nextKeyFile)
}

// successorOf is the key of the log that begins with these events: it follows from the old log's, or is in nextKeyFile.
func successorOf(dir string, key appliance.LogKey, events []appliance.Event) (next appliance.LogKey, secret string, err error) {
	if next, secret, err = key.Follow(events); !errors.Is(err, appliance.ErrNewLogKey) {
		return next, secret, err
	}
	if kept, secret, readErr := NextKey(dir); readErr == nil {
		return kept, secret, nil
	}
	return next, "", err
}

// NextKey reads what KeepNextKey has kept.
func NextKey(dir string) (next appliance.LogKey, secret string, err error) {
	kept, err := os.ReadFile(filepath.Join(dir, nextKeyFile))
	if err != nil {
		return next, "", err
	}
	secret = strings.TrimSpace(string(kept))
	next, err = appliance.ParseLogKey(secret)
	return next, secret, err
}

// followed opens the journal in a folder with a log key, or with the one that follows from it where the journal goes on as another
// log, and returns that.
func followed(dir string, key appliance.LogKey, open func(appliance.LogKey) (*bolt.Store, error)) (*bolt.Store, appliance.LogKey, error) {
	store, _, key, err := openFollowing(dir, key, open)
	return store, key, err
}

func openFollowing(dir string, key appliance.LogKey, open func(appliance.LogKey) (*bolt.Store, error)) (store *bolt.Store, secret string, _ appliance.LogKey, err error) {
	store, err = open(key)
	if !errors.Is(err, bolt.ErrOtherLog) {
		return store, "", key, err
	}
	_, events, otherErr := bolt.Beginning(filepath.Join(dir, StoreFile))
	next, secret, followErr := successorOf(dir, key, events)
	if errors.Is(followErr, appliance.ErrNewLogKey) {
		err = errors.Join(err, followErr)
	}
	if otherErr != nil || followErr != nil {
		return nil, "", key, err
	}
	store, err = open(next) // which checks that the key signed the journal
	return store, secret, next, err
}

// OpenFollowing opens the journal in a folder with its log key. Where the journal has gone on as another log, and log.key has not
// followed because of a kill between the two, it follows now. A retired key opens nothing: nobody signs a second history under it.
func OpenFollowing(dir string, key appliance.LogKey, open func(appliance.LogKey) (*bolt.Store, error)) (*bolt.Store, appliance.LogKey, error) {
	store, secret, next, err := openFollowing(dir, key, open)
	switch {
	case err != nil:
		return nil, key, err
	case secret != "":
		err = ReplaceLogKey(dir, key, secret)
	case IsRetired(dir, key):
		err = fmt.Errorf("%w: %s in %s is the key of %s, which goes on as another log (see %s): put the journal and the log.key of that log back, or "+
			"restore the older ones by attestd restore, which begins another log", ErrRetired, LogKeyFile, dir, appliance.LogName(key.Verifier), retiredFile(key))
	}
	if err != nil {
		return nil, key, errors.Join(err, store.Close())
	}
	return store, next, nil
}
