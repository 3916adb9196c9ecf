package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/text"
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
	if found := p.told("chain"); len(found) > 0 {
		return found
	}
	return []Finding{warn("if chain.contracts was set after the daemon started: systemctl restart attestd",
		"the daemon does not watch contracts")}
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
		return fail(fmt.Sprintf(health.AttestorRemedy, *ours),
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
