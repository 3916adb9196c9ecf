package health

import (
	"fmt"

	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/text"
)

// Remedies for a quorum.
const (
	memberRemedy   = "docs/quorum.md, A member that does not sign: attestd quorum status shows it again"
	contractRemedy = "change the contract or quorum.members, as docs/quorum.md, Change members, says"
	logRemedy      = "ask the operator of %s whether this is the key of its log, then set verifier_key: %q in " +
		"quorum.members"
)

// Quorum rates the other members and the contract on chain. watches tells whether a watchtower needs the members'
// proofs.
func Quorum(s quorum.Status, watches bool) []Finding {
	all := members(s)
	if watches {
		all = append(all, memberLogs(s)...)
	}
	return append(all, quorumContract(s)...)
}

// members reports each member that would not sign. They are a failure if too few are left.
func members(s quorum.Status) (all []Finding) {
	well := 1 // this appliance
	for _, m := range s.Members {
		if m.Error == "" {
			well++
		}
	}
	report := Warning
	if well < s.Threshold {
		report = Failure
	}
	for _, m := range s.Members {
		if m.Error != "" {
			all = append(all, report(memberRemedy, "%s: %s", m.Name, text.OneLine(m.Error)))
		}
	}
	if len(all) == 0 {
		all = append(all, Good("%d of %d members must sign, and all would", s.Threshold, len(s.Members)+1))
	}
	return all
}

// memberLogs reports the members without a valid verifier_key, which a watchtower needs.
func memberLogs(s quorum.Status) (all []Finding) {
	for _, m := range s.Members {
		if m.Proves || m.VerifierKey == "" {
			continue
		}
		all = append(all, Warning(fmt.Sprintf(logRemedy, m.Name, text.OneLine(m.VerifierKey)),
			"%s: verifier_key is not set, or differs from the key of its log, so the watchtower does not accept its proofs",
			m.Name))
	}
	return all
}

// quorumContract reports how the contract on chain differs from the configuration.
func quorumContract(s quorum.Status) (all []Finding) {
	if len(s.OnChain) == 0 {
		return []Finding{Good("the contract %s was not compared: chain.contracts names no RPC", s.Contract)}
	}
	report := Warning
	if s.Refused() {
		report = Failure
	}
	for _, c := range s.OnChain {
		at := c.Watched + ": " + c.RPC
		for _, why := range c.Refuses {
			all = append(all, report(contractRemedy, "%s: the contract refuses attestations: %s", at, why))
		}
		for _, why := range c.Differs {
			all = append(all, Warning(contractRemedy, "%s: %s", at, why))
		}
		switch {
		case c.Error != "":
			all = append(all, Warning(rpcRemedy, "%s: the contract of the quorum was not compared: %s", at,
				text.OneLine(c.Error)))
		case c.Matches():
			all = append(all, Good("%s: the contract has the same members and threshold", at))
		}
	}
	return all
}
