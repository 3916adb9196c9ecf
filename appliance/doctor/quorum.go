package doctor

import "context"

// checkQuorum reports the state of the other members and of the contract, as the daemon sees them.
func checkQuorum(_ context.Context, p *subject) []Finding {
	if !p.config.HasQuorum() || !p.running() { // checkDaemon reports a daemon that does not run
		return nil
	}
	if found := p.told("quorum"); len(found) > 0 {
		return found
	}
	return []Finding{fail("if quorum was set after the daemon started: systemctl restart attestd",
		"the daemon has no quorum")}
}
