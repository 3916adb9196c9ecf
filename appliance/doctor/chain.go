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
	unknownRemedy  = "attestd chain redemptions --unknown names them; take the key out of use on chain first, as docs/chain.md says"
	disputeRemedy  = "look the transactions up in a block explorer: attestd chain redemptions --unknown; then take the RPC that lies out of chain.contracts"
	attestorRemedy = "set %s as attestor of the contract, or correct address and rpc in chain.contracts"
	rpcRemedy      = "attestd asks again by itself; see that the URL in chain.contracts is right, and what its provider says"
	haltedRemedy   = "when the cause is cleared up: attestd resume"
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
		return []Finding{warn("systemctl restart attestd, where chain.contracts was set since it was started", "the daemon watches no contract: %s", err)}
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
	if n := c.Unknown - c.Disputed; n > 0 {
		all = append(all, fail(unknownRemedy, "%s: %d redemptions are not in the journal: someone else signs with the attestor's key", c.Name, n))
	}
	if c.Disputed > 0 {
		all = append(all, fail(disputeRemedy, "%s: %d redemptions are not in the journal, and the RPCs do not agree on them", c.Name, c.Disputed))
	}
	for _, rpc := range c.RPCs {
		if rpc.Error != "" {
			all = append(all, warn(rpcRemedy, "%s: %s is not read since block %d: %s", c.Name, rpc.URL, rpc.Block, text.OneLine(rpc.Error)))
		}
	}
	switch {
	case c.SignerMatches == nil:
		return append(all, warn(rpcRemedy, "%s: the contract's attestor is not known", c.Name))
	case !*c.SignerMatches:
		return append(all, fail(fmt.Sprintf(attestorRemedy, signer), "%s: the contract refuses what is signed here: its attestor is %s", c.Name, *c.Attestor))
	case len(all) > 0:
		return all
	}
	return []Finding{ok("%s: read to block %d, %d redemptions, each in the journal; takes this appliance's signatures", c.Name, c.Block, c.Redemptions)}
}

// inspectContracts asks the RPCs itself, while no daemon runs.
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
		return warn("correct address or rpc in chain.contracts, or see what the RPC's provider says", "%s: %s: %s", c.Name, found.URL, text.OneLine(found.Err.Error()))
	case found.Code:
		return ok("%s: %s: the attestor is a contract, %s; the daemon asks it whether it takes this appliance's signatures", c.Name, found.URL, found.Attestor)
	case ours == nil:
		return ok("%s: %s: the attestor is %s; with which this appliance signs is not known", c.Name, found.URL, found.Attestor)
	case *ours != found.Attestor:
		return fail(fmt.Sprintf(attestorRemedy, *ours), "%s: %s: the contract refuses what is signed here: its attestor is %s", c.Name, found.URL, found.Attestor)
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
