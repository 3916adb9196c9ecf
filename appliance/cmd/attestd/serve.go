package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/journal"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
)

func newServe(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until SIGTERM or SIGINT; then complete the accepted requests, and exit with
status 0. Exit status 3 means that the token refused the PIN. attestd never tries a refused PIN again, because
tokens lock.

SIGHUP reloads the configuration, like 'attestd reload'. If systemd passes sockets (attestd.socket), they
serve the API instead of server.listen.`,
		Example: "  attestd serve --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := forbidDumps(); err != nil {
				return err
			}
			flags := make(map[string]any)
			if listen != "" {
				flags["server.listen"] = listen
			}
			sockets, err := activation.Listeners()
			if err != nil {
				return fmt.Errorf("socket activation: %w", err)
			}
			load := func() (*config.Config, error) { return a.config(flags) }
			c, err := load()
			if err != nil {
				return err
			}
			if err := daemon.RequireSetup(&a.source, c); err != nil {
				return err
			}
			o := daemon.Options{Load: load, Level: new(slog.LevelVar), Sockets: sockets, Version: version(),
				Doctor: a.examine(a.source)}
			o.Level.Set(c.Level())
			surviveClosedLog()
			stderr, logger := a.err, func(w io.Writer) *slog.Logger { return logTo(c, w, isTerminal(a.err), o.Level) }
			if journald, _ := journal.StderrIsJournalStream(); journald {
				stderr = journaldStream{os.Stderr, journaldSocket}
				logger = func(w io.Writer) *slog.Logger {
					open := func(w io.Writer) slog.Handler { return logTo(c, w, false, o.Level).Handler() }
					return slog.New(newByPriority(w, open))
				}
			}
			log := newLogWriter(stderr, func(w io.Writer, n uint64) {
				logger(w).Warn(fmt.Sprintf("%d log lines were dropped: the reader of the log was too slow", n))
			})
			defer log.flush(flushLimit)
			o.AccessLog, o.LogDropped = logger(log.later()), log.linesDropped
			return daemon.Serve(cmd.Context(), c, logger(log), o)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address and port of the API; overrides server.listen")
	return cmd
}

// newLogger logs text to a terminal and JSON elsewhere, unless log.format says otherwise.
func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	return newLeveledLogger(c, w, new(slog.LevelVar))
}

// newLeveledLogger is newLogger with a level that can be changed later.
func newLeveledLogger(c *config.Config, w io.Writer, level *slog.LevelVar) *slog.Logger {
	level.Set(c.Level())
	return logTo(c, w, isTerminal(w), level)
}

// logTo returns the logger that writes to w. shown says that w is a terminal.
func logTo(c *config.Config, w io.Writer, shown bool, level *slog.LevelVar) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "text" || c.Log.Format == "auto" && shown {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}
