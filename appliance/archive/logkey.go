package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	if err := os.Link(path, retired); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("retire the log key: %w", err)
	}
	if err := files.Write(path, []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("log key: %w", err)
	}
	return files.HandOver(dir, LogKeyFile, retiredFile(old))
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
	next, secret, followErr := key.Follow(events)
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
