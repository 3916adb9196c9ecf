package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/text"
)

// packetProver makes proofs of packets. replicaBackends implement it.
type packetProver interface {
	ProvePacket(ctx context.Context, packet string) (*indexer.PacketProof, error)
	// VerifyChain checks packets against their chain; see client.Admin.
	VerifyChain(ctx context.Context, request wire.VerifyChain,
		progress func(done, total int64)) (indexer.ReplicaReport, error)
}

func (f offlineReplica) ProvePacket(ctx context.Context, packet string) (*indexer.PacketProof, error) {
	v, err := daemon.OpenVerifier(f.config, version())
	if err != nil {
		return nil, err
	}
	return v.Prove(ctx, f.replica, packet)
}

func (f offlineReplica) VerifyChain(ctx context.Context, request wire.VerifyChain,
	progress func(done, total int64)) (indexer.ReplicaReport, error) {
	v, err := daemon.OpenVerifier(f.config, version())
	if err != nil {
		return indexer.ReplicaReport{}, err
	}
	return v.CheckReplica(ctx, indexer.ReplicaCheck{Index: f.replica, Chain: request.Chain, Range: request.Range,
		Restart: request.Restart, Keep: request.Keep, OnProgress: progress})
}

func newReplicaProof(a *app) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "proof PACKET_HASH",
		Short: "Prove to others that a chain knows a packet",
		Long: `Write a proof that the core contract of the packet's source chain knows the packet: the packet, the header
of a recent block, and the nodes of the state that lead to the packet's commitment (eth_getProof). The chain
must be in indexer.chains, and the packet in the replica. 'attestd verify packet' checks the file on any machine.
The replica keeps the newest proof of the packet, which GraphQL serves as its field proof.`,
		Example: "  attestd replica proof 0x7ff1806fe5cb3c704e9d1a4061d7cdfc67beefeaf6fe852d6ace7e8e85da8841 --file packet.json",
		Args:    oneArg("PACKET_HASH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withReplica(cmd, func(o replicaBackend) error {
				proof, err := o.ProvePacket(cmd.Context(), args[0])
				if err != nil {
					return fmt.Errorf("replica proof: %w", err)
				}
				if output == "" {
					return a.printJSON(proof)
				}
				content, err := json.MarshalIndent(proof, "", "  ")
				if err != nil {
					return err
				}
				if err := files.Write(output, append(content, '\n'), 0o644); err != nil {
					return err
				}
				a.say("%s proves packet %s after block %d of %s, %s.", output, proof.PacketHash, proof.Block.Number,
					proof.Chain, proof.Block.Hash)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&output, "file", "f", "", "write the proof to this file instead of standard output")
	return cmd
}

// chainRange are the flags of 'attestd replica verify --chain'.
type chainRange struct {
	chain   string
	blocks  indexer.Range
	restart bool
	keep    bool
}

func (r *chainRange) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.chain, "chain", "",
		"check the packets of this source chain against its nodes instead, such as ethereum.1")
	f.Uint64Var(&r.blocks.From, "from", 0, "with --chain: first block that packets were sent in")
	f.Uint64Var(&r.blocks.To, "to", 0, "with --chain: last block that packets were sent in; 0 means the newest")
	f.BoolVar(&r.restart, "restart", false, "with --chain: start anew, even if a check of this range was interrupted")
	f.BoolVar(&r.keep, "keep", false, "with --chain: keep the proofs in the replica, for the field proof of GraphQL")
}

// check returns an error if a flag of --chain is given without it, or --sample with it.
func (r *chainRange) check(cmd *cobra.Command) error {
	for _, name := range []string{"from", "to", "restart", "keep"} {
		if r.chain == "" && cmd.Flags().Changed(name) {
			return usagef(cmd, "--%s needs --chain", name)
		}
	}
	if r.chain != "" && cmd.Flags().Changed("sample") {
		return usagef(cmd, "--chain checks all packets of the range: omit --sample")
	}
	return nil
}

func (a *app) verifyReplicaChain(ctx context.Context, backend replicaBackend, r chainRange) error {
	update, end := a.progress("check", unitPackets)
	report, err := backend.VerifyChain(ctx,
		wire.VerifyChain{Chain: r.chain, Range: r.blocks, Restart: r.restart, Keep: r.keep}, update)
	end()
	if err != nil {
		if ctx.Err() == nil {
			return fmt.Errorf("replica verify: %w", err)
		}
		return interrupted(ctx, err, "run the same command again to continue")
	}
	err = a.print(struct {
		OK bool `json:"ok"`
		indexer.ReplicaReport
	}{report.Unknown == 0, report}, func(w io.Writer) { writeProvenReport(w, report) })
	if err == nil && report.Unknown > 0 {
		err = silentFailure{}
	}
	return err
}

func writeProvenReport(w io.Writer, r indexer.ReplicaReport) {
	rate := ""
	if fresh := r.Packets - r.Resumed; fresh > 0 && r.Seconds > 0 {
		rate = fmt.Sprintf("%.0f packets/s", float64(fresh)/r.Seconds)
	}
	fields(w, [][2]string{
		{"chain", r.Chain}, {"block", fmt.Sprintf("%d %s", r.Block.Number, r.Block.Hash)},
		{"packets", text.Count(r.Packets)}, {"known", text.Count(r.Known)},
		{"too new", nonZero(r.Waiting)}, {"unknown", text.Count(r.Unknown)},
		{"continued after", nonZero(r.Resumed)}, {"rate", rate},
	})
	if r.Unknown == 0 {
		fmt.Fprintf(w, "\nThe chain confirms each packet.\n")
		return
	}
	fmt.Fprintf(w, "\nThe chain does not confirm these packets, %d of %d:\n", len(r.Listed), r.Unknown)
	var lines [][]string
	for _, one := range r.Listed {
		lines = append(lines, []string{text.OneLine(one.Packet), text.OneLine(one.Reason)})
	}
	table(w, "PACKET\tREASON", lines)
	fmt.Fprintf(w, "\nThe replica's upstream is faulty or dishonest: ask its operator, and set graphql.verify: chain.\n")
}

// maxPacketProof bounds the file of a proof, in bytes. A packet with 64 KiB of data and its proof take about 200 KB.
const maxPacketProof = 4 << 20

func newVerifyPacket(a *app) *cobra.Command {
	var block, core string
	cmd := &cobra.Command{
		Use:   "packet FILE|-",
		Short: "Check a proof of a packet offline, with nothing but a block hash",
		Long: `Check a file of 'attestd replica proof' without a server. It proves that the core contract of a chain knows
the packet, with exit status 0, if

    packet  the packet's bytes have the hash and the storage slot in the file
    block   the header has the hash of --block-hash
    state   the nodes lead from the header's state root to the packet's commitment

Take --block-hash from a source that you trust, such as your own node or a block explorer. Without it, the file is
consistent with itself only, and the exit status is 1. --core is the address of the chain's core contract; the default
is the one in indexer.chains, otherwise the one of Union's deployments.`,
		Example: `  attestd verify packet packet.json --block-hash 0x…
  attestd replica proof 0x… | attestd verify packet - --block-hash 0x…`,
		Args: oneArg("FILE (or - for standard input)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := a.readSmall(args[0], maxPacketProof)
			if err != nil {
				return err
			}
			proof, err := indexer.ParsePacketProof(raw)
			if err != nil {
				return fmt.Errorf("verify packet %s: %w", args[0], err)
			}
			var trusted common.Hash
			if cmd.Flags().Changed("block-hash") {
				if err := trusted.UnmarshalText([]byte(block)); err != nil || trusted == (common.Hash{}) {
					return usagef(cmd, "--block-hash must be 0x and 64 hex digits, not zero")
				}
			}
			contract, err := a.coreContract(cmd, core, proof.Chain)
			if err != nil {
				return err
			}
			return a.printPacketProof(proof, contract, trusted)
		},
	}
	cmd.Flags().StringVar(&block, "block-hash", "", "hash of the block, from a source that you trust")
	cmd.Flags().StringVar(&core, "core", "", "address of the chain's core contract")
	return cmd
}

// coreContract returns the core contract of a chain: from the flag, from the
// configuration, or the one of Union's deployments.
func (a *app) coreContract(cmd *cobra.Command, flag, chain string) (core common.Address, err error) {
	if flag != "" {
		if err := core.UnmarshalText([]byte(flag)); err != nil {
			return core, usagef(cmd, "--core must be 0x and 40 hex digits")
		}
		return core, nil
	}
	if c, err := a.config(nil); err == nil { // the command works on any machine
		for _, one := range daemon.IndexedChains(c) {
			if one.ID == chain {
				return one.Core, nil
			}
		}
	}
	return common.HexToAddress(config.MainnetCore), nil
}

// checkedPacket is the result of 'attestd verify packet'.
type checkedPacket struct {
	OK           bool                `json:"ok"`
	Chain        string              `json:"chain"`
	Packet       common.Hash         `json:"packet"`
	Block        indexer.ProvenBlock `json:"block"`
	BlockTrusted bool                `json:"blockTrusted"` // --block-hash names it
	State        string              `json:"state"`        // sent, ended or unknown
	Fault        indexer.Fault       `json:"fault,omitempty"`
	Error        string              `json:"error,omitempty"`
}

func (a *app) printPacketProof(proof *indexer.PacketProof, core common.Address, trusted common.Hash) error {
	result := checkedPacket{Chain: proof.Chain, Packet: proof.PacketHash, Block: proof.Block,
		BlockTrusted: trusted != common.Hash{}, State: packetState(proof.Value)}
	fault := new(indexer.ProofError)
	if err := proof.Verify(core, trusted); errors.As(err, &fault) {
		result.Fault, result.Error = fault.Fault, fault.Error()
	} else if err != nil {
		return err
	}
	result.OK = result.Error == "" && result.BlockTrusted && result.State != stateUnknown
	err := a.print(result, func(w io.Writer) { writePacketProof(w, result) })
	if err == nil && !result.OK {
		err = silentFailure{}
	}
	return err
}

// The states of a proven packet.
const (
	stateSent    = "sent"
	stateEnded   = "ended"
	stateUnknown = "unknown"
)

func packetState(value common.Hash) string {
	known := []common.Hash{indexer.CommitmentSent, indexer.CommitmentDone}
	if at := slices.Index(known, value); at >= 0 {
		return []string{stateSent, stateEnded}[at]
	}
	return stateUnknown
}

func writePacketProof(w io.Writer, r checkedPacket) {
	states := map[string]string{stateSent: "sent, and neither acknowledged nor timed out",
		stateEnded: "sent, and acknowledged or timed out", stateUnknown: "NOT KNOWN to the chain"}
	if r.Error != "" {
		fmt.Fprintf(w, "BAD: %s\n", text.OneLine(r.Error))
		return
	}
	fields(w, [][2]string{{"packet", r.Packet.String()}, {"chain", text.OneLine(r.Chain)},
		{"block", fmt.Sprintf("%d %s", r.Block.Number, r.Block.Hash)}, {"state", states[r.State]}})
	switch {
	case !r.BlockTrusted:
		fmt.Fprintf(w, "\nNOT PROVEN: the file is consistent with itself only. Give the hash of block %d from a source that "+
			"you trust: --block-hash\n", r.Block.Number)
	case r.OK:
		fmt.Fprintf(w, "\nGOOD: the chain knows the packet.\n")
	default:
		fmt.Fprintf(w, "\nBAD: the chain does not know the packet.\n")
	}
}
