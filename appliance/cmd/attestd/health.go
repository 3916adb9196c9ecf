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
		Short: "Check that the daemon is running, or ready",
		Long: `Query the running daemon through its admin socket. The exit status is 0 if it answers, and 1 if it does not answer
within ` + healthTimeout.String() + `. With --ready, it is also 1 if the daemon is not ready, like GET /readyz: if the HSM or the journal fails, or the
replica is too far behind. Omit --ready if the result decides about a restart, which repairs neither.

This is for health checks of containers, and for scripts. For faults and their remedies, run 'attestd doctor'.`,
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
	cmd.Flags().BoolVar(&ready, "ready", false, "also fail if the daemon is not ready")
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
		fmt.Fprintf(w, "attestd %s is running, but not ready:\n", s.Version)
	}
	for _, part := range slices.Sorted(maps.Keys(s.Failing)) {
		fmt.Fprintf(w, "  %s: %s\n", part, s.Failing[part])
	}
}
