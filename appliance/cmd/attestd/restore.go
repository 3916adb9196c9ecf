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
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
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
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer f.Close()
	owner, err := service.UserOf(c.DataDir)
	if err != nil {
		return err
	}
	return owner.Do(func() error { return r.put(ctx, c, name, f) })
}

// put puts what is in a backup in place. Root does it as the owner of data_dir, in which anything may have been planted.
func (r restore) put(ctx context.Context, c *config.Config, name string, f io.Reader) (err error) {
	scratch, err := os.MkdirTemp(c.DataDir, ".restore-*") // on the same file system, so that a rename will do
	if err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	manifest, err := archive.Read(f, scratch)
	if err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if _, err := r.audit(ctx, scratch, manifest, nil); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if err := r.compare(ctx, c, scratch, manifest); err != nil {
		return err
	}
	aside, err := archive.Replace(c.DataDir, scratch, time.Now())
	if err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	if err := r.confirm(ctx, c, manifest); err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	return r.print(struct {
		OK bool `json:"ok"`
		archive.Manifest
		MovedAside []string `json:"movedAside,omitempty"`
	}{true, manifest, aside}, func(w io.Writer) {
		fmt.Fprintf(w, "%d records as of %s are in place, each signature good.\n", manifest.Records, text.Time(manifest.Time))
		for _, path := range aside {
			fmt.Fprintf(w, "What was there is now %s.\n", path)
		}
		fmt.Fprintln(w, "What happened after that time is not in it: attestations that were answered, and API keys that were revoked.")
	})
}

// audit shows how the audit gets on.
func (r restore) audit(ctx context.Context, dir string, m archive.Manifest, earlier []byte) (appliance.AuditReport, error) {
	update, end := r.progress("check", "records")
	defer end()
	return archive.Audit(ctx, dir, m, archive.AuditOptions{Earlier: earlier, Progress: update})
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
func (r restore) compare(ctx context.Context, c *config.Config, scratch string, m archive.Manifest) error {
	if !files.Exists(filepath.Join(c.DataDir, archive.StoreFile)) && !files.Exists(filepath.Join(c.DataDir, archive.LogKeyFile)) {
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
func (r restore) loses(ctx context.Context, c *config.Config, scratch string, m archive.Manifest) (string, error) {
	in, err := archive.ReadHead(ctx, c.DataDir)
	if errors.Is(err, bolt.ErrInUse) {
		return "", fmt.Errorf("restore: %w", err)
	}
	if err != nil {
		return fmt.Sprintf("what it holds cannot be read (%v)", err), nil
	}
	if in.Tree.N == 0 {
		return "", nil
	}
	if in.Tree.N > m.Records {
		return fmt.Sprintf("the journal in place has %d records, the backup of %s has %d", in.Tree.N, text.Time(m.Time), m.Records), nil
	}
	// The audit with an earlier checkpoint proves that the backup goes on where the journal in place ends.
	report, err := r.audit(ctx, scratch, m, in.Checkpoint)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil && report.OK():
		return "", nil
	}
	// An error, too, says that the checkpoint is not of this log: the backup itself has passed its audit.
	return fmt.Sprintf("the backup does not go on from the %d records of the journal in place: it is another journal, or one that parted from it", in.Tree.N), nil
}

// confirm opens what is in place now.
func (r restore) confirm(ctx context.Context, c *config.Config, m archive.Manifest) error {
	now, err := archive.ReadHead(ctx, c.DataDir)
	if err == nil && string(now.Checkpoint) != m.Checkpoint {
		err = errors.New("what is in place is not what the backup holds")
	}
	return err
}
