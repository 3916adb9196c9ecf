package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/text"
)

// latestSink is the tolerated lag of a sink. The alert AttestdSinkBehind uses the same.
const latestSink = 15 * time.Minute

// checkSinks checks the sinks that the daemon ships the journal to.
func checkSinks(ctx context.Context, p *subject) (findings []Finding) {
	if len(p.config.Audit.Sinks) == 0 || !p.running() {
		return nil
	}
	daemon := client.NewAdmin(p.config.Admin.Socket)
	defer func() { _ = daemon.Close() }()
	all, err := daemon.Sinks(ctx)
	if err != nil {
		return []Finding{warn("attestd's log has more: journalctl -u attestd", "audit.sinks: %s", oneLine(err))}
	}
	for _, s := range all {
		findings = append(findings, judgeSink(s))
	}
	return findings
}

func judgeSink(s sinks.Status) Finding {
	const remedy = "mend what it says, there or in audit.sinks; attestd goes on by itself, and nothing is lost (docs/siem.md)"
	left := "not looked at yet"
	if s.LagRecords != nil {
		left = fmt.Sprintf("%d records left", *s.LagRecords)
	}
	behind := time.Duration(s.LagSeconds * float64(time.Second)).Round(time.Second)
	switch {
	case s.Failing != "" && behind > latestSink:
		return fail(remedy, "%s to %s: %s, the oldest %s old: %s", s.Name, s.To, left, behind, s.Failing)
	case s.Failing != "":
		return warn(remedy, "%s to %s: %s; it fails since %s: %s", s.Name, s.To, left, text.Time(s.Since), s.Failing)
	case behind > latestSink:
		return warn("it catches up, or is too slow: raise batch and batch_bytes in audit.sinks", "%s to %s: %s, the oldest %s old", s.Name, s.To, left, behind)
	}
	return ok("%s to %s: %s", s.Name, s.To, left)
}
