package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/store/bolt"
)

// OpenStore opens the file that holds API keys and journal, and the key that signs the journal's checkpoints. Both
// are made where neither exists. pending tells how many records are about to come; nil where none do by themselves.
func OpenStore(c *config.Config, logger *slog.Logger, pending func() int) (store *bolt.Store, key appliance.LogKey, err error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, key, fmt.Errorf("data_dir: %w", err)
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, key, err
	}
	err = owner.Do(func() error {
		store, key, err = openStore(c, logger, pending)
		return err
	})
	return store, key, err
}

func openStore(c *config.Config, logger *slog.Logger, pending func() int) (*bolt.Store, appliance.LogKey, error) {
	key, err := openLogKey(c)
	if err != nil {
		return nil, appliance.LogKey{}, err
	}
	store, err := bolt.Open(filepath.Join(c.DataDir, archive.StoreFile), bolt.Options{
		Signer: key.Signer, Verifier: key.Verifier, MinFree: int64(c.Journal.MinFree), MaxAhead: c.Journal.MaxAhead, Logger: logger, Pending: pending,
	})
	if err != nil {
		return nil, key, err
	}
	if err := files.HandOver(c.DataDir, archive.StoreFile, archive.LogKeyFile); err != nil {
		return nil, key, errors.Join(err, store.Close())
	}
	return store, key, nil
}

// openLogKey reads log.key, or makes it where there is no journal yet. A journal without its key is an error: with
// a new key, its old checkpoints could not be told from forged ones.
func openLogKey(c *config.Config) (appliance.LogKey, error) {
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newLogKey(c, path)
	}
	if err != nil {
		return appliance.LogKey{}, fmt.Errorf("log key: %w", err)
	}
	key, err := appliance.ParseLogKey(string(secret))
	if err != nil {
		return appliance.LogKey{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func newLogKey(c *config.Config, path string) (appliance.LogKey, error) {
	journal := filepath.Join(c.DataDir, archive.StoreFile)
	if _, err := os.Stat(journal); err == nil {
		return appliance.LogKey{}, fmt.Errorf("%s is missing, but there is a journal %s that it signs: restore it from a backup", path, journal)
	}
	origin, err := logOrigin(c)
	if err != nil {
		return appliance.LogKey{}, err
	}
	key, secret, err := appliance.NewLogKey(origin)
	if err != nil {
		return appliance.LogKey{}, fmt.Errorf("journal.origin: %w", err)
	}
	return key, files.Write(path, []byte(secret+"\n"), 0o600)
}

// logOrigin is journal.origin, else a name after this host.
func logOrigin(c *config.Config) (string, error) {
	if c.Journal.Origin != "" {
		return c.Journal.Origin, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("journal.origin is not set, and the host has no name: %w", err)
	}
	return host + "/attestd", nil
}
