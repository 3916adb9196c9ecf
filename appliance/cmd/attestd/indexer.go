package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/text"
)

func newIndexer(a *app) *cobra.Command {
	return group("indexer", "The indexer, which reads chains into the replica: status, rescan",
		`With graphql.source chains, the daemon reads the chains of indexer.chains from their nodes, and fills the
replica with their clients, connections, channels, packets and transfers (docs/indexer.md).`,
		newIndexerStatus(a), newIndexerRescan(a))
}

func newIndexerStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how far each chain has been read; fails if a chain cannot be read",
		Long: `Show for each chain the newest block that may be read, the last block read, how many blocks are left, the rate
since the start, and the state of each RPC.

Exit status 1 if a chain cannot be read.`,
		Example: "  attestd indexer status\n  attestd indexer status --output json | jq '.chains[] | select(.lag > 100)'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndexer(cmd, func(ctx context.Context, admin *client.Admin) error {
				status, err := admin.IndexerStatus(ctx)
				if err != nil {
					return fmt.Errorf("indexer status: %w", err)
				}
				err = a.print(status, func(w io.Writer) {
					for i, c := range status.Chains {
						if i > 0 {
							fmt.Fprintln(w)
						}
						writeIndexed(w, c)
					}
				})
				for _, c := range status.Chains {
					if err == nil && c.Error != "" {
						err = silentFailure{}
					}
				}
				return err
			})
		},
	}
}

func writeIndexed(w io.Writer, c indexer.Status) {
	lag := fmt.Sprintf("%s blocks", text.Count(c.Lag))
	if c.Remaining > 0 {
		lag += ", about " + (time.Duration(c.Remaining) * time.Second).String() + " at the current rate"
	}
	rescan := ""
	if c.Rescan != nil {
		rescan = fmt.Sprintf("blocks %d to %d are read again", c.Rescan.From, c.Rescan.To)
	}
	refused := ""
	if c.Refused > 0 {
		refused = fmt.Sprintf("%s events, because what they refer to is unknown; the log has the reasons", text.Count(c.Refused))
	}
	problem := ""
	if c.Error != "" {
		problem = text.OneLine(c.Error)
	}
	pairs := [][2]string{
		{"chain", c.ID}, {"head", strconv.FormatUint(c.Head, 10)}, {"indexed", strconv.FormatUint(c.Indexed, 10)},
		{"lag", lag}, {"events", text.Count(c.Events)},
		{"rate", fmt.Sprintf("%.1f blocks/s, %.1f events/s", c.BlockRate, c.EventRate)}, {"rescan", rescan},
		{"left out", refused}, {"error", problem}, {"code", c.Code}, {"remedy", c.Remedy},
	}
	for _, rpc := range c.RPCs {
		state := fmt.Sprintf("%s, block %d", rpc.URL, rpc.Head)
		if rpc.Disagreements > 0 {
			state += fmt.Sprintf(", DISAGREED %d times", rpc.Disagreements)
		}
		if rpc.Error != "" {
			state += ": " + text.OneLine(rpc.Error)
		}
		pairs = append(pairs, [2]string{"RPC", state})
	}
	fields(w, pairs)
}

func newIndexerRescan(a *app) *cobra.Command {
	var chain string
	var blocks indexer.Range
	cmd := &cobra.Command{
		Use:   "rescan --chain ID --from BLOCK --to BLOCK",
		Short: "Read blocks of a chain again",
		Long: `Read blocks of a chain again, and write their rows again. The command returns at once; 'attestd indexer status'
shows the progress, which a restart does not lose. A later rescan of the same chain replaces an unfinished one.
Rows that the blocks no longer have are not removed, except after the error chain_reorganised: then the chain is undone
from the first of these blocks on, and read anew.`,
		Example: "  attestd indexer rescan --chain ethereum.1 --from 22236429 --to 22300000",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndexer(cmd, func(ctx context.Context, admin *client.Admin) error {
				if err := admin.RescanChain(ctx, chain, blocks); err != nil {
					return fmt.Errorf("indexer rescan: %w", err)
				}
				a.say("Blocks %d to %d of %s are being read again. See: attestd indexer status", blocks.From, blocks.To,
					chain)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&chain, "chain", "", "universal chain id, such as ethereum.1")
	cmd.Flags().Uint64Var(&blocks.From, "from", 0, "first block")
	cmd.Flags().Uint64Var(&blocks.To, "to", 0, "last block")
	for _, name := range []string{"chain", "from", "to"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
	return cmd
}

// withIndexer runs do with the daemon, which must run and index chains.
func (a *app) withIndexer(cmd *cobra.Command, do func(context.Context, *client.Admin) error) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	if !c.Indexes() {
		return errors.New("no chains are read: set graphql.source chains and indexer.chains in the configuration")
	}
	admin := client.NewAdmin(c.Admin.Socket)
	ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
	defer cancel()
	err = do(ctx, admin)
	if errors.Is(err, client.ErrNotRunning) {
		err = fmt.Errorf("%w; only a running daemon reads chains: systemctl start attestd", err)
	}
	return errors.Join(err, admin.Close())
}
