package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/postgres"
)

func newStore(a *app) *cobra.Command {
	return group("store", "The store of API keys and journal: init, migrate, copy, status",
		`API keys and journal are in the file attestd.db in data_dir, or in a PostgreSQL database that several
appliances share (store.url). These commands prepare such a database, and move an appliance into it and back.

A database is given as a URL of libpq, such as postgres://attestd@db.example.com/attestd. Do not put passwords
on a command line, where every user of the machine can read them: use a passfile (PGPASSFILE, ~/.pgpass) or
PGPASSWORD.`,
		newStoreInit(a), newStoreMigrate(a), newStoreCopy(a), newStoreStatus(a))
}

// databaseFlag checks a database URL from the command line. It refuses one with a password.
func databaseFlag(cmd *cobra.Command, flag, url string) error {
	switch u := config.DatabaseURL(url); {
	case url == "":
		return usagef(cmd, "%s is required: the URL of the database for the tables' owner", flag)
	case !config.IsDatabaseURL(url):
		return usagef(cmd, "%s must be a URL such as postgres://owner@db.example.com/attestd", flag)
	case u.HasPassword():
		return usagef(cmd,
			"%s: every user of this machine can read a password on a command line: put it into a passfile (PGPASSFILE, ~/.pgpass) or PGPASSWORD, and give %s", flag, u.WithoutPassword())
	}
	if err := postgres.Check(url); err != nil {
		return usagef(cmd, "%s: %w", flag, err)
	}
	return nil
}

func newStoreInit(a *app) *cobra.Command {
	var url, role, passwordFile, passfile string
	cmd := &cobra.Command{
		Use:   "init --url URL",
		Short: "Create the tables in a database, and a role for the daemons",
		Long: `Create attestd's tables in an existing database, and a role for the daemons that can use the tables but not
alter them. The URL is the one of the tables' owner, who must be allowed to create roles, unless the role
exists. Existing tables and roles stay, so you can run the command again.

With --passfile, the command also makes a password for the role, and writes it to a new passfile that only the
daemon's user can read. Copy the file to each appliance.

The output is the URL for store.url in the configuration of each appliance.`,
		Example: `  attestd store init --url postgres://postgres@db.example.com/attestd
  attestd store init --url postgres:///attestd?host=/run/postgresql --role attestd
  attestd store init --url postgres://postgres@db.example.com/attestd --passfile /etc/attestd/pgpass`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := databaseFlag(cmd, "--url", url); err != nil {
				return err
			}
			if passfile != "" && passwordFile != "" {
				return usagef(cmd, "--passfile makes a new password: give it or --password-file, not both")
			}
			if passfile != "" {
				return a.initWithPassfile(cmd.Context(), url, role, passfile)
			}
			password := ""
			if passwordFile != "" {
				p, err := a.readPIN(passwordFile)
				if err != nil {
					return fmt.Errorf("--password-file: %w", err)
				}
				password = string(p)
			}
			if err := postgres.Init(cmd.Context(), url, role, password); err != nil {
				return fmt.Errorf("store init: %w", err)
			}
			daemons, err := config.DatabaseURL(url).As(role)
			if err != nil {
				return err
			}
			return a.printInit(daemons, role, password != "")
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "URL of the database for the tables' owner (required)")
	f.StringVar(&role, "role", "attestd", "role of the daemons, which is created if missing")
	f.StringVar(&passwordFile, "password-file", "",
		"file with a new password for the role; - for standard input (default: no change)")
	f.StringVar(&passfile, "passfile", "",
		"write a new password for the role to this new passfile of the daemon's user (default: no change)")
	return cmd
}

// printInit prints the URL for the daemons. lacksPassfile says that the role has a new password, which is in no
// passfile yet.
func (a *app) printInit(daemons config.DatabaseURL, role string, lacksPassfile bool) error {
	return a.print(map[string]string{"url": string(daemons), "role": role}, func(w io.Writer) {
		a.say("The tables are ready, and the role %s may use them. Add to the configuration of each appliance:", role)
		fmt.Fprintf(w, "store: { url: %q }\n", daemons)
		if lacksPassfile {
			a.say(
				"Put the password into a passfile of the daemon's user, with mode 0600, and set its path in the environment file: PGPASSFILE=/etc/attestd/pgpass")
		}
		a.say("To move the journal of an existing appliance: attestd store copy --prepare --from bolt:/var/lib/attestd")
	})
}

func newStoreMigrate(a *app) *cobra.Command {
	var url, role string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "migrate --url URL",
		Short: "Migrate the tables to the version of this attestd",
		Long: `Migrate the tables of a database to the version of this attestd. The command first prints its plan. The URL is
the one of the tables' owner. Upgrade one appliance, and run the command there at once, because a newer attestd
attests nothing with older tables. Then upgrade the others one by one. Older appliances work with the newer
tables, unless a migration excludes their version: then they stop at the next transaction, and report the
version that they need.`,
		Example: `  attestd store migrate --url postgres://postgres@db.example.com/attestd --dry-run
  attestd store migrate --url postgres://postgres@db.example.com/attestd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := databaseFlag(cmd, "--url", url); err != nil {
				return err
			}
			return a.migrate(cmd.Context(), url, role, dryRun)
		},
	}
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "URL of the database for the tables' owner (required)")
	f.StringVar(&role, "role", "attestd", "role of the daemons, which gets its privileges on new tables")
	f.BoolVar(&dryRun, "dry-run", false, "only print the plan")
	return cmd
}

func (a *app) migrate(ctx context.Context, url, role string, dryRun bool) error {
	now, err := postgres.Status(ctx, url)
	if err != nil {
		return fmt.Errorf("store migrate: %w", err)
	}
	if now.Version == 0 {
		return errors.New("store migrate: this database has no attestd tables: create them with: attestd store init")
	}
	pending := postgres.Pending(now.Version)
	for _, m := range pending {
		a.say("%s", m)
	}
	to := now.Version
	if !dryRun {
		if _, to, err = postgres.Migrate(ctx, url, role); err != nil {
			return fmt.Errorf("store migrate: %w", err)
		}
	}
	return a.print(struct {
		From    int64    `json:"from"`
		To      int64    `json:"to"`
		Newest  int64    `json:"newest"`
		Pending []string `json:"migrations"`
	}{now.Version, to, now.Newest, pending}, func(w io.Writer) {
		switch {
		case len(pending) == 0:
			fmt.Fprintf(w, "The schema has version %d already, the newest version of this attestd.\n", now.Version)
		case dryRun:
			fmt.Fprintf(w, "%d migrations would change the schema from version %d to %d; this was a dry run.\n",
				len(pending), now.Version, now.Newest)
		default:
			fmt.Fprintf(w, "The schema now has version %d, migrated from version %d.\n", to, now.Version)
		}
	})
}

func newStoreCopy(a *app) *cobra.Command {
	var from, to string
	var prepare bool
	cmd := &cobra.Command{
		Use:   "copy [--from STORE] [--to STORE]",
		Short: "Copy API keys, webhooks and journal from one store into an empty one",
		Long: `Copy API keys, webhooks and journal from one store into an empty one, in either direction, as they are: the tree
stays the same, and each webhook continues at its position. A store is bolt:DATA_DIR or a database's URL. If you give only one of --from and --to, the other is the
store of the configuration. No appliance may use the source during the copy, because the copy would lack its new
attestations.

With --prepare, the command copies the records that exist while the appliance attests, reads them back, and leaves the
copy unfinished. It can be interrupted and repeated. Afterwards, stop the appliance and run the command without
--prepare: it copies and compares only the newer records and the API keys, which takes seconds.

At the end the copy is compared with the source: each leaf, the root, the number of records, and the API keys. Until
then no appliance can use it. To continue an interrupted copy, run the same command again.`,
		Example: `  attestd store copy --prepare --from bolt:/var/lib/attestd
  systemctl stop attestd
  attestd store copy --from bolt:/var/lib/attestd
  attestd store copy --from postgres://attestd@db.example.com/attestd --to bolt:/var/lib/attestd-alone`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.copyEnds(cmd, &from, &to); err != nil {
				return err
			}
			if prepare {
				return a.prepareCopy(cmd.Context(), from, to)
			}
			return a.copyStore(cmd.Context(), from, to)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "source: bolt:DATA_DIR or a database's URL (default: the configured store)")
	f.StringVar(&to, "to", "", "target: bolt:DATA_DIR or a database's URL (default: the configured store)")
	f.BoolVar(&prepare, "prepare", false, "copy the records while the appliance attests, and leave the copy unfinished")
	return cmd
}

// copyEnds checks the stores on the command line, and sets a missing one to the configured store.
func (a *app) copyEnds(cmd *cobra.Command, from, to *string) error {
	if *from == "" && *to == "" {
		return usagef(cmd, "--from or --to is required: bolt:DATA_DIR, or the URL of a database")
	}
	for flag, ref := range map[string]string{"--from": *from, "--to": *to} {
		if _, isFile := daemon.BoltDir(ref); isFile || ref == "" {
			continue
		}
		if !config.IsDatabaseURL(ref) {
			return usagef(cmd, "%s must be bolt:DATA_DIR, or a URL such as postgres://owner@db.example.com/attestd",
				flag)
		}
		if err := databaseFlag(cmd, flag, ref); err != nil {
			return err
		}
	}
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	configured := "bolt:" + c.DataDir
	if c.Store.URL != "" {
		configured = string(c.Store.URL)
	}
	if *from == "" {
		*from = configured
	}
	if *to == "" {
		*to = configured
	}
	if *from == *to {
		return usagef(cmd, "--from and --to are the same store")
	}
	return nil
}

func (a *app) copyStore(ctx context.Context, from, to string) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	update, end := a.progress("copy", unitRecords)
	began := time.Now()
	copied, err := daemon.CopyStore(ctx, c, from, to, update)
	end()
	if interrupted, is := errors.AsType[*archive.Interrupted](err); is {
		return interruptedError{fmt.Errorf("store copy: %w", interrupted)}
	}
	if err != nil {
		return fmt.Errorf("store copy: %w", err)
	}
	return a.print(copied, func(w io.Writer) {
		fmt.Fprintf(w, "%s records and %s API keys are copied and verified: root hash %s.\n",
			text.Count(copied.Records), text.Count(copied.Keys), copied.RootHash)
		if copied.Webhooks > 0 {
			fmt.Fprintf(w, "%s webhooks are copied, with the events that wait.\n", text.Count(copied.Webhooks))
		}
		if copied.Resumed > 0 {
			fmt.Fprintf(w, "%s of the records are from an earlier run.\n", text.Count(copied.Resumed))
		}
		took := time.Since(began).Round(time.Second / 10)
		if _, isFile := daemon.BoltDir(from); isFile {
			a.say(
				"It took %s. The source is unchanged: do not start an appliance on it, which would give two journals of one name.", took)
		} else {
			a.say("It took %s. The journal in the source has ended: appliances cannot attest with it.", took)
		}
	})
}

// prepareCopy copies the records while the appliance attests.
func (a *app) prepareCopy(ctx context.Context, from, to string) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	var running archive.Leaves
	if dir, isFile := daemon.BoltDir(from); isFile {
		if running, err = runningOn(ctx, c, dir); err != nil {
			return fmt.Errorf("store copy: %w", err)
		}
	}
	update, end := a.progress("copy", unitRecords)
	tree, err := daemon.PrepareCopy(ctx, c, from, to, running, update)
	end()
	if interrupted, is := errors.AsType[*archive.Interrupted](err); is {
		return interruptedError{fmt.Errorf("store copy: %w", interrupted)}
	}
	if err != nil {
		return fmt.Errorf("store copy: %w", err)
	}
	return a.print(map[string]any{"records": tree.N, "rootHash": hex.EncodeToString(tree.Hash[:])}, func(w io.Writer) {
		fmt.Fprintf(w,
			"%s records are copied and compared. The copy is unfinished: the newest records and the API keys are missing.\n",
			text.Count(tree.N))
		a.say("Now stop every appliance on the source, and run the same command without --prepare.")
	})
}

// runningOn returns the leaves of the daemon on a file store, which no other process can read. If no daemon runs, the
// result is nil.
func runningOn(ctx context.Context, c *config.Config, dir string) (archive.Leaves, error) {
	running := client.NewAdmin(c.Admin.Socket)
	status, err := running.Status(ctx)
	switch {
	case errors.Is(err, client.ErrNotRunning):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("admin socket %s: %w", c.Admin.Socket, err)
	}
	if used, isFile := daemon.BoltDir(status.Store); !isFile || filepath.Clean(used) != filepath.Clean(dir) {
		return nil,
			fmt.Errorf(
				"the running appliance uses %s, not bolt:%s: give the configuration of the one that does by --config",
				status.Store, dir)
	}
	return running, nil
}

func newStoreStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the store of API keys and journal, and its state",
		Long: `Show where the configured API keys and journal are, and in what state: the tables' version, the log, the number of records and of
API keys. It asks the daemon while it runs.`,
		Example: "  attestd store status\n  attestd store status --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
			defer cancel()
			status, err := a.storeStatus(ctx, c)
			if err != nil {
				return fmt.Errorf("store status: %w", err)
			}
			return a.print(status, func(w io.Writer) { status.write(w) })
		},
	}
}

// statusTimeout bounds the wait for a status.
const statusTimeout = 20 * time.Second

// storeStatus is the result of 'store status'.
type storeStatus struct {
	Store    string `json:"store"`            // bolt or postgres
	At       string `json:"at"`               // the file, or the URL without its password
	Schema   *int64 `json:"schema,omitempty"` // version of the tables
	Newest   *int64 `json:"newest,omitempty"` // newest version that this attestd knows
	Log      string `json:"log"`
	Records  int64  `json:"records"`
	RootHash string `json:"rootHash"`
	Keys     int    `json:"keys"`
}

func (a *app) storeStatus(ctx context.Context, c *config.Config) (s storeStatus, err error) {
	s = storeStatus{Store: "bolt", At: filepath.Join(c.DataDir, archive.StoreFile)}
	if c.Store.URL != "" {
		s.Store, s.At = "postgres", c.Store.URL.String()
		schema, err := postgres.Status(ctx, string(c.Store.URL))
		if err != nil {
			return s, err
		}
		s.Schema, s.Newest = &schema.Version, &schema.Newest
	}
	store, err := a.backend(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	key, err := archive.ReadLogKey(c.DataDir)
	if err != nil {
		return s, err
	}
	tree, err := archive.TreeOf(ctx, store, key.Verifier)
	if err != nil {
		return s, err
	}
	keys, err := store.ListKeys(ctx)
	s.Log, s.Records, s.RootHash, s.Keys = key.Verifier.Name(), tree.N, hex.EncodeToString(tree.Hash[:]), len(keys)
	return s, err
}

func (s storeStatus) write(w io.Writer) {
	rows := [][2]string{{"store", s.Store + "  " + s.At}}
	if s.Schema != nil {
		version := fmt.Sprint(*s.Schema)
		if *s.Schema < *s.Newest {
			version += fmt.Sprintf("; this attestd needs version %d: run attestd store migrate", *s.Newest)
		}
		rows = append(rows, [2]string{"schema", version})
	}
	fields(w, append(rows, [][2]string{
		{"log", s.Log}, {"records", text.Count(s.Records)}, {"root hash", s.RootHash}, {"API keys", text.Count(s.Keys)},
	}...))
}
