package health

import (
	"time"

	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/appliance/witness"
)

// Remedies that findings share.
const (
	contradictedRemedy = "keep a copy of data_dir, and ask the witness's operator for its checkpoint, as docs/witness.md says under \"A witness contradicts\""
	failingRemedy      = "attestd retries automatically; if it lasts, ask the witness's operator, or put another witness into the policy"
)

// Witnesses rates the witnesses. It fails if a witness has seen another history: attesting continues, but the journal
// was rewritten, or its key signs elsewhere. Without a policy there are no findings.
func Witnesses(s witness.Status, now time.Time) []Finding {
	if !s.Policy {
		return nil
	}
	findings := []Finding{newestWitnessed(s.Newest, s.Interval, now)}
	if !s.Names {
		findings = append(findings,
			Warning(
				"add the line \"log VKEY\" to the policy (GET /functions/v1/attestor shows the key), and distribute the policy again",
				"the policy names other logs but not this one, so verifiers with this policy refuse this log's checkpoints"))
	}
	for _, w := range s.Witnesses {
		switch {
		case w.Contradicts:
			findings = append(findings, Failure(contradictedRemedy, "%s (%s) contradicts the journal since %s: %s", w.Name,
				w.URL, text.Time(w.Since), w.Fault))
		case w.Fault != "":
			findings = append(findings, Warning(failingRemedy, "%s (%s) has not cosigned since %s: %s", w.Name, w.URL,
				text.Time(w.Since), text.OneLine(w.Fault)))
		}
	}
	return findings
}

// newestWitnessed reports whether the newest witnessed checkpoint is new enough.
func newestWitnessed(newest *witness.Witnessed, interval time.Duration, now time.Time) Finding {
	if newest == nil {
		return Warning("check the witnesses below that fail; attestd retries automatically",
			"no checkpoint has a quorum of witnesses yet")
	}
	age := now.Sub(newest.Time).Round(time.Second)
	if most := witness.StaleAfter(interval); age > most {
		return Warning("check the witnesses below that fail",
			"the newest witnessed checkpoint is %s old, of %d records; it should be less than %s", age, newest.Records,
			most)
	}
	return Good("a quorum has cosigned %s records, %s ago", text.Count(newest.Records), age)
}
