package doctor

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
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

// checkQuorum asks the daemon for the state of the other members and of the contract.
func checkQuorum(ctx context.Context, p *subject) []Finding {
	if !p.config.HasQuorum() || !p.running() { // checkDaemon reports a daemon that does not run
		return nil
	}
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	status, err := admin.QuorumStatus(ctx)
	if err != nil {
		return []Finding{fail("if quorum was set after the daemon started: systemctl restart attestd",
			"the daemon does not report its quorum: %s", err)}
	}
	all := append(judgeMembers(status), judgeLogs(status, p.config)...)
	return append(all, judgeQuorumContract(status)...)
}

// judgeMembers reports each member that would not sign. They are a failure if too few are left.
func judgeMembers(s quorum.Status) (all []Finding) {
	well := 1 // this appliance
	for _, m := range s.Members {
		if m.Error == "" {
			well++
		}
	}
	report := warn
	if well < s.Threshold {
		report = fail
	}
	for _, m := range s.Members {
		if m.Error != "" {
			all = append(all, report(memberRemedy, "%s: %s", m.Name, text.OneLine(m.Error)))
		}
	}
	if len(all) == 0 {
		all = append(all, ok("%d of %d members must sign, and all would", s.Threshold, len(s.Members)+1))
	}
	return all
}

// judgeLogs reports the members without a valid verifier_key, if a watchtower needs one.
func judgeLogs(s quorum.Status, c *config.Config) (all []Finding) {
	if len(c.Chain.Contracts) == 0 {
		return nil
	}
	configured := make(map[string]string)
	for _, m := range c.Quorum.Members {
		configured[m.Name] = m.VerifierKey
	}
	for _, m := range s.Members {
		if m.Proves || m.VerifierKey == "" {
			continue
		}
		why := "differs from the key of its log"
		if configured[m.Name] == "" {
			why = "is not set"
		}
		all = append(all, warn(fmt.Sprintf(logRemedy, m.Name, text.OneLine(m.VerifierKey)),
			"%s: verifier_key %s, so the watchtower does not accept its proofs", m.Name, why))
	}
	return all
}

// judgeQuorumContract reports how the contract on chain differs from the configuration.
func judgeQuorumContract(s quorum.Status) (all []Finding) {
	if len(s.OnChain) == 0 {
		return []Finding{ok("the contract %s was not compared: chain.contracts names no RPC", s.Contract)}
	}
	report := warn
	if s.Refused() {
		report = fail
	}
	for _, c := range s.OnChain {
		at := c.Watched + ": " + c.RPC
		for _, why := range c.Refuses {
			all = append(all, report(contractRemedy, "%s: the contract refuses attestations: %s", at, why))
		}
		for _, why := range c.Differs {
			all = append(all, warn(contractRemedy, "%s: %s", at, why))
		}
		switch {
		case c.Error != "":
			all = append(all, warn(rpcRemedy, "%s: the contract of the quorum was not compared: %s", at,
				text.OneLine(c.Error)))
		case c.Matches():
			all = append(all, ok("%s: the contract has the same members and threshold", at))
		}
	}
	return all
}
