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
		return []Finding{warn("read the log: journalctl -u attestd", "audit.sinks: %s", oneLine(err))}
	}
	for _, s := range all {
		findings = append(findings, judgeSink(s))
	}
	return findings
}

func judgeSink(s sinks.Status) Finding {
	const remedy = "correct the cause at the sink or in audit.sinks; attestd then sends all remaining records (docs/siem.md)"
	left := "not started yet"
	if s.LagRecords != nil {
		left = fmt.Sprintf("%d records to send", *s.LagRecords)
	}
	behind := time.Duration(s.LagSeconds * float64(time.Second)).Round(time.Second)
	switch {
	case s.Failing != "" && behind > latestSink:
		return fail(remedy, "%s to %s: %s, the oldest %s old: %s", s.Name, s.To, left, behind, s.Failing)
	case s.Failing != "":
		return warn(remedy, "%s to %s: %s; failing since %s: %s", s.Name, s.To, left, text.Time(s.Since), s.Failing)
	case behind > latestSink:
		return warn("if the number does not fall, raise batch and batch_bytes in audit.sinks",
			"%s to %s: %s, the oldest %s old", s.Name, s.To, left, behind)
	}
	return ok("%s to %s: %s", s.Name, s.To, left)
}
