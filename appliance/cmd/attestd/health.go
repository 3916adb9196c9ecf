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
)

// healthTimeout exceeds the deadline that the daemon gives its own health checks.
const healthTimeout = 5 * time.Second

func newHealth(a *app) *cobra.Command {
	ready := false
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the running daemon whether it is well",
		Long: `Ask the running daemon, over its admin socket, whether it is well. The exit status is 0 when it answers, and 1 when it does not
within ` + healthTimeout.String() + `. With --ready, it is 1 also while the daemon is not ready, as GET /readyz: while the HSM or the journal fails, or the
replica is too far behind. Ask without --ready where the answer decides about a restart, which mends neither.

For a container's health check, and for scripts. 'attestd doctor' says what is wrong and how to mend it.`,
		Example: "  attestd health\n  attestd health --ready",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			status, err := a.health(ctx)
			if err != nil {
				return fmt.Errorf("health: %w", err)
			}
			err = a.print(status, func(w io.Writer) { writeHealth(w, status) })
			if err == nil && ready && !status.Ready {
				err = errors.New("health: attestd is not ready")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "fail also while it is not ready")
	return cmd
}

func (a *app) health(ctx context.Context) (wire.Status, error) {
	c, err := a.config(nil)
	if err != nil {
		return wire.Status{}, err
	}
	daemon := client.NewAdmin(c.Admin.Socket)
	status, err := daemon.Status(ctx)
	return status, errors.Join(err, daemon.Close())
}

func writeHealth(w io.Writer, s wire.Status) {
	if s.Ready {
		fmt.Fprintf(w, "attestd %s attests as %s\n", s.Version, s.SignerAddress)
	} else {
		fmt.Fprintf(w, "attestd %s answers, but is not ready:\n", s.Version)
	}
	for _, part := range slices.Sorted(maps.Keys(s.Failing)) {
		fmt.Fprintf(w, "  %s: %s\n", part, s.Failing[part])
	}
}
