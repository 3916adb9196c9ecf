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
		Long: `Copy API keys, journal and log key into one file of mode 0600, consistent as of one moment, while the daemon serves.
The file is read back and audited before it gets its name: each record's signature, the tree, the checkpoint. In a
FOLDER, the name is made of the time, and --keep removes the oldest of such names.

The file is a tar archive compressed by zstd: manifest.json, log.key and attestd.db. It is as secret as data_dir. It does
NOT hold the attestor key, which cannot leave the HSM, nor the configuration and the PIN: back up the HSM by its own
means (of SoftHSM, the folder of its tokens).`,
		Example: `  attestd backup /var/backups/attestd --keep 14
  attestd backup before-upgrade.tar.zst
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
	cmd.Flags().BoolVar(&b.quick, "quick", false, "check the copy's form and checkpoint only, not each record")
	return cmd
}

// backup is one run of the command.
type backup struct {
	*app
	keep  int
	quick bool
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
	return daemons.In(filepath.Dir(name)).Do(func() error { return b.make(cmd.Context(), c, name, isFolder) })
}

// make makes the backup. In a folder of the daemon's user root does it as that, whatever was planted there.
func (b backup) make(ctx context.Context, c *config.Config, name string, inFolder bool) error {
	update, end := b.progress("check", unitRecords)
	take := func(w io.Writer) error { return b.take(ctx, c, w) }
	manifest, size, err := archive.Make(ctx, name, take, archive.AuditOptions{Quick: b.quick, Progress: update})
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
		Removed []string `json:"removed,omitempty"`
		Future  []string `json:"future,omitempty"`
	}{name, size, manifest, pruned.Removed, pruned.Future}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d records, %s, checked.\n", name, manifest.Records, config.RoundedSize(size))
		for _, r := range pruned.Removed {
			fmt.Fprintf(w, "%s: removed, for %d newer ones are there.\n", r, b.keep)
		}
	})
}

// take writes the archive: the daemon's while it runs, else one that this command makes.
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
	// Before the copy is made, so that it is in it. One is made of a journal that takes nothing any more, too.
	if daemon.StoreExists(c) {
		if err := daemon.RecordEvent(ctx, c, appliance.Event{Kind: appliance.EventBackup, By: operator()}); err != nil {
			b.say("The journal does not take the event of this backup: %s", err)
		}
	}
	return owner.Do(func() error { return copyStore(ctx, c, w) })
}

// copyStore writes the archive of the store, which no daemon of this machine uses.
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
	return errors.Join(store.Backup(ctx, w, c.DataDir, version()), store.Close())
}
