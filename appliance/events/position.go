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
func (p Position) String() string { return string(p.appendTo(nil)) }

// appendTo appends the position's text. It writes the query string itself, because each event has one for each stream.
func (p Position) appendTo(buf []byte) []byte {
	begun := len(buf)
	member := func(name string) {
		if len(buf) > begun {
			buf = append(buf, '&')
		}
		buf = append(append(buf, name...), '=')
	}
	number := func(name string, n int64) {
		member(name)
		buf = strconv.AppendInt(buf, n, 10)
	}
	log := func(name, log string) {
		member(name)
		buf = append(buf, url.QueryEscape(log)...)
	}
	if at := p.Journal; at.Log != "" {
		log(memberLog, at.Log)
		number(memberNext, at.Next)
		if at.Skip != nil {
			number(memberFrom, at.Skip.From)
			number(memberTo, at.Skip.To)
		}
	}
	if at := p.Changes; at.Log != "" {
		log(memberReplica, at.Log)
		number(memberChange, at.Next)
		number(memberSeen, p.Seen.UnixMilli())
	}
	return buf
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
