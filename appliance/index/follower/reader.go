package follower

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/attestd/attestd/appliance/index"
)

// reader asks an upstream for rows. It knows, by introspection, which fields the upstream has. Its methods are safe for
// concurrent use; but for missing, they take discover to have succeeded.
type reader struct {
	upstream Upstream
	plan     atomic.Pointer[plan]
}

func newReader(upstream Upstream) *reader { return &reader{upstream: upstream} }

// discover reads the upstream's schema and settles what to ask for. It may be called again. An upstream that refuses
// introspection is taken to have all fields of the hosted schema.
//
// Errors: as Upstream.Query; appliance.CodeUpstreamUnavailable where the upstream has no packets or transfers, or they lack
// what no row can do without.
func (r *reader) discover(ctx context.Context) error {
	s, err := introspect(ctx, r.upstream)
	if err != nil {
		return err
	}
	p, err := newPlan(s)
	if err != nil {
		return err
	}
	r.plan.Store(p)
	return nil
}

// missing are the fields that the upstream lacks, as type.field, sorted; also a query of a small table (Query.v2_tokens), which
// then is empty. transfer.status is none of them: where it is lacking it is made from the packet's.
func (r *reader) missing() []string {
	if p := r.plan.Load(); p != nil {
		return p.missing
	}
	return nil
}

// part is one root field of a request.
type part struct {
	t *index.Type // PacketType or TransferType; for table, a small type
	// A page: limit rows from cursor on; an empty cursor means the newest, descending. Zero means index.MaxLimit.
	cursor    string
	direction index.Direction
	limit     int
	// With a hash: the packet of that hash, or its transfers, a page of them.
	hash string
	// here is the packet of that hash as it was, under way: of such, only what may have changed since is asked for. The zero row is none.
	here index.Row
	// plain asks for no decoded and decoded_flattened, which a look-up by hash else has.
	plain bool
	// brief asks for the fields that no row can do without and the status alone: rows that can be compared, not written.
	brief bool
	// flagged asks for the rows of a small table that pass its filter; see query.filter.
	flagged bool
}

// answer is what a part is answered with.
type answer struct {
	rows []index.Row // in the order of the upstream, those that cannot be read left out
	// orders are the sort_order of all rows of the answer, also of those that cannot be read, as the upstream gave them. Of
	// chains and tokens they are the universal_chain_id.
	orders []string
	count  int     // rows of the answer, those that cannot be read included
	bad    []error // why rows could not be read, each with its key where it has one
}

// counts are what the upstream says it has; both are zero where it does not say so of both.
type counts struct{ packets, transfers uint64 }

// maxParts is how many root fields a request has beside the counts: attestd allows 20 by default.
const maxParts = 18

// fetch asks for several parts, at most maxParts, in one request, and for the counts, which the upstream sees at one moment.
//
// decoded and decoded_flattened of packets are had from a look-up by hash alone, unless it is plain, and only where they cannot be
// made from data: on channels of another version than zkgm.ChannelVersion.
//
// Errors: as Upstream.Query; appliance.CodeUpstreamUnavailable for an answer that has not the form asked for.
func (r *reader) fetch(ctx context.Context, parts ...part) ([]answer, counts, error) {
	p := r.plan.Load()
	return r.ask(ctx, p, p.counts, parts)
}

func (r *reader) ask(ctx context.Context, p *plan, withCounts bool, parts []part) ([]answer, counts, error) {
	if len(parts) == 0 && !withCounts {
		return nil, counts{}, nil
	}
	o := newOperation()
	for i, part := range parts {
		o.add(alias(i), p.queries[part.t], part)
	}
	if withCounts {
		o.root.WriteString(" n:" + countQuery + "{name value}")
	}
	data, err := r.upstream.Query(ctx, o.text(), o.variables)
	if err != nil {
		return nil, counts{}, err
	}
	values, ok := members(data, len(parts)+1)
	if !ok {
		return nil, counts{}, answeredElse("an object", nil)
	}
	answers := make([]answer, len(parts))
	for i, part := range parts {
		if answers[i], err = p.queries[part.t].answer(part, values[alias(i)]); err != nil {
			return nil, counts{}, err
		}
	}
	if !withCounts {
		return answers, counts{}, nil
	}
	c, err := readCounts(values["n"])
	return answers, c, err
}

// alias is the response key of a part.
func alias(i int) string { return "p" + strconv.Itoa(i) }

// maxStats is how many counts an upstream may have; attestd has two.
const maxStats = 100

func readCounts(list []byte) (c counts, err error) {
	stats, ok := elements(list, maxStats)
	if !ok {
		return c, answeredElse("a list of "+countQuery, nil)
	}
	read := 0
	for _, stat := range stats {
		var s struct{ Name, Value string }
		if err := json.Unmarshal(stat, &s); err != nil {
			return c, answeredElse("a list of "+countQuery, err)
		}
		n, err := strconv.ParseUint(s.Value, 10, 64)
		switch {
		case err != nil:
			continue
		case s.Name == index.StatPackets:
			c.packets = n
		case s.Name == index.StatTransfers:
			c.transfers = n
		default:
			continue
		}
		read++
	}
	if read < 2 {
		return counts{}, nil
	}
	return c, nil
}

// mayGoOn reports whether there may be rows behind a page. An upstream may have shorter pages than were asked for, but none shorter
// than minLimit.
func mayGoOn(page answer) bool { return page.count >= minLimit }

// maxPages bounds how far a small table is read, against an upstream whose pages never end.
const maxPages = 1000

// table returns all rows of one of the small types: ChainType, TokenType, ClientType, ConnectionType, ChannelType. Rows
// that cannot be read are left out and returned as errors. Members that GraphQL does not show are found by filters
// (whitelist, recommended) and relations (universal_chain_id of nested objects).
//
// Errors: as fetch.
func (r *reader) table(ctx context.Context, t *index.Type) (rows []index.Row, bad []error, err error) {
	p := r.plan.Load()
	q, ok := p.queries[t]
	if !ok {
		return nil, nil, nil // see missing
	}
	seen := make(map[string]bool)
	page := part{t: t}
	for range maxPages {
		got, err := r.tablePage(ctx, p, q, page)
		if err != nil {
			return nil, nil, err
		}
		before := len(rows)
		for _, row := range got.rows {
			if key := row.Key(); !seen[key] {
				seen[key] = true
				rows = append(rows, row)
			}
		}
		bad = append(bad, got.bad...)
		repeats := len(rows) == before && len(got.rows) > 0
		if !q.takes(argCursor) || !mayGoOn(got) || repeats || len(got.orders) == 0 || got.orders[len(got.orders)-1] == page.cursor {
			return rows, bad, nil
		}
		page.cursor = got.orders[len(got.orders)-1]
	}
	return rows, append(bad, fmt.Errorf("%s: more than %d pages; the others are not read", q.name, maxPages)), nil
}

// tablePage reads a page of a small table, and in the same request which of its rows pass the filter. Of those that pass there
// is a page from the same cursor on, which reaches at least as far.
func (r *reader) tablePage(ctx context.Context, p *plan, q *query, page part) (answer, error) {
	parts := []part{page}
	if q.filter != "" {
		flagged := page
		flagged.flagged = true
		parts = append(parts, flagged)
	}
	answers, _, err := r.ask(ctx, p, false, parts)
	if err != nil {
		return answer{}, err
	}
	got := answers[0]
	if q.filter == "" {
		return got, nil
	}
	passes := make(map[string]bool)
	for _, row := range answers[1].rows {
		passes[row.Key()] = true
	}
	for i, row := range got.rows {
		object := []byte(`{"` + q.flag + `":` + strconv.FormatBool(passes[row.Key()]) + `,`)
		if got.rows[i], err = index.ParseRow(q.t, append(object, row.AppendObject(nil)[1:]...)); err != nil {
			return answer{}, err
		}
	}
	return got, nil
}
