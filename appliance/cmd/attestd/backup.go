package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
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
		name = filepath.Join(target, archive.Name(time.Now()))
	}
	update, end := b.progress("check", "records")
	take := func(w io.Writer) error { return takeBackup(cmd.Context(), c, w) }
	manifest, size, err := archive.Make(cmd.Context(), name, take, archive.AuditOptions{Quick: b.quick, Progress: update})
	end()
	if err != nil {
		return fmt.Errorf("backup %s: %w", name, err)
	}
	var removed []string
	if isFolder && b.keep > 0 {
		if removed, err = archive.Prune(target, b.keep); err != nil {
			return fmt.Errorf("backup %s is made, but old ones stay: %w", name, err)
		}
	}
	return b.print(struct {
		File string `json:"file"`
		Size int64  `json:"size"`
		archive.Manifest
		Removed []string `json:"removed,omitempty"`
	}{name, size, manifest, removed}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d records, %s, checked.\n", name, manifest.Records, config.RoundedSize(size))
		for _, r := range removed {
			fmt.Fprintf(w, "%s: removed, for %d newer ones are there.\n", r, b.keep)
		}
	})
}

// takeBackup writes the archive: the daemon's while it runs, else one of the files.
func takeBackup(ctx context.Context, c *config.Config, w io.Writer) error {
	daemon := client.NewAdmin(c.Admin.Socket)
	err := daemon.Backup(ctx, w)
	if !errors.Is(err, client.ErrNotRunning) {
		return errors.Join(err, daemon.Close())
	}
	store, _, err := archive.OpenStore(c.DataDir)
	if errors.Is(err, bolt.ErrInUse) {
		return fmt.Errorf("%w, and it does not answer on the admin socket %s", err, c.Admin.Socket)
	}
	if err != nil {
		return err
	}
	return errors.Join(archive.Write(w, store, filepath.Join(c.DataDir, archive.LogKeyFile), version(), time.Now()), store.Close())
}
