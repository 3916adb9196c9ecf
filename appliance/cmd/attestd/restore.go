package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

func newRestore(a *app) *cobra.Command {
	r := restore{app: a}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore API keys and journal from a backup",
		Long: `Restore the API keys and the journal of a backup, while the daemon is stopped. The backup is audited first. If
there are keys or a journal already, the command does nothing without --force, which moves them aside in
data_dir and never removes them.

If the present journal has records that the backup lacks, it is newer than the backup, or a different one:
restoring would remove issued attestations from the journal. This is refused unless you give --discard-newer.

With store.url, the backup is copied into that database, which must be empty: its owner creates one, then runs
'attestd store init'. A file's backup can be restored into a database, and a database's backup into a file.

The journal continues as a new log, with a new name and key, unless the high-water mark in data_dir, or
--published, proves that the backup has all published records. The new log's first leaf names the old log, so
the old name never stands for two histories. The old log key stays in data_dir as a retired key.

The log key in data_dir is used if the backup belongs to its log. Otherwise the backup's log key is decrypted
with --identity, the age-keygen file of the recipient, or with --passphrase-file. A backup without the log key
continues as a new log with a new log key; so does any backup with --new-log-key, for example if the identity
is lost.`,
		Example: "  systemctl stop attestd\n  attestd restore /var/backups/attestd/attestd-20261101T023000Z.tar.zst\n  systemctl start attestd\n" +
			"  attestd restore moved.tar.zst --published newest.checkpoint --identity backup-identity.txt",
		Args: oneArg("backup file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.discardNewer && !r.force {
				return usagef(cmd, "--discard-newer needs --force")
			}
			if r.identity != "" && r.passphraseFile != "" {
				return usagef(cmd, "give --identity or --passphrase-file, not both")
			}
			return r.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "move the existing files aside")
	cmd.Flags().BoolVar(&r.discardNewer, "discard-newer", false,
		"with --force: also if the existing journal has records that the backup lacks")
	cmd.Flags().StringVar(&r.published, "published", "",
		"file with the newest published checkpoint, if data_dir has no high-water mark; if the backup has all of its records, the log continues under its name")
	cmd.Flags().StringVar(&r.identity, "identity", "", "identity file of age-keygen to decrypt the backup's log key")
	cmd.Flags().StringVar(&r.passphraseFile, "passphrase-file", "",
		"file with the passphrase to decrypt the backup's log key; - for standard input (default: backup.passphrase_file)")
	cmd.Flags().BoolVar(&r.newLogKey, "new-log-key", false, "continue as a new log with a new log key")
	return cmd
}

// restore is one run of the command.
type restore struct {
	*app
	force, discardNewer, newLogKey      bool
	published, identity, passphraseFile string
}

func (r restore) run(ctx context.Context, name string) error {
	c, err := r.config(nil)
	if err != nil {
		return err
	}
	if err := refuseWhileRunning(ctx, c, "restore"); err != nil {
		return err
	}
	var published []byte
	if r.published != "" {
		if published, err = r.readCheckpoint("--published", r.published); err != nil {
			return err
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer f.Close()
	auditing := func() (func(done, total int64), func()) { return r.progress("check", unitRecords) }
	options := archive.RestoreOptions{
		Force: r.force, DiscardNewer: r.discardNewer, Published: published, By: operator(), Auditing: auditing,
		NewLogKey: r.newLogKey,
	}
	if options.Identities, err = r.identities(c); err != nil {
		return err
	}
	log, err := daemon.OpenLogHSM(c, nil, nil)
	if err != nil {
		return err
	}
	options.HSM = log.Signer()
	defer func() { _ = log.Close() }() // if it fails, the module's process was killed
	var done archive.Restored
	if c.Store.URL != "" {
		done, err = daemon.RestoreDatabase(ctx, c, f, options)
	} else {
		done, err = archive.Restore(ctx, f, c.DataDir, options)
	}
	if err != nil {
		return interrupted(ctx, r.explain(name, err), "not restored; the existing files are unchanged")
	}
	if err := recordRestored(ctx, c, done); err != nil {
		r.say("The backup is restored, but the journal cannot record the event: %s", err)
	}
	if done.Lost != "" {
		r.say("%s; they remain in the files moved aside.", done.Lost)
	}
	return r.report(done)
}

func (r restore) report(done archive.Restored) error {
	return r.print(struct {
		OK bool `json:"ok"`
		archive.Restored
	}{true, done}, func(w io.Writer) {
		fmt.Fprintf(w, "%s records as of %s are restored, each with a valid signature.\n", text.Count(done.Records),
			text.Time(done.Time))
		for _, path := range done.MovedAside {
			fmt.Fprintf(w, "The old files are now %s.\n", path)
		}
		if l := done.Log; l != nil {
			fmt.Fprintf(w, "The journal continues as a new log, because %s:\n", l.Why)
			printLog(w, l.Origin, l.VerifierKey)
		}
		fmt.Fprintln(w,
			"The backup lacks everything after that time, such as issued attestations and revocations of API keys.")
	})
}

// identities returns the age identities that decrypt the backup's log key.
func (r restore) identities(c *config.Config) ([]age.Identity, error) {
	file := r.passphraseFile
	switch {
	case r.newLogKey:
		return nil, nil
	case r.identity != "":
		all, err := archive.ReadIdentities(r.identity)
		if err != nil {
			return nil, fmt.Errorf("--identity: %w", err)
		}
		return all, nil
	case file == "":
		if file = c.Backup.PassphraseFile; file == "" || !files.Exists(file) {
			return nil, nil
		}
	}
	passphrase, err := r.backupPassphrase(file)
	if err != nil {
		return nil, err
	}
	by, err := archive.PassphraseIdentity(passphrase)
	return []age.Identity{by}, err
}

// recordRestored writes an event to the journal. Its details are the time and the number of records of the backup.
func recordRestored(ctx context.Context, c *config.Config, done archive.Restored) error {
	return daemon.RecordEvent(ctx, c,
		journal.Event{Kind: journal.EventRestored, By: operator(), Details: map[string]string{
			"backup": done.Time.UTC().Format(time.RFC3339), "records": strconv.FormatInt(done.Records, 10),
		}})
}

// explain adds the flags that allow a refused restore.
func (r restore) explain(name string, err error) error {
	inPlace, ok := errors.AsType[*archive.InPlaceError](err)
	switch {
	case errors.Is(err, archive.ErrSealed):
		return fmt.Errorf(
			"restore %s: %w: give --identity FILE or --passphrase-file FILE; or --new-log-key, to continue as a new log", name, err)
	case !ok:
		return fmt.Errorf("restore %s: %w", name, err)
	case !r.force && inPlace.Lost == "":
		return fmt.Errorf("restore: %w; to move it aside, give --force", err)
	case !r.force:
		return fmt.Errorf("restore: %w; to move it aside nevertheless, give --force --discard-newer", err)
	}
	return fmt.Errorf("restore: %s. After the restore, no journal would have these issued attestations, and "+
		"a client's repeated request would be signed again; if this is intended, give --discard-newer", inPlace.Lost)
}

// refuseWhileRunning returns an error unless the admin socket shows that no daemon runs.
func refuseWhileRunning(ctx context.Context, c *config.Config, what string) error {
	running := client.NewAdmin(c.Admin.Socket)
	defer func() { _ = running.Close() }()
	_, err := running.Status(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: cannot tell whether attestd is running: %w", what, err)
	}
	return fmt.Errorf("%s: attestd is running; stop it first: systemctl stop attestd", what)
}
