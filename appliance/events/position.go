package events

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/sinks"
)

// Position is how far a reader has read both logs of events. Its text is the id of a server-sent event, with which a
// client continues at any appliance of a cluster.
type Position struct {
	Journal sinks.Cursor // zero means from now on
	// Changes is the position in the changes of the replica, which is named by its index.Status.ID. Zero means from now
	// on.
	Changes sinks.Cursor
	// Seen is the time of the newest change that the reader has. A reader of another replica, whose numbers differ,
	// continues by it.
	Seen time.Time
}

// Names of the members of a position's text, which is a query string (URL Standard).
const (
	memberLog     = "log"
	memberNext    = "next"
	memberFrom    = "from"
	memberTo      = "to"
	memberReplica = "replica"
	memberChange  = "change"
	memberSeen    = "seen" // milliseconds since 1970
)

// String returns the position's text, in ASCII.
func (p Position) String() string {
	v := make(url.Values, 4)
	if at := p.Journal; at.Log != "" {
		v.Set(memberLog, at.Log)
		v.Set(memberNext, strconv.FormatInt(at.Next, 10))
		if at.Skip != nil {
			v.Set(memberFrom, strconv.FormatInt(at.Skip.From, 10))
			v.Set(memberTo, strconv.FormatInt(at.Skip.To, 10))
		}
	}
	if at := p.Changes; at.Log != "" {
		v.Set(memberReplica, at.Log)
		v.Set(memberChange, strconv.FormatInt(at.Next, 10))
		v.Set(memberSeen, strconv.FormatInt(p.Seen.UnixMilli(), 10))
	}
	return v.Encode()
}

// ParsePosition reads a position's text. The empty text is the zero Position.
//
// Errors: CodeInvalidField, of Last-Event-ID.
func ParsePosition(text string) (p Position, err error) {
	v, err := url.ParseQuery(text)
	number := func(name string) (n int64) {
		if v.Get(name) == "" || err != nil {
			return 0
		}
		if n, err = strconv.ParseInt(v.Get(name), 10, 64); err == nil && n < 0 {
			err = fmt.Errorf("%s is negative", name)
		}
		return n
	}
	p.Journal = sinks.Cursor{Log: v.Get(memberLog), Next: number(memberNext)}
	if v.Has(memberTo) {
		p.Journal.Skip = &sinks.Span{From: number(memberFrom), To: number(memberTo)}
	}
	p.Changes = sinks.Cursor{Log: v.Get(memberReplica), Next: number(memberChange)}
	p.Seen = time.UnixMilli(number(memberSeen)).UTC()
	if err != nil || text != "" && p.Journal.Log == "" && p.Changes.Log == "" {
		return Position{}, appliance.Errorf(appliance.CodeInvalidField,
			"must be the id of an event of this stream").In("Last-Event-ID")
	}
	return p, nil
}
