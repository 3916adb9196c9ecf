package health

import (
	"time"

	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/text"
)

// latestSink is the tolerated lag of a sink. The alert AttestdSinkBehind uses the same.
const latestSink = 15 * time.Minute

// Sink rates a sink of audit.sinks.
func Sink(s sinks.Status) Finding {
	const remedy = "correct the cause at the sink or in audit.sinks; attestd then sends all remaining records (docs/siem.md)"
	left := "not started yet"
	if s.LagRecords != nil {
		left = text.Count(*s.LagRecords) + " records to send"
	}
	behind := time.Duration(s.LagSeconds * float64(time.Second)).Round(time.Second)
	switch {
	case s.Failing != "" && behind > latestSink:
		return Failure(remedy, "%s to %s: %s, the oldest %s old: %s", s.Name, s.To, left, behind, s.Failing)
	case s.Failing != "":
		return Warning(remedy, "%s to %s: %s; failing since %s: %s", s.Name, s.To, left, text.Time(s.Since), s.Failing)
	case behind > latestSink:
		return Warning("if the number does not fall, raise batch and batch_bytes in audit.sinks",
			"%s to %s: %s, the oldest %s old", s.Name, s.To, left, behind)
	}
	return Good("%s to %s: %s", s.Name, s.To, left)
}
