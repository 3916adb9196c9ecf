package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
)

// RestoreDatabase audits a backup and copies what is in it into the database that store.url names, which must be empty. Nothing is moved
// aside: an empty database is its owner's to make. The log key is put into data_dir, unless it is there.
func RestoreDatabase(ctx context.Context, c *config.Config, backup io.Reader, auditing func() (progress func(done, total int64), ended func())) (m archive.Manifest, err error) {
	var scratch string
	_, err = asOwner(c, func() (*Store, error) {
		if scratch, err = os.MkdirTemp(c.DataDir, ".restore-*"); err != nil {
			return nil, fmt.Errorf("data_dir: %w", err)
		}
		m, err = archive.Read(backup, scratch)
		return nil, err
	})
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err != nil {
		return m, err
	}
	progress, ended := auditing()
	_, err = archive.Audit(ctx, scratch, m, archive.AuditOptions{Progress: progress})
	ended()
	if err != nil {
		return m, err
	}
	if err := restoreLogKey(c, scratch); err != nil {
		return m, err
	}
	_, err = CopyStore(ctx, at(c, "bolt:"+scratch), "bolt:"+scratch, string(c.Store.URL), func(int64, int64) {})
	return m, err
}

// restoreLogKey puts the log key of a backup into data_dir, unless that has it. Another one stays.
func restoreLogKey(c *config.Config, scratch string) error {
	key, err := archive.ReadLogKey(scratch)
	if err != nil {
		return err
	}
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	there, err := archive.ReadLogKey(c.DataDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		secret, err := os.ReadFile(filepath.Join(scratch, archive.LogKeyFile))
		if err != nil {
			return err
		}
		return errors.Join(files.Write(path, secret, 0o600), files.HandOver(c.DataDir, archive.LogKeyFile))
	case err != nil:
		return err
	case there.VerifierText != key.VerifierText:
		return fmt.Errorf("%s is of the log %s, the backup of %s: move it away, where the backup is meant", path, there.Verifier.Name(), key.Verifier.Name())
	}
	return nil
}
