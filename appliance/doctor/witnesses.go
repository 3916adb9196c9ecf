package doctor

import (
	"context"
	"path/filepath"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/witness"
)

// checkWitnesses reports the state of the witnesses. It fails if a witness has seen another history. Attesting
// continues then, but the journal was rewritten, or its key signs elsewhere.
func checkWitnesses(ctx context.Context, p *subject) []Finding {
	if p.config.Journal.Witnesses == "" {
		return nil
	}
	if !p.running() {
		return []Finding{p.judgeKept()}
	}
	daemon := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	status, err := daemon.Witnesses(ctx)
	if err != nil {
		return []Finding{fail(asRoot, "%s", err)}
	}
	return judgeWitnesses(status, p.config.Journal.WitnessInterval, time.Now())
}

// Remedies that findings share.
const (
	contradictedRemedy = "keep a copy of data_dir, and ask the witness's operator for its checkpoint, as docs/witness.md says under \"A witness contradicts\""
	failingRemedy      = "attestd retries automatically; if it lasts, ask the witness's operator, or put another witness into the policy"
)

// judgeWitnesses turns a daemon's status of its witnesses into findings.
func judgeWitnesses(s witness.Status, interval time.Duration, now time.Time) []Finding {
	if !s.Policy {
		return []Finding{warn("attestd reload, or systemctl restart attestd",
			"the daemon runs without journal.witnesses, which was set after its start")}
	}
	findings := []Finding{judgeAge(s.Newest, interval, now)}
	if !s.Names {
		findings = append(findings,
			warn(
				"add the line \"log VKEY\" to the policy (GET /functions/v1/attestor shows the key), and distribute the policy again",
				"the policy names other logs but not this one, so verifiers with this policy refuse this log's checkpoints"))
	}
	for _, w := range s.Witnesses {
		switch {
		case w.Contradicts:
			findings = append(findings, fail(contradictedRemedy, "%s (%s) contradicts the journal since %s: %s", w.Name,
				w.URL, text.Time(w.Since), w.Fault))
		case w.Fault != "":
			findings = append(findings, warn(failingRemedy, "%s (%s) has not cosigned since %s: %s", w.Name, w.URL,
				text.Time(w.Since), text.OneLine(w.Fault)))
		}
	}
	return findings
}

// judgeAge reports whether the newest witnessed checkpoint is new enough.
func judgeAge(newest *witness.Witnessed, interval time.Duration, now time.Time) Finding {
	if newest == nil {
		return warn("check the witnesses below that fail; attestd retries automatically",
			"no checkpoint has a quorum of witnesses yet")
	}
	age := now.Sub(newest.Time).Round(time.Second)
	if most := witness.StaleAfter(interval); age > most {
		return warn("check the witnesses below that fail",
			"the newest witnessed checkpoint is %s old, of %d records; it should be less than %s", age, newest.Records,
			most)
	}
	return ok("a quorum has cosigned %d records, %s ago", newest.Records, age)
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
