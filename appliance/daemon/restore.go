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

// RestoreDatabase audits a backup and copies its content into the database of store.url, which must be empty. It moves
// nothing aside: the database's owner creates an empty one. It puts the log key into data_dir, unless it is there. As
// with a file, the journal is continued as another log unless it is proven that no later record was published. Force
// and DiscardNewer have no effect.
func RestoreDatabase(ctx context.Context, c *config.Config, backup io.Reader,
	o archive.RestoreOptions) (done archive.Restored, err error) {
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
	if err := restoreLogKey(c, scratch, done.VerifierKey); err != nil { // a new key, which a kill must not lose
		return done, err
	}
	if _, err = CopyStore(ctx, at(c, "bolt:"+scratch), "bolt:"+scratch, string(c.Store.URL),
		func(int64, int64) {}); err != nil {
		if !isPlaced { // its log exists nowhere
			err = errors.Join(err, os.Remove(filepath.Join(c.DataDir, archive.LogKeyFile)))
		}
		return done, err
	}
	done.Log = log
	_, err = asOwner(c, func() (*Store, error) { return nil, followCopied(c, scratch, log != nil, checkpoint) })
	return done, err
}

// followCopied sets log key and mark to those of the copied journal. If a kill leaves the old key, the next start
// derives the new one from it.
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

// restoreLogKey puts the log key in scratch into data_dir, unless data_dir has one. That must be the key of the backup,
// which verifierKey names.
func restoreLogKey(c *config.Config, scratch, verifierKey string) error {
	path := filepath.Join(c.DataDir, archive.LogKeyFile)
	there, err := archive.ReadLogKey(c.DataDir)
	switch {
	case err == nil && there.VerifierText != verifierKey:
		return fmt.Errorf("%s belongs to the log %s, but the backup to %s: if the backup is right, move the file away",
			path, there.VerifierText, verifierKey)
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
