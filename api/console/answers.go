package console

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/text"
)

// answer is one of the three large answers of the overview.
type answer struct {
	Question string
	State    string // good, warn or bad; "" if it has no rating
	Words    string
	Detail   string
	Felt     string // effect on clients, if State is bad
	Command  string // the operator's next command
	Page     string // path of the page with more detail
}

const (
	good = "good"
	warn = "warn"
	bad  = "bad"
)

// answers reports whether the appliance signs, whether the journal is intact, and whether the replica's data are fresh.
func answers(s wire.Status, now time.Time) []answer {
	return []answer{signs(s), isWhole(s, now), isFresh(s)}
}

func signs(s wire.Status) answer {
	a := answer{Question: "Signing", Detail: s.Signing.Why, Command: s.Signing.Remedy, State: bad}
	switch s.Signing.State {
	case wire.SigningReady:
		a.State, a.Words, a.Detail = good, "operational", "as "+short(s.SignerAddress.String())
	case wire.SigningPaused:
		a.State, a.Words = warn, "paused"
	case wire.SigningHalted:
		a.Words = "halted"
	default:
		a.Words = "failing"
	}
	if a.State != good {
		a.Felt = "Requests for attestations get 503 and can be retried."
	}
	return a
}

func isWhole(s wire.Status, now time.Time) answer {
	a := answer{Question: "Journal integrity", Page: "/audit"}
	audit, fault := s.Journal.LastAudit, s.Failing["journal"]
	switch {
	case audit != nil && audit.Damages > 0:
		a.State, a.Words, a.Detail, a.Command = bad, "damaged", fmt.Sprintf("%s found by the audit of %s",
			counted(audit.Damages, "fault"), text.Time(audit.Time)), "attestd log verify"
		a.Felt = "Proofs of attestations may be invalid."
	case fault != "":
		a.State, a.Words, a.Detail, a.Command = bad, "unknown", fault, "attestd doctor"
		a.Felt = "Attesting stops while the journal cannot record."
	case audit == nil:
		a.State, a.Words, a.Command = warn, "not verified yet", "attestd log verify"
		a.Detail = fmt.Sprintf("%s since %s", counted(s.Journal.Records, "record")+", none audited",
			text.Time(s.Started))
	default:
		a.State, a.Words = good, "verified"
		a.Detail = fmt.Sprintf("%s audited %s ago, %d since", counted(audit.Records, "record"),
			span(now.Sub(audit.Time)), max(0, s.Journal.Records-audit.Records))
	}
	return a
}

func isFresh(s wire.Status) answer {
	a := answer{Question: "Data", Page: "/replica"}
	switch replica := s.Reads.Replica; {
	case s.Failing["replica"] != "":
		a.State, a.Words, a.Detail, a.Command = bad, "unavailable", s.Failing["replica"], "attestd replica status"
		a.Felt = "Queries are refused or return old data."
	case s.Reads.Source == "off":
		a.Words, a.Detail = "not served", "graphql.source is off"
	case s.Reads.Source == "chains":
		return isIndexed(s)
	case replica == nil:
		a.Words, a.Detail = "from the upstream", "queries are forwarded to "+s.Reads.Upstream
	case replica.Follower == nil:
		a.Words, a.Detail = "imported", "last changed "+text.Time(replica.Updated)+"; an upstream is not configured"
	case replica.Follower.Failing:
		a.State, a.Words, a.Detail, a.Command = warn, "upstream unreachable, retrying",
			text.OneLine(replica.Follower.LastError), "attestd replica status"
	case replica.Follower.LagSeconds == nil:
		a.State, a.Words, a.Detail = warn, "incomplete", text.Follower(*replica.Follower)
	default:
		lag := time.Duration(*replica.Follower.LagSeconds * float64(time.Second))
		a.State, a.Words = good, "up to date"
		a.Detail = fmt.Sprintf("%s behind %s", span(lag), s.Reads.Upstream)
	}
	return a
}

// isIndexed is isFresh for a replica that is filled from the chains.
func isIndexed(s wire.Status) answer {
	a := answer{Question: "Data", Page: "/indexer", State: good, Words: "indexed",
		Detail: "attestd reads the chains themselves"}
	for _, f := range s.Checks {
		if f.Check == "indexer" && f.State != health.OK {
			a.State, a.Words, a.Detail, a.Command = warn, "needs attention", f.Detail, "attestd indexer status"
			break
		}
	}
	return a
}

// short abbreviates an address or a hash to its first and last digits.
func short(hex string) string {
	if len(hex) < 16 {
		return hex
	}
	return hex[:8] + "…" + hex[len(hex)-6:]
}

// counted formats a number of things, such as "2 records".
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return text.Count(n) + " " + thing + "s"
}

// count is text.Count for integers of any type.
func count(n any) string {
	switch v := reflect.ValueOf(n); {
	case v.CanInt():
		return text.Count(v.Int())
	case v.CanUint():
		return text.Count(int64(min(v.Uint(), math.MaxInt64)))
	}
	return fmt.Sprint(n)
}

// span formats a duration, rounded down to a readable unit.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return "less than a second"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// sized formats a number of bytes.
func sized(bytes int64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, names := float64(bytes)/unit, []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	for value >= unit && len(names) > 1 {
		value, names = value/unit, names[1:]
	}
	return fmt.Sprintf("%.1f %s", value, names[0])
}
