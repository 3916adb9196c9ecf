package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/highwater"
)

// RestoreDatabase audits a backup and copies what is in it into the database that store.url names, which must be empty. Nothing is moved
// aside: an empty database is its owner's to make. The log key is put into data_dir, unless it is there. As with a file, the journal goes
// on as another log unless it is proven that nothing was published beyond it. Of the options, those are used that concern this.
func RestoreDatabase(ctx context.Context, c *config.Config, backup io.Reader, o archive.RestoreOptions) (done archive.Restored, err error) {
	var scratch string
	_, err = asOwner(c, func() (*Store, error) {
		if scratch, err = os.MkdirTemp(c.DataDir, ".restore-*"); err != nil {
			return nil, fmt.Errorf("data_dir: %w", err)
		}
		done.Manifest, err = archive.Read(backup, scratch)
		return nil, err
	})
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err != nil {
		return done, err
	}
	progress, ended := o.Auditing()
	_, err = archive.Audit(ctx, scratch, done.Manifest, archive.AuditOptions{Progress: progress})
	ended()
	if err != nil {
		return done, err
	}
	if err := o.Unseal(c.DataDir, scratch, done.Manifest); err != nil {
		return done, err
	}
	if err := restoreLogKey(c, scratch, done.VerifierKey); err != nil {
		return done, err
	}
	checkpoint, log, err := o.Identify(ctx, c.DataDir, scratch, done.Manifest)
	if err != nil {
		return done, err
	}
	isPlaced := files.Exists(filepath.Join(c.DataDir, archive.LogKeyFile))
	if err := restoreLogKey(c, scratch, done.VerifierKey); err != nil { // a new one, which a kill must not lose
		return done, err
	}
	if _, err = CopyStore(ctx, at(c, "bolt:"+scratch), "bolt:"+scratch, string(c.Store.URL), func(int64, int64) {}); err != nil {
		if !isPlaced { // it is of a log that is nowhere
			err = errors.Join(err, os.Remove(filepath.Join(c.DataDir, archive.LogKeyFile)))
		}
		return done, err
	}
	done.Log = log
	_, err = asOwner(c, func() (*Store, error) { return nil, followCopied(c, scratch, log != nil, checkpoint) })
	return done, err
}

// followCopied brings log key and mark to what was copied. Where a kill leaves the old key, the next start follows: it leads to the new one.
func followCopied(c *config.Config, scratch string, isNew bool, checkpoint []byte) error {
	if isNew {
		old, err := archive.ReadLogKey(c.DataDir)
		if err != nil {
			return err
		}
		if next, err := archive.ReadLogKey(scratch); err == nil && next.VerifierText == old.VerifierText {
			return highwater.Write(filepath.Join(c.DataDir, highwater.FileName), checkpoint)
		}
		secret, err := os.ReadFile(filepath.Join(scratch, archive.LogKeyFile))
		if err == nil {
			err = archive.ReplaceLogKey(c.DataDir, old, strings.TrimSpace(string(secret)))
		}
		if err != nil {
			return err
		}
	}
	return highwater.Write(filepath.Join(c.DataDir, highwater.FileName), checkpoint)
}

// restoreLogKey puts the log key in scratch into data_dir, unless that has one. It must be the one of the backup, whose verifier key is given.
func restoreLogKey(c *config.Config, scratch, verifierKey string) error {
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	there, err := archive.ReadLogKey(c.DataDir)
	switch {
	case err == nil && there.VerifierText != verifierKey:
		return fmt.Errorf("%s is of the log %s, the backup of %s: move it away, where the backup is meant", path, there.VerifierText, verifierKey)
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	secret, err := os.ReadFile(filepath.Join(scratch, archive.LogKeyFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(files.Write(path, secret, 0o600), files.HandOver(c.DataDir, archive.LogKeyFile))
}
