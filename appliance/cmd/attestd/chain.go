package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/redemptions"
)

func newChain(a *app) *cobra.Command {
	return group("chain", "The watchtower, which checks redemptions on chain: status, redemptions, verify",
		`The daemon watches the contracts of chain.contracts, and compares each redemption with the journal. If the
journal lacks a redemption's hash, the attestor's key signs outside this appliance, or the journal has lost
the attestation.`,
		newChainStatus(a), newChainRedemptions(a), newChainVerify(a))
}

func newChainStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the watched contracts; fails on an unknown redemption",
		Long: `Show for each contract its attestor, whether the contract accepts this appliance's signatures, the last block
read, and the number of redemptions. The command asks the daemon; if no daemon runs, it shows the stored
state.

Exit status 1 if a redemption is not in the journal: the attestor's key signs outside this appliance.
Redemptions about which the RPCs disagree count, too. 'attestd resume' ends a halt; the redemption stays
unknown.`,
		Example: "  attestd chain status\n  attestd chain status --output json | jq '.contracts[] | select(.unknown > 0)'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withChain(cmd, func(c chainBackend) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
				defer cancel()
				status, err := c.ChainStatus(ctx)
				if err != nil {
					return fmt.Errorf("chain status: %w", err)
				}
				return a.printChainStatus(status)
			})
		},
	}
}

func (a *app) printChainStatus(s chain.Status) error {
	err := a.print(s, func(w io.Writer) {
		for i, c := range s.Contracts {
			if i > 0 {
				fmt.Fprintln(w)
			}
			writeContract(w, c)
		}
		if s.Halted {
			fmt.Fprintln(w, "\nATTESTING IS HALTED. Once the cause is resolved, run: attestd resume")
		}
	})
	for _, c := range s.Contracts {
		if err == nil && c.Unknown > 0 {
			err = silentFailure{}
		}
	}
	return err
}

func writeContract(w io.Writer, c chain.ContractStatus) {
	attestor, takes := "not known", ""
	if c.Attestor != nil {
		attestor = *c.Attestor
	}
	switch {
	case c.SignerMatches == nil:
	case *c.SignerMatches:
		takes = ", accepts this appliance's signatures"
	default:
		takes = ", REFUSES THIS APPLIANCE'S SIGNATURES"
	}
	unknown := ""
	if c.Unknown > 0 {
		unknown = fmt.Sprintf("%d: NOT IN THE JOURNAL (attestd chain redemptions --unknown)", c.Unknown)
	}
	disputed := ""
	if c.Disputed > 0 {
		disputed = fmt.Sprintf("%d of them: the RPCs disagree", c.Disputed)
	}
	pairs := [][2]string{
		{"contract", c.Name}, {"address", c.Address.String()}, {"chain", c.ChainID.String()},
		{"attestor", attestor + takes}, {"block", strconv.FormatUint(c.Block, 10)},
		{"redemptions", text.Count(c.Redemptions)}, {"unknown", unknown}, {"disputed", disputed},
	}
	for _, rpc := range c.RPCs {
		state := fmt.Sprintf("%s, block %d", rpc.URL, rpc.Block)
		if rpc.Error != "" {
			state += ": " + text.OneLine(rpc.Error)
		}
		pairs = append(pairs, [2]string{"RPC", state})
	}
	fields(w, pairs)
}

func newChainRedemptions(a *app) *cobra.Command {
	var unknown bool
	var contract string
	cmd := &cobra.Command{
		Use:   "redemptions",
		Short: "List redemptions with time, amount and API key",
		Long: `List the redemptions of all contracts, oldest first. An attestation may be redeemed in parts. The amount is in
the token's smallest unit. In the column of the attestation, "-" means that the journal did not have it at the
time of the redemption, and "pending" that the comparison is still to be done. With
a quorum, "at other members" means that their journals proved that they had it. --unknown omits the pending
ones, and prints their number.`,
		Example: "  attestd chain redemptions\n  attestd chain redemptions --unknown --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withChain(cmd, func(c chainBackend) error {
				list, pending := []chain.Redemption{}, 0
				err := c.Redemptions(cmd.Context(), func(r chain.Redemption) error {
					switch {
					case contract != "" && contract != r.Contract:
					case !unknown || r.IsUnknown():
						list = append(list, r)
					case r.Verdict == "":
						pending++
					}
					return nil
				})
				if err != nil {
					return fmt.Errorf("chain redemptions: %w", err)
				}
				if pending > 0 {
					a.say("%d redemptions are not listed, because they have not been compared with the journal yet.",
						pending)
				}
				return a.printRedemptions(list)
			})
		},
	}
	cmd.Flags().BoolVar(&unknown, "unknown", false, "only redemptions that are not in the journal")
	cmd.Flags().StringVar(&contract, "contract", "", "only redemptions of the contract with this name")
	return cmd
}

func (a *app) printRedemptions(list []chain.Redemption) error {
	return a.print(struct {
		Redemptions []chain.Redemption `json:"redemptions"`
	}{list}, func(w io.Writer) {
		if len(list) == 0 {
			a.say("No redemptions found.")
			return
		}
		writeRedemptions(w, list)
	})
}

func writeRedemptions(w io.Writer, list []chain.Redemption) {
	rows := make([][]string, len(list))
	for i, r := range list {
		attestation := "-"
		switch {
		case r.AttestationID != nil:
			attestation = r.AttestationID.String()
		case r.Verdict == "":
			attestation = "pending"
		case r.Verdict == chain.Proven:
			attestation = "at other members"
		}
		rows[i] = []string{text.Time(r.Time), r.Contract, strconv.FormatUint(r.Block, 10), r.Amount.String(),
			orDash(r.KeyID), attestation, r.Hash.String(), r.TransactionHash.String()}
	}
	table(w, "TIME\tCONTRACT\tBLOCK\tAMOUNT\tKEY\tATTESTATION\tHASH\tTRANSACTION", rows, "TRANSACTION", "BLOCK", "HASH",
		"KEY", "CONTRACT")
}

// chainBackend serves the chain commands: the daemon's admin socket while it runs, otherwise the files (stoppedChain).
type chainBackend interface {
	ChainStatus(ctx context.Context) (chain.Status, error)
	Redemptions(ctx context.Context, yield func(chain.Redemption) error) error
	Redeemed(ctx context.Context, hashes []appliance.Digest) ([]chain.Redeemed, error)
	io.Closer
}

// withChain runs do with a chain backend, and closes it.
func (a *app) withChain(cmd *cobra.Command, do func(chainBackend) error) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	backend, err := openChain(cmd.Context(), c)
	if err != nil {
		return err
	}
	return errors.Join(do(backend), backend.Close())
}

func openChain(ctx context.Context, c *config.Config) (chainBackend, error) {
	if len(c.Chain.Contracts) == 0 {
		return nil, errors.New("no contract is watched: add it to chain.contracts in the configuration")
	}
	running := client.NewAdmin(c.Admin.Socket)
	_, err := running.Status(ctx)
	switch {
	case err == nil:
		return running, nil
	case !errors.Is(err, client.ErrNotRunning):
		return nil, fmt.Errorf("admin socket %s: %w", c.Admin.Socket, err)
	}
	path := daemon.ChainPath(c)
	if !files.Exists(path) {
		return nil, fmt.Errorf("%s does not exist: start attestd, which creates it: systemctl start attestd", path)
	}
	store, err := redemptions.Read(path)
	if err != nil {
		return nil, err
	}
	return stoppedChain{c, store}, nil
}

// stoppedChain is the chain backend that reads the files while no daemon runs.
type stoppedChain struct {
	config *config.Config
	*redemptions.Store
}

func (s stoppedChain) ChainStatus(ctx context.Context) (chain.Status, error) {
	stopped, err := daemon.ReadStop(ctx, s.config)
	if err != nil {
		return chain.Status{}, err
	}
	return chain.StatusOf(s.Store, daemon.Contracts(s.config), stopped.Halted != nil)
}

func (s stoppedChain) Redemptions(ctx context.Context, yield func(chain.Redemption) error) error {
	return s.Each(func(r chain.Redemption) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return yield(r)
	})
}

func (s stoppedChain) Redeemed(_ context.Context, hashes []appliance.Digest) (redeemed []chain.Redeemed, err error) {
	for _, hash := range hashes {
		parts, err := s.ByHash(hash)
		if err != nil {
			return nil, err
		}
		if len(parts) > 0 {
			redeemed = append(redeemed, chain.Sum(parts))
		}
	}
	return redeemed, nil
}
