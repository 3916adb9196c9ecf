package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
)

// Remedies for contracts that are watched.
const (
	unknownRemedy  = "replace the attestor on chain first, as docs/chain.md says; list the redemptions: attestd chain redemptions --unknown"
	disputeRemedy  = "list the transactions: attestd chain redemptions --unknown; compare them with a block explorer, then remove the wrong RPC from chain.contracts"
	unprovenRemedy = "attestd quorum status shows the members that do not answer or have no verifier_key (docs/quorum.md, Redemptions)"
	attestorRemedy = "set %s as attestor of the contract, or correct address and rpc in chain.contracts"
	rpcRemedy      = "check the URL in chain.contracts, and ask the RPC's provider; attestd retries automatically"
	haltedRemedy   = "find the cause: attestd chain status; once it is resolved: attestd resume"
)

// checkChain compares the contracts' attestors with the appliance's signer, and reports redemptions that the journal
// lacks.
func checkChain(ctx context.Context, p *subject) []Finding {
	if len(p.config.Chain.Contracts) == 0 {
		return nil
	}
	if !p.running() {
		return p.inspectContracts(ctx)
	}
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	status, err := admin.ChainStatus(ctx)
	if err != nil {
		return []Finding{warn("if chain.contracts was set after the daemon started: systemctl restart attestd",
			"the daemon does not watch contracts: %s", err)}
	}
	var all []Finding
	if status.Halted {
		all = append(all, fail(haltedRemedy, "attesting is halted"))
	}
	for _, c := range status.Contracts {
		all = append(all, judgeContract(c, p.daemon.SignerAddress)...)
	}
	return all
}

// judgeContract turns the daemon's status of a contract into findings.
func judgeContract(c chain.ContractStatus, signer appliance.Address) (all []Finding) {
	if n := c.Unknown - c.Disputed - c.Unproven; n > 0 {
		all = append(all, fail(unknownRemedy,
			"%s: %d redemptions are not in the journal: the attestor's key signs outside this appliance", c.Name, n))
	}
	if c.Disputed > 0 {
		all = append(all, fail(disputeRemedy,
			"%s: %d redemptions are not in the journal, but the RPCs disagree about them", c.Name, c.Disputed))
	}
	if c.Unproven > 0 {
		all = append(all,
			fail(unprovenRemedy, "%s: %d redemptions are not in this journal, and too few members of the "+
				"quorum answer whether theirs have them", c.Name, c.Unproven))
	}
	for _, rpc := range c.RPCs {
		if rpc.Error != "" {
			all = append(all, warn(rpcRemedy, "%s: cannot read %s since block %d: %s", c.Name, rpc.URL, rpc.Block,
				text.OneLine(rpc.Error)))
		}
	}
	switch {
	case c.SignerMatches == nil:
		return append(all, warn(rpcRemedy, "%s: the contract's attestor is unknown", c.Name))
	case !*c.SignerMatches:
		return append(all, fail(fmt.Sprintf(attestorRemedy, signer),
			"%s: the contract refuses this appliance's signatures: its attestor is %s", c.Name, *c.Attestor))
	case len(all) > 0:
		return all
	}
	return []Finding{ok(
		"%s: read to block %d; all %d redemptions are in the journal; the contract accepts this appliance's signatures",
		c.Name, c.Block, c.Redemptions)}
}

// inspectContracts calls the RPCs itself, while no daemon runs.
func (p *subject) inspectContracts(ctx context.Context) (all []Finding) {
	for _, c := range daemon.Contracts(p.config) {
		for _, found := range chain.Inspect(ctx, c, "attestd/"+p.Version) {
			all = append(all, p.judgeInspection(c, found))
		}
	}
	return all
}

func (p *subject) judgeInspection(c chain.Contract, found chain.Inspection) Finding {
	ours := p.signerAddress()
	switch {
	case found.Err != nil:
		return warn("correct address or rpc in chain.contracts, or ask the RPC's provider", "%s: %s: %s", c.Name,
			found.URL, text.OneLine(found.Err.Error()))
	case found.Code:
		return ok(
			"%s: %s: the attestor is the contract %s; the running daemon checks that it accepts this appliance's signatures", c.Name, found.URL, found.Attestor)
	case ours == nil:
		return ok("%s: %s: the attestor is %s; this appliance's own address is unknown", c.Name, found.URL,
			found.Attestor)
	case *ours != found.Attestor:
		return fail(fmt.Sprintf(attestorRemedy, *ours),
			"%s: %s: the contract refuses this appliance's signatures: its attestor is %s", c.Name, found.URL,
			found.Attestor)
	}
	return ok("%s: %s: the attestor is this appliance's signer, %s", c.Name, found.URL, found.Attestor)
}

// signerAddress is the address of the signing key, from the token or from hsm.address. It is nil if neither has one.
func (p *subject) signerAddress() *appliance.Address {
	for _, t := range p.tokens {
		if t.hsm.Key.Address != nil {
			return t.hsm.Key.Address
		}
	}
	if address, err := appliance.ParseAddress(p.config.HSM.Address); err == nil {
		return &address
	}
	return nil
}
