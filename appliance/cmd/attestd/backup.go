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
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/bolt"
)

func newBackup(a *app) *cobra.Command {
	b := backup{app: a}
	cmd := &cobra.Command{
		Use:   "backup FILE|FOLDER",
		Short: "Back up API keys and journal, also while the daemon runs",
		Long: `Write API keys and journal into one file of mode 0600, consistent as of one moment, while the daemon serves.
The file is read back before it gets its name. Its records are exactly those of the signed checkpoint, and
its events, API keys and pages are in order. --audit also verifies each record, as 'attestd log verify' and
'attestd restore' do; that takes several times as long. In a FOLDER, the name is the time of the backup, and
--keep removes the oldest backups.

The file includes the log key only if it can be encrypted (age): to --recipient, whose identity is kept on
another machine, or with the passphrase in --passphrase-file. The defaults are backup.recipient and
backup.passphrase_file. Without them the log key is omitted; if such a backup is restored without data_dir,
the journal continues as a new log with a new log key.

The file is a tar archive compressed with zstd: log.key.age, manifest.json and attestd.db. Keep it as secret
as data_dir: it shows which address was attested to which beneficiary. It does NOT include the attestor key,
which cannot leave the HSM, nor the configuration and the PIN: back up the HSM with its vendor's tools (for
SoftHSM, the folder of its tokens).`,
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
	cmd.Flags().IntVar(&b.keep, "keep", 0,
		"with a FOLDER: number of backups to keep; older ones are removed; 0 keeps all")
	cmd.Flags().StringVar(&b.recipient, "recipient", "",
		"age recipient of the encrypted log key, age1… (default: backup.recipient)")
	cmd.Flags().StringVar(&b.passphraseFile, "passphrase-file", "",
		"file with the passphrase that encrypts the log key; - for standard input (default: backup.passphrase_file)")
	cmd.Flags().BoolVar(&b.audit, "audit", false, "also verify form, digest and signature of each record")
	return cmd
}

// backup is one run of the command.
type backup struct {
	*app
	keep                      int
	audit                     bool
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
		return fmt.Errorf("backup %s: the file exists, and is not replaced; give another name", target)
	}
	if b.keep > 0 && !isFolder {
		return usagef(cmd, "--keep needs a folder, and %s is not one", target)
	}
	name := target
	if isFolder {
		name = archive.FreeName(target, time.Now())
	}
	if folder := filepath.Dir(name); !files.Exists(folder) {
		return fmt.Errorf("backup %s: no such file or directory as %s: mkdir -m 0700 -p %s", target, folder,
			text.ShellWord(folder))
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
		return archive.PassphraseRecipient(passphrase, b.passphraseWork)
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
	manifest, size, err := archive.Make(ctx, name, take, archive.Sealing{Dir: c.DataDir, To: to},
		archive.AuditOptions{SkipRecords: !b.audit, Progress: update})
	end()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		folder := text.ShellWord(filepath.Dir(name))
		err = fmt.Errorf(
			"%w: free space on the disk of %s (df -h %s), or give a file on another disk; the backup and its check need twice the size of the journal", err, folder, folder)
	}
	if err != nil {
		return interrupted(ctx, fmt.Errorf("backup %s: %w", name, err), "no backup was made")
	}
	var pruned archive.Pruned
	if inFolder {
		if pruned, err = archive.Prune(name, b.keep); err != nil {
			return fmt.Errorf("backup %s is complete, but cannot remove old backups: %w", name, err)
		}
	}
	for _, f := range pruned.Future {
		b.say(
			"%s: the time in its name is in the future, so the clock was or is wrong. It is kept and not counted: check the clock, then rename or remove the file.", f)
	}
	return b.print(struct {
		File string `json:"file"`
		Size int64  `json:"size"`
		archive.Manifest
		HasLogKey bool     `json:"hasLogKey"` // the log key is encrypted
		Removed   []string `json:"removed,omitempty"`
		Future    []string `json:"future,omitempty"`
	}{name, size, manifest, to != nil, pruned.Removed, pruned.Future}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s records, %s, verified.\n", name, text.Count(manifest.Records), config.RoundedSize(size))
		if to == nil {
			fmt.Fprintln(w,
				"It does not include the log key: if it is restored without data_dir, the journal continues as a new log. To include the key, encrypted, set backup.recipient.")
		}
		for _, r := range pruned.Removed {
			fmt.Fprintf(w, "%s: removed; %d newer backups are kept.\n", r, b.keep)
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
		if err := daemon.RecordEvent(ctx, c, journal.Event{Kind: journal.EventBackup, By: operator()}); err != nil {
			b.say("Cannot record this backup in the journal: %s", err)
		}
	}
	return owner.Do(func() error { return copyStore(ctx, c, w) })
}

// copyStore writes the archive of a store that no daemon on this machine uses.
func copyStore(ctx context.Context, c *config.Config, w io.Writer) error {
	var store *daemon.Store
	err := archive.FlushLog(c.DataDir)
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
