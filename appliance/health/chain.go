package health

import (
	"fmt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/text"
)

// AttestorRemedy is the remedy for a contract that refuses the appliance's signatures. It has one verb: the signer.
const AttestorRemedy = "set %s as attestor of the contract, or correct address and rpc in chain.contracts"

// Remedies for contracts that are watched.
const (
	unknownRemedy  = "replace the attestor on chain first, as docs/chain.md says; list the redemptions: attestd chain redemptions --unknown"
	disputeRemedy  = "list the transactions: attestd chain redemptions --unknown; compare them with a block explorer, then remove the wrong RPC from chain.contracts"
	unprovenRemedy = "attestd quorum status shows the members that do not answer or have no verifier_key (docs/quorum.md, Redemptions)"
	rpcRemedy      = "check the URL in chain.contracts, and ask the RPC's provider; attestd retries automatically"
	haltedRemedy   = "find the cause: attestd chain status; once it is resolved: attestd resume"
)

// Chain rates the watchtower, for the appliance with that signer.
func Chain(s chain.Status, signer appliance.Address) (all []Finding) {
	if s.Halted {
		all = append(all, Failure(haltedRemedy, "attesting is halted"))
	}
	for _, c := range s.Contracts {
		all = append(all, Contract(c, signer)...)
	}
	return all
}

// Contract rates a contract that the watchtower reads, for the appliance with that signer.
func Contract(c chain.ContractStatus, signer appliance.Address) (all []Finding) {
	if n := c.Unknown - c.Disputed - c.Unproven; n > 0 {
		all = append(all, Failure(unknownRemedy,
			"%s: %d redemptions are not in the journal: the attestor's key signs outside this appliance", c.Name, n))
	}
	if c.Disputed > 0 {
		all = append(all, Failure(disputeRemedy,
			"%s: %d redemptions are not in the journal, but the RPCs disagree about them", c.Name, c.Disputed))
	}
	if c.Unproven > 0 {
		all = append(all,
			Failure(unprovenRemedy, "%s: %d redemptions are not in this journal, and too few members of the "+
				"quorum answer whether theirs have them", c.Name, c.Unproven))
	}
	for _, rpc := range c.RPCs {
		if rpc.Error != "" {
			all = append(all, Warning(rpcRemedy, "%s: cannot read %s since block %d: %s", c.Name, rpc.URL, rpc.Block,
				text.OneLine(rpc.Error)))
		}
	}
	switch {
	case c.SignerMatches == nil:
		return append(all, Warning(rpcRemedy, "%s: the contract's attestor is unknown", c.Name))
	case !*c.SignerMatches:
		return append(all, Failure(fmt.Sprintf(AttestorRemedy, signer),
			"%s: the contract refuses this appliance's signatures: its attestor is %s", c.Name, *c.Attestor))
	case len(all) > 0:
		return all
	}
	return []Finding{Good(
		"%s: read to block %d; all %s redemptions are in the journal; the contract accepts this appliance's signatures",
		c.Name, c.Block, text.Count(c.Redemptions))}
}
