package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
)

func newCluster(a *app) *cobra.Command {
	return group("cluster", "Several appliances on one database: status",
		"Several appliances that share a PostgreSQL database (store.url) attest as one: each of them answers every request.",
		newClusterStatus(a))
}

func newClusterStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the appliances, their database and the head of the journal",
		Long: `Show the appliances that share the database, the time each was last seen and how many records it is behind;
the primary of the database, and whether a commit waits for a standby; and the head of the journal. If this
appliance attests nothing, the last lines give the reason. A line "differ" names running members with a different
policy, screening list, digest scheme or signer, or a name used by two processes. The command asks the daemon; if no
daemon runs, it reads the database.`,
		Example: "  attestd cluster status\n  attestd cluster status --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
			defer cancel()
			status, err := clusterStatus(ctx, c)
			if err != nil {
				return fmt.Errorf("cluster status: %w", err)
			}
			return a.print(status, func(w io.Writer) { writeCluster(w, status, time.Now()) })
		},
	}
}

// clusterStatus asks the daemon while it runs, otherwise the database.
func clusterStatus(ctx context.Context, c *config.Config) (status wire.Cluster, err error) {
	if c.Store.URL == "" {
		return status,
			errors.New(
				"this appliance is not clustered: its journal is a file; to share a database, set store.url (docs/cluster.md)")
	}
	running := client.NewAdmin(c.Admin.Socket)
	defer func() { _ = running.Close() }()
	if status, err = running.Cluster(ctx); !errors.Is(err, client.ErrNotRunning) {
		return status, err
	}
	store, err := daemon.ReadStore(c)
	if err != nil {
		return status, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if status, err = store.Cluster(ctx); err != nil {
		return status, err
	}
	if _, failed := store.Database.Commit(ctx); failed != nil {
		status.Failing = map[string]string{"journal": failed.Error()}
	}
	return status, nil
}

func writeCluster(w io.Writer, s wire.Cluster, now time.Time) {
	rows := make([][]string, len(s.Members))
	for i, m := range s.Members {
		rows[i] = []string{m.Name, orDash(m.Version), orDash(m.SignerAddress), text.Count(m.Size),
			text.Count(max(0, s.Head.Size-m.Size)), since(m.LastSeen, now)}
	}
	if len(rows) > 0 {
		table(w, "NAME\tVERSION\tSIGNER\tSIZE\tBEHIND\tSEEN", rows, "VERSION")
	}
	var pairs [][2]string
	for _, d := range s.Differences {
		pairs = append(pairs, [2]string{"differ", d.String()})
	}
	synchronous := "a commit does not wait for a standby"
	if s.Database.Synchronous {
		synchronous = "a commit waits for a standby"
	}
	fmt.Fprintln(w)
	fields(w, append(pairs, [][2]string{{"database", s.Database.Primary}, {"", synchronous},
		{"head", text.Count(s.Head.Size) + " records"}, {"", s.Head.RootHash}}...))
	for _, part := range slices.Sorted(maps.Keys(s.Failing)) {
		fmt.Fprintln(w)
		paragraph(w, red, "It does not attest: "+part+": "+text.OneLine(s.Failing[part]))
	}
}

// short cuts a text to n characters.
func short(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return orDash(s)
}

// shortAddress shortens an address to the digits that people compare.
func shortAddress(a string) string {
	if len(a) < 12 {
		return orDash(a)
	}
	return a[:6] + "…" + a[len(a)-4:]
}

// since describes how long ago t was.
func since(t, now time.Time) string {
	switch ago := max(0, now.Sub(t)); {
	case ago < 2*time.Minute:
		return fmt.Sprintf("%ds ago", int(ago.Seconds()))
	case ago < 2*time.Hour:
		return fmt.Sprintf("%dm ago", int(ago.Minutes()))
	case ago < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(ago.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(ago.Hours()/24))
	}
}
