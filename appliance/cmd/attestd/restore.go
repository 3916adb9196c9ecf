package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/store/bolt"
)

func newRestore(a *app) *cobra.Command {
	r := restore{app: a}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup's API keys and journal in place",
		Long: `Put the API keys, journal and log key of a backup in place, while the daemon is stopped. The backup is audited first.
Where there are keys or a journal already, nothing is done without --force, which moves them aside in data_dir
and never removes them.

A journal with records that the backup does not hold is newer than the backup, or another one: restoring would take
attestations out of the journal that were answered to clients. That is refused unless --discard-newer says so.`,
		Example: "  systemctl stop attestd\n  attestd restore /var/backups/attestd/attestd-20261101T023000Z.tar.zst\n  systemctl start attestd",
		Args:    oneArg("backup file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.discardNewer && !r.force {
				return usagef(cmd, "--discard-newer goes with --force")
			}
			return r.run(cmd.Context(), args[0])
		},
	}
	cmd.Flags().BoolVar(&r.force, "force", false, "move what is in place aside")
	cmd.Flags().BoolVar(&r.discardNewer, "discard-newer", false, "with --force: also where what is in place has records that the backup lacks")
	return cmd
}

// restore is one run of the command.
type restore struct {
	*app
	force, discardNewer bool
}

func (r restore) run(ctx context.Context, name string) (err error) {
	c, err := r.config(nil)
	if err != nil {
		return err
	}
	if err := refuseWhileRunning(ctx, c, "restore"); err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	scratch, err := os.MkdirTemp(c.DataDir, ".restore-*") // on the same file system, so that a rename will do
	if err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	manifest, err := readArchive(name, scratch)
	if err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if _, err := r.audit(ctx, scratch, manifest, nil); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if err := r.compare(ctx, c, scratch, manifest); err != nil {
		return err
	}
	aside, err := replaceFiles(c.DataDir, scratch, time.Now())
	if err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if err := r.confirm(ctx, c, manifest); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	return r.print(struct {
		OK bool `json:"ok"`
		manifestFile
		MovedAside []string `json:"movedAside,omitempty"`
	}{true, manifest, aside}, func(w io.Writer) {
		fmt.Fprintf(w, "%d records as of %s are in place, each signature good.\n", manifest.Records, formatTime(manifest.Time))
		for _, path := range aside {
			fmt.Fprintf(w, "What was there is now %s.\n", path)
		}
		fmt.Fprintln(w, "What happened after that time is not in it: attestations that were answered, and API keys that were revoked.")
	})
}

// audit shows how the audit gets on.
func (r restore) audit(ctx context.Context, dir string, m manifestFile, earlier []byte) (appliance.AuditReport, error) {
	update, end := r.progress("check", "records")
	defer end()
	return auditFolder(ctx, dir, m, auditOptions{earlier: earlier, progress: update})
}

// refuseWhileRunning returns an error unless no daemon uses the files.
func refuseWhileRunning(ctx context.Context, c *config.Config, what string) error {
	daemon := client.NewAdmin(c.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	_, err := daemon.Status(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: it is not known whether attestd runs: %w", what, err)
	}
	return fmt.Errorf("%s: attestd is running; stop it first: systemctl stop attestd", what)
}

// compare decides whether what is in place may go.
func (r restore) compare(ctx context.Context, c *config.Config, scratch string, m manifestFile) error {
	if !exists(filepath.Join(c.DataDir, storeFile)) && !exists(filepath.Join(c.DataDir, logKeyFile)) {
		return nil
	}
	loses, err := r.loses(ctx, c, scratch, m)
	switch {
	case err != nil:
		return err
	case !r.force && loses == "":
		return fmt.Errorf("restore: there is a journal in %s already, and the backup holds all of its records; --force moves it aside", c.DataDir)
	case !r.force:
		return fmt.Errorf("restore: there is a journal in %s already, and %s; --force --discard-newer moves it aside all the same", c.DataDir, loses)
	case loses != "" && !r.discardNewer:
		return fmt.Errorf("restore: %s. With the backup in place, attestations that were answered to clients would be in no journal, and "+
			"a client's repeated request would be signed again; --discard-newer says that this is meant", loses)
	case loses != "":
		r.say("%s; they stay in what is moved aside.", loses)
	}
	return nil
}

// loses says which records of the journal in place the backup lacks; "" where it has all.
func (r restore) loses(ctx context.Context, c *config.Config, scratch string, m manifestFile) (string, error) {
	in, err := readHead(ctx, c.DataDir)
	if errors.Is(err, bolt.ErrInUse) {
		return "", fmt.Errorf("restore: %w", err)
	}
	if err != nil {
		return fmt.Sprintf("what it holds cannot be read (%v)", err), nil
	}
	if in.tree.N == 0 {
		return "", nil
	}
	if in.tree.N > m.Records {
		return fmt.Sprintf("the journal in place has %d records, the backup of %s has %d", in.tree.N, formatTime(m.Time), m.Records), nil
	}
	// The audit with an earlier checkpoint proves that the backup goes on where the journal in place ends.
	report, err := r.audit(ctx, scratch, m, in.checkpoint)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && report.OK():
		return "", nil
	}
	// An error, too, says that the checkpoint is not of this log: the backup itself has passed its audit.
	return fmt.Sprintf("the backup does not go on from the %d records of the journal in place: it is another journal, or one that parted from it", in.tree.N), nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// replaceFiles puts what is in scratch into dir. What is there keeps a second name, so that at no moment, not even in a
// power cut, a daemon that starts finds nothing and begins a new journal; and with one file new and the other old it
// refuses to start.
func replaceFiles(dir, scratch string, now time.Time) (aside []string, err error) {
	if err := giveAway(dir, scratch); err != nil {
		return nil, err
	}
	suffix := freeSuffix(dir, ".before-restore-"+now.UTC().Format("20060102T150405Z"))
	for _, name := range []string{storeFile, logKeyFile} {
		from := filepath.Join(dir, name)
		if !exists(from) {
			continue
		}
		if err := os.Link(from, from+suffix); err != nil {
			return aside, err
		}
		aside = append(aside, from+suffix)
	}
	for _, name := range []string{storeFile, logKeyFile} {
		if err := os.Rename(filepath.Join(scratch, name), filepath.Join(dir, name)); err != nil {
			return aside, err
		}
	}
	return aside, syncFolder(dir)
}

// freeSuffix returns the suffix, with a number where names with it are taken.
func freeSuffix(dir, suffix string) string {
	free := suffix
	for n := 2; exists(filepath.Join(dir, storeFile+free)) || exists(filepath.Join(dir, logKeyFile+free)); n++ {
		free = fmt.Sprintf("%s-%d", suffix, n)
	}
	return free
}

// giveAway is handOver to dir's owner, for files that are in a folder below it.
func giveAway(dir, scratch string) error {
	below, err := filepath.Rel(dir, scratch)
	if err != nil {
		return err
	}
	return handOver(dir, filepath.Join(below, storeFile), filepath.Join(below, logKeyFile))
}

// confirm opens what is in place now.
func (r restore) confirm(ctx context.Context, c *config.Config, m manifestFile) error {
	now, err := readHead(ctx, c.DataDir)
	if err == nil && string(now.checkpoint) != m.Checkpoint {
		err = errors.New("what is in place is not what the backup holds")
	}
	return err
}
