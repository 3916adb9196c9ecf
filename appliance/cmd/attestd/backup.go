package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/bolt"
)

func newBackup(a *app) *cobra.Command {
	b := backup{app: a}
	cmd := &cobra.Command{
		Use:   "backup FILE|FOLDER",
		Short: "Copy API keys and journal, consistent while the daemon serves",
		Long: `Copy API keys and journal into one file of mode 0600, consistent as of one moment, while the daemon serves.
The file is read back and audited before it gets its name: each record's signature, the tree, the checkpoint. In a
FOLDER, the name is made of the time, and --keep removes the oldest of such names.

The log key is in the file only if it can be encrypted (age): to the --recipient, whose identity is kept on another
machine, or by the passphrase in --passphrase-file. backup.recipient and backup.passphrase_file are the defaults. Without
them the log key is left out, and what is restored without data_dir goes on as another log, with a new log key.

The file is a tar archive compressed by zstd: log.key.age, manifest.json and attestd.db. Apart from the log key it is as
secret as data_dir: it says who was attested to whom. It does NOT hold the attestor key, which cannot leave the HSM, nor
the configuration and the PIN: back up the HSM by its own means (of SoftHSM, the folder of its tokens).`,
		Example: `  attestd backup /var/backups/attestd --keep 14
  attestd backup before-upgrade.tar.zst
  attestd backup /var/backups/attestd --recipient age1…
  zstd -dc before-upgrade.tar.zst | tar -xO manifest.json`,
		Args: oneArg("file or folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if b.keep < 0 {
				return usagef(cmd, "--keep must not be negative")
			}
			return b.run(cmd, args[0])
		},
	}
	cmd.Flags().IntVar(&b.keep, "keep", 0, "with a FOLDER: keep this many backups, and remove older ones; 0 keeps all")
	cmd.Flags().StringVar(&b.recipient, "recipient", "", "recipient of age, age1…, to whom the log key is encrypted (default: backup.recipient)")
	cmd.Flags().StringVar(&b.passphraseFile, "passphrase-file", "", "file with the passphrase by which the log key is encrypted; - for standard input (default: backup.passphrase_file)")
	cmd.Flags().BoolVar(&b.quick, "quick", false, "check the copy's form and checkpoint only, not each record")
	return cmd
}

// backup is one run of the command.
type backup struct {
	*app
	keep                      int
	quick                     bool
	recipient, passphraseFile string
}

func (b backup) run(cmd *cobra.Command, target string) error {
	c, err := b.config(nil)
	if err != nil {
		return err
	}
	isFolder := false
	if stat, err := os.Stat(target); err == nil && stat.IsDir() {
		isFolder = true
	} else if err == nil {
		return fmt.Errorf("backup %s: exists already, and is not replaced", target)
	}
	if b.keep > 0 && !isFolder {
		return usagef(cmd, "--keep goes with a folder, and %s is none", target)
	}
	name := target
	if isFolder {
		name = archive.FreeName(target, time.Now())
	}
	if folder := filepath.Dir(name); !files.Exists(folder) {
		return fmt.Errorf("backup %s: no such file or directory as %s: mkdir -m 0700 -p %s", target, folder, text.ShellWord(folder))
	}
	daemons, err := service.UserOf(c.DataDir)
	if err != nil {
		return err
	}
	to, err := b.sealingTo(cmd, c)
	if err != nil {
		return err
	}
	return daemons.In(filepath.Dir(name)).Do(func() error { return b.make(cmd.Context(), c, name, isFolder, to) })
}

// sealingTo returns the recipient of the backup's log key. If it is nil, the backup has no log key.
func (b backup) sealingTo(cmd *cobra.Command, c *config.Config) (age.Recipient, error) {
	recipient, passphraseFile := b.recipient, b.passphraseFile
	if recipient != "" && passphraseFile != "" {
		return nil, usagef(cmd, "give --recipient or --passphrase-file, not both")
	}
	if recipient == "" && passphraseFile == "" {
		recipient, passphraseFile = c.Backup.Recipient, c.Backup.PassphraseFile
	}
	switch {
	case recipient != "":
		to, err := archive.ParseRecipient(recipient)
		if err != nil {
			return nil, fmt.Errorf("--recipient: %w", err)
		}
		return to, nil
	case passphraseFile != "":
		passphrase, err := b.backupPassphrase(passphraseFile)
		if err != nil {
			return nil, err
		}
		return archive.PassphraseRecipient(passphrase)
	}
	return nil, nil
}

// backupPassphrase reads the passphrase of backups from a file.
func (a *app) backupPassphrase(file string) ([]byte, error) {
	passphrase, err := a.readPIN(file)
	if err == nil && len(passphrase) == 0 {
		err = fmt.Errorf("%s is empty", file)
	}
	if err != nil {
		return nil, fmt.Errorf("passphrase of backups: %w", err)
	}
	return passphrase, nil
}

// make writes the backup. If the folder belongs to the daemon's user, root writes it as that user, so that a link
// planted there gains nothing.
func (b backup) make(ctx context.Context, c *config.Config, name string, inFolder bool, to age.Recipient) error {
	update, end := b.progress("check", unitRecords)
	take := func(w io.Writer) error { return b.take(ctx, c, w) }
	manifest, size, err := archive.Make(ctx, name, take, archive.Sealing{Dir: c.DataDir, To: to}, archive.AuditOptions{Quick: b.quick, Progress: update})
	end()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		folder := text.ShellWord(filepath.Dir(name))
		err = fmt.Errorf("%w: make room on the disk of %s (df -h %s), or name a file on another disk; the check needs as much again as the journal", err, folder, folder)
	}
	if err != nil {
		return interrupted(ctx, fmt.Errorf("backup %s: %w", name, err), "no backup was made")
	}
	var pruned archive.Pruned
	if inFolder {
		if pruned, err = archive.Prune(name, b.keep); err != nil {
			return fmt.Errorf("backup %s is made, but old ones stay: %w", name, err)
		}
	}
	for _, f := range pruned.Future {
		b.say("%s: its name is of a time to come, so the clock was wrong then or is now. It is kept, and not counted: look at the clock, then rename or remove it.", f)
	}
	return b.print(struct {
		File string `json:"file"`
		Size int64  `json:"size"`
		archive.Manifest
		HasLogKey bool     `json:"hasLogKey"` // the log key is encrypted
		Removed   []string `json:"removed,omitempty"`
		Future    []string `json:"future,omitempty"`
	}{name, size, manifest, to != nil, pruned.Removed, pruned.Future}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d records, %s, checked.\n", name, manifest.Records, config.RoundedSize(size))
		if to == nil {
			fmt.Fprintln(w, "It leaves the log key out: restored without data_dir, the journal goes on as another log. Set backup.recipient to have the key in it, encrypted.")
		}
		for _, r := range pruned.Removed {
			fmt.Fprintf(w, "%s: removed, for %d newer ones are there.\n", r, b.keep)
		}
	})
}

// take writes the archive. A running daemon makes it; otherwise this command does.
func (b backup) take(ctx context.Context, c *config.Config, w io.Writer) error {
	running := client.NewAdmin(c.Admin.Socket)
	err := running.Backup(ctx, w)
	if !errors.Is(err, client.ErrNotRunning) {
		return errors.Join(err, running.Close())
	}
	if !daemon.StoreExists(c) {
		if err := daemon.RequireSetup(&b.source, c); err != nil {
			return err
		}
	}
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return err
	}
	// The event precedes the copy, so that the copy has it. A journal that accepts no more events is backed up, too.
	if daemon.StoreExists(c) {
		if err := daemon.RecordEvent(ctx, c, appliance.Event{Kind: appliance.EventBackup, By: operator()}); err != nil {
			b.say("The journal does not take the event of this backup: %s", err)
		}
	}
	return owner.Do(func() error { return copyStore(ctx, c, w) })
}

// copyStore writes the archive of a store that no daemon on this machine uses.
func copyStore(ctx context.Context, c *config.Config, w io.Writer) error {
	var store *daemon.Store
	err := archive.Settle(c.DataDir)
	if err == nil {
		store, err = daemon.ReadStore(c)
	}
	if errors.Is(err, bolt.ErrInUse) {
		return fmt.Errorf("%w, and it does not answer on the admin socket %s", err, c.Admin.Socket)
	}
	if err != nil {
		return err
	}
	return errors.Join(store.Backup(ctx, w, version()), store.Close())
}
