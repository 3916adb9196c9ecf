package doctor

import (
	"context"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/text"
)

const memberRemedy = "docs/quorum.md, A member that does not sign: attestd quorum status shows it again"

// checkQuorum asks the daemon for the state of the other members of the quorum.
func checkQuorum(ctx context.Context, p *subject) []Finding {
	if !p.config.HasQuorum() || !p.running() { // checkDaemon reports a daemon that does not run
		return nil
	}
	admin := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = admin.Close() }()
	status, err := admin.QuorumStatus(ctx)
	if err != nil {
		return []Finding{fail("systemctl restart attestd, where quorum was set since it was started", "%s", err)}
	}
	return judgeQuorum(status)
}

// judgeQuorum reports each member that would not sign. They are a failure if too few are left.
func judgeQuorum(s quorum.Status) (all []Finding) {
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
