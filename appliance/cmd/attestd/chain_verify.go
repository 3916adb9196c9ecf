package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

// chainAudit holds the argument and the flags of 'chain verify'.
type chainAudit struct {
	file, checkpoint, verifierKey string
	address, confirmations        string
	rpcs                          []string
	start                         uint64
}

func newChainVerify(a *app) *cobra.Command {
	var audit chainAudit
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Compare a contract's redemptions with an export of the journal, without the appliance",
		Long: `Compare each redemption of a contract with an export of the journal. This needs nothing from the appliance: no
socket, no configuration, and no key except the log's verifier key. The command first checks the export, like
'attestd log verify FILE', and then reads the contract from --start-block through each --rpc.

Exit status 1 if the export is damaged, or if any RPC reports a redemption that the export had no attestation
for at that time: the attestor's key signs elsewhere, or the keeper of the journal withholds an attestation.
An attestation does not count if its time is more than 2 s after the redemption's block, or if it follows its
unknown_redemption event in the journal. For redemptions newer than the export, get a newer export.`,
		Example: `  attestd chain verify journal.ndjson --checkpoint 2026-11.checkpoint --verifier-key 'example.com/attestd+1a2b3c4d+AQ…' \
    --contract 0x… --start-block 21000000 --rpc https://rpc.example.com`,
		Args: oneArg("FILE, an export of the journal"),
		RunE: func(cmd *cobra.Command, args []string) error {
			audit.file = args[0]
			for name, value := range map[string]string{"checkpoint": audit.checkpoint,
				"verifier-key": audit.verifierKey, "contract": audit.address} {
				if value == "" {
					return usagef(cmd, "--%s is required", name)
				}
			}
			contract, err := audit.contract()
			if err != nil {
				return usageError{cmd.CommandPath(), err}
			}
			return a.verifyChain(cmd, audit, contract)
		},
	}
	f := cmd.Flags()
	f.StringVar(&audit.checkpoint, "checkpoint", "", "the signed checkpoint of the export's records (required)")
	f.StringVar(&audit.verifierKey, "verifier-key", "", "the log's verifier key, name+hash+key (required)")
	f.StringVar(&audit.address, "contract", "", "the contract's address (required)")
	f.StringArrayVar(&audit.rpcs, "rpc", nil,
		"URL of a node's JSON-RPC: https, or http on this machine; may be repeated (required)")
	f.Uint64Var(&audit.start, "start-block", 0, "first block to read")
	f.StringVar(&audit.confirmations, "confirmations", "12",
		"number of blocks that must follow a block before it is read; or finalized")
	return cmd
}

func (c chainAudit) contract() (one chain.Contract, err error) {
	one = chain.Contract{Name: "contract", RPCs: c.rpcs, StartBlock: c.start,
		Finalized: c.confirmations == string(config.Finalized)}
	if one.Address, err = appliance.ParseAddress(c.address); err != nil {
		return one, fmt.Errorf("--contract %w", err)
	}
	if one.Confirmations, err = config.Confirmations(c.confirmations).Blocks(); err != nil {
		return one, fmt.Errorf("--confirmations: %w", err)
	}
	if len(c.rpcs) == 0 {
		return one, errors.New("--rpc is required")
	}
	for _, u := range c.rpcs {
		if err := chain.CheckURL(u); err != nil {
			return one, fmt.Errorf("--rpc: %w", err)
		}
	}
	return one, nil
}

// chainReport is the result of 'chain verify'.
type chainReport struct {
	OK          bool           `json:"ok"`
	Records     int64          `json:"records"`     // in the export
	Block       uint64         `json:"block"`       // the last block that was read
	Redemptions int            `json:"redemptions"` // of the contract
	Unknown     []unknown      `json:"unknown"`     // redemptions that no earlier attestation explains
	Damages     []audit.Damage `json:"damages"`     // in the export
	newest      time.Time      // time of the export's newest attestation
}

// unknown is a redemption without an attestation in time. Attested is the time of its hash's first, late attestation,
// or nil.
type unknown struct {
	chain.Redemption
	Attested *time.Time `json:"attested"`
}

// auditedExport indexes the attestations of an export, and its events about unknown redemptions.
type auditedExport struct {
	first  map[appliance.Digest]position // the first attestation of each hash
	alarms map[redeemed]int64            // index of each unknown_redemption event
}

type position struct {
	index int64
	time  time.Time
}

type redeemed struct{ transaction, hash string }

func newAuditedExport() *auditedExport {
	return &auditedExport{first: make(map[appliance.Digest]position), alarms: make(map[redeemed]int64)}
}

// add indexes an entry.
func (x *auditedExport) add(e journal.Entry) {
	if e.Event == nil {
		if _, known := x.first[e.Record.Hash]; !known {
			x.first[e.Record.Hash] = position{e.Index, e.Record.Time}
		}
		return
	}
	id := redeemed{e.Event.Details["transactionHash"], e.Event.Details["hash"]}
	if _, known := x.alarms[id]; !known && e.Event.Kind == chain.EventUnknownRedemption {
		x.alarms[id] = e.Index
	}
}

// judge returns nil if an attestation of the hash precedes the redemption, and also its unknown_redemption event.
func (x *auditedExport) judge(r chain.Redemption) *unknown {
	r.Verdict = chain.Unknown
	first, found := x.first[r.Hash]
	if !found {
		return &unknown{Redemption: r}
	}
	alarm, alarmed := x.alarms[redeemed{r.TransactionHash.String(), r.Hash.String()}]
	if first.time.Before(r.Until()) && (!alarmed || first.index < alarm) {
		return nil
	}
	return &unknown{r, &first.time}
}

func (a *app) verifyChain(cmd *cobra.Command, checks chainAudit, contract chain.Contract) error {
	report := chainReport{Unknown: []unknown{}, Damages: []audit.Damage{}}
	export, err := a.auditExport(cmd, checks, &report)
	if err != nil {
		return err
	}
	update, end := a.progress("read", unitBlocks)
	found, upTo, err := chain.Scan(cmd.Context(), contract, "attestd/"+version(), func(done, total uint64) {
		update(int64(done), int64(total))
	})
	end()
	if err != nil {
		return interrupted(cmd.Context(), fmt.Errorf("chain verify: %w", err), "no result; the data is unchanged")
	}
	report.Block, report.Redemptions = upTo, len(found)
	for _, r := range found {
		if one := export.judge(r); one != nil {
			report.Unknown = append(report.Unknown, *one)
		}
	}
	report.OK = len(report.Unknown) == 0 && len(report.Damages) == 0
	if err := a.print(report, func(w io.Writer) {
		writeChainReport(w, report, len(contract.RPCs))
	}); err != nil || report.OK {
		return err
	}
	return silentFailure{}
}

// auditExport verifies the export, adds the result to report, and returns the export's attestations and events.
func (a *app) auditExport(cmd *cobra.Command, c chainAudit, report *chainReport) (*auditedExport, error) {
	verifier, err := journal.ParseVerifier(c.verifierKey)
	if err != nil {
		return nil, notVerifierKey(cmd)
	}
	signed, err := a.readCheckpoint("--checkpoint", c.checkpoint)
	if err != nil {
		return nil, err
	}
	checks, err := audit.New(verifier, nil)
	if err != nil {
		return nil, err
	}
	f, err := a.openInput(c.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	has := newAuditedExport()
	err = checks.Export(cmd.Context(), f, func(index int64, leaf audit.Leaf) {
		if !leaf.Decoded() {
			return
		}
		leaf.Index = index
		if has.add(leaf.Entry); leaf.Event == nil {
			report.newest = leaf.Record.Time
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.file, err)
	}
	found := checks.Finish(signed)
	report.Records = found.Size - found.Events
	report.Damages = append(report.Damages, found.Damages...)
	return has, nil
}

func writeChainReport(w io.Writer, r chainReport, rpcs int) {
	for _, d := range r.Damages {
		fmt.Fprintln(w, d)
	}
	if len(r.Damages) > 0 {
		fmt.Fprintln(w, "The export is DAMAGED: a missing attestation proves nothing.")
	}
	if len(r.Unknown) == 0 {
		fmt.Fprintf(w, "All %s redemptions up to block %d have an attestation in the export of %s records.\n",
			text.Count(r.Redemptions), r.Block, text.Count(r.Records))
		return
	}
	rows, late := make([][]string, len(r.Unknown)), 0
	for i, one := range r.Unknown {
		attested := "-"
		if one.Attested != nil {
			attested = text.Time(*one.Attested)
			late++
		}
		rows[i] = []string{
			text.Time(one.Time), strconv.FormatUint(one.Block, 10), one.Amount.String(),
			fmt.Sprintf("%d of %d", len(one.Reports), rpcs), attested,
			one.Hash.String(), one.TransactionHash.String(),
		}
	}
	table(w, "TIME\tBLOCK\tAMOUNT\tRPCS\tATTESTED\tHASH\tTRANSACTION", rows, "BLOCK", "RPCS")
	fmt.Fprintf(w,
		"%d of %d redemptions up to block %d are NOT IN THE EXPORT: the attestor's key signs elsewhere, or an attestation is withheld.\n", len(r.Unknown), r.Redemptions, r.Block)
	if late > 0 {
		fmt.Fprintf(w,
			"%d of them were attested AFTER the redemption: the redeemed signature is not the attestation's.\n", late)
	}
	if last := r.Unknown[len(r.Unknown)-1]; last.Time.After(r.newest) {
		fmt.Fprintf(w, "The export ends at %s: for later redemptions, get a newer export.\n", text.Time(r.newest))
	}
}
