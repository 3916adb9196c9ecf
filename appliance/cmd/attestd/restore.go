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
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/text"
)

func newRestore(a *app) *cobra.Command {
	r := restore{app: a}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup's API keys and journal in place",
		Long: `Put the API keys and journal of a backup in place, while the daemon is stopped. The backup is audited first.
Where there are keys or a journal already, nothing is done without --force, which moves them aside in data_dir
and never removes them.

A journal with records that the backup does not hold is newer than the backup, or another one: restoring would take
attestations out of the journal that were answered to clients. That is refused unless --discard-newer says so.

With store.url, the backup is copied into that database, which must be empty: its owner makes one, and then 'attestd store
init'. A backup of a file restores into a database, and the other way round.

Unless it is proven that the backup holds all that was published, by the high-water mark in data_dir or by --published,
the journal goes on as another log, with a name and a key of its own, whose first leaf says from which: nothing signs a
second history under the old name. The old log's key stays in data_dir as a retired one.

The log key is the one in data_dir, if the backup is of its log. Else the backup's is decrypted by --identity, the file of
age-keygen to whose recipient it was encrypted, or by --passphrase-file. A backup without the log key goes on as another
log, with a new log key; so does any with --new-log-key, such as where the identity is lost.`,
		Example: "  systemctl stop attestd\n  attestd restore /var/backups/attestd/attestd-20261101T023000Z.tar.zst\n  systemctl start attestd\n" +
			"  attestd restore moved.tar.zst --published newest.checkpoint --identity backup-identity.txt",
		Args: oneArg("backup file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.discardNewer && !r.force {
				return usagef(cmd, "--discard-newer goes with --force")
			}
			if r.identity != "" && r.passphraseFile != "" {
				return usagef(cmd, "give --identity or --passphrase-file, not both")
			}
			return r.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "move what is in place aside")
	cmd.Flags().BoolVar(&r.discardNewer, "discard-newer", false, "with --force: also where what is in place has records that the backup lacks")
	cmd.Flags().StringVar(&r.published, "published", "", "a file with the newest checkpoint that was published, where data_dir has no high-water mark: a log whose backup holds all of it stays what it is")
	cmd.Flags().StringVar(&r.identity, "identity", "", "identity file of age-keygen that decrypts the backup's log key")
	cmd.Flags().StringVar(&r.passphraseFile, "passphrase-file", "", "file with the passphrase that decrypts the backup's log key; - for standard input (default: backup.passphrase_file)")
	cmd.Flags().BoolVar(&r.newLogKey, "new-log-key", false, "do without the log key: the journal goes on as another log, with a new one")
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
		Force: r.force, DiscardNewer: r.discardNewer, Published: published, By: operator(), Auditing: auditing, NewLogKey: r.newLogKey,
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
		return interrupted(ctx, r.explain(name, err), "nothing was restored, and what is in place is as it was")
	}
	if err := recordRestored(ctx, c, done); err != nil {
		r.say("It is restored, but the journal could not be told: %s", err)
	}
	if done.Lost != "" {
		r.say("%s; they stay in what is moved aside.", done.Lost)
	}
	return r.print(struct {
		OK bool `json:"ok"`
		archive.Restored
	}{true, done}, func(w io.Writer) {
		fmt.Fprintf(w, "%d records as of %s are in place, each signature good.\n", done.Records, text.Time(done.Time))
		for _, path := range done.MovedAside {
			fmt.Fprintf(w, "What was there is now %s.\n", path)
		}
		if l := done.Log; l != nil {
			fmt.Fprintf(w, "The log goes on as another one, for %s:\n", l.Why)
			printLog(w, l.Origin, l.VerifierKey)
		}
		fmt.Fprintln(w, "What happened after that time is not in it: attestations that were answered, and API keys that were revoked.")
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
	return daemon.RecordEvent(ctx, c, appliance.Event{Kind: appliance.EventRestored, By: operator(), Details: map[string]string{
		"backup": done.Time.UTC().Format(time.RFC3339), "records": strconv.FormatInt(done.Records, 10),
	}})
}

// explain adds the flags that allow a refused restore.
func (r restore) explain(name string, err error) error {
	inPlace, ok := errors.AsType[*archive.InPlaceError](err)
	switch {
	case errors.Is(err, archive.ErrSealed):
		return fmt.Errorf("restore %s: %w: give --identity FILE or --passphrase-file FILE; or --new-log-key, with which the journal goes on as another log", name, err)
	case !ok:
		return fmt.Errorf("restore %s: %w", name, err)
	case !r.force && inPlace.Lost == "":
		return fmt.Errorf("restore: %w; --force moves it aside", err)
	case !r.force:
		return fmt.Errorf("restore: %w; --force --discard-newer moves it aside all the same", err)
	}
	return fmt.Errorf("restore: %s. With the backup in place, attestations that were answered to clients would be in no journal, and "+
		"a client's repeated request would be signed again; --discard-newer says that this is meant", inPlace.Lost)
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
		return fmt.Errorf("%s: it is not known whether attestd runs: %w", what, err)
	}
	return fmt.Errorf("%s: attestd is running; stop it first: systemctl stop attestd", what)
}
