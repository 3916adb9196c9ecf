package doctor

import (
	"context"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/witness"
)

// checkWitnesses reports the state of the witnesses.
func checkWitnesses(_ context.Context, p *subject) []Finding {
	if p.config.Journal.Witnesses == "" {
		return nil
	}
	if !p.running() {
		return []Finding{p.judgeKept()}
	}
	if found := p.told("witnesses"); len(found) > 0 {
		return found
	}
	return []Finding{warn("attestd reload, or systemctl restart attestd",
		"the daemon runs without journal.witnesses, which was set after its start")}
}

// judgeKept checks the kept cosignatures while no daemon runs.
func (p *subject) judgeKept() Finding {
	path := filepath.Join(p.config.DataDir, witness.FileName)
	policy, err := daemon.ReadWitnessPolicy(p.config.Journal.Witnesses)
	if err != nil {
		return fail("correct the policy, then run: attestd config check", "%s", err)
	}
	signed, err := witness.Read(path)
	switch {
	case err != nil:
		return warn(asRoot, "%s", err)
	case signed == nil:
		return warn("start attestd, which asks the witnesses: systemctl start attestd",
			"no checkpoint was witnessed yet")
	}
	c, err := policy.Open(signed, time.Now())
	if err != nil {
		return warn("start attestd, which asks the witnesses: systemctl start attestd", "%s: %s", path, oneLine(err))
	}
	return ok("%s", c)
}
