package follower

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/attestd/attestd/appliance/index"
)

// reader asks an upstream for rows, limited to the fields that introspection has shown. Its methods are safe for
// concurrent use. discover must succeed before any other method except missing is called.
type reader struct {
	upstream Upstream
	plan     atomic.Pointer[plan]
}

func newReader(upstream Upstream) *reader { return &reader{upstream: upstream} }

// discover reads the upstream's schema and plans the queries. It may be called again. If the upstream refuses
// introspection, it is assumed to have every field of the hosted schema.
//
// Errors: as Upstream.Query; appliance.CodeUpstreamUnavailable if the upstream lacks packets, transfers, or a field or
// argument that reading them requires.
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

// missing returns the fields that the upstream lacks, as type.field, sorted. It includes the query of a small table
// that the upstream lacks (Query.v2_tokens); such a table stays empty. It omits transfer.status, which is computed from
// the packet if the upstream lacks it.
func (r *reader) missing() []string {
	if p := r.plan.Load(); p != nil {
		return p.missing
	}
	return nil
}

// part is one root field of a request.
type part struct {
	t *index.Type // PacketType or TransferType; in table, a small type
	// A page: limit rows after cursor. An empty cursor means the newest page, descending. A zero limit means
	// index.MaxLimit.
	cursor    string
	direction index.Direction
	limit     int
	// If hash is set, the part asks for the packet with this hash, or for a page of its transfers.
	hash string
	// here is the packet as the index has it, in progress: only fields that may have changed are requested. The zero
	// row requests all.
	here index.Row
	// plain omits decoded and decoded_flattened, which a lookup by hash otherwise requests.
	plain bool
	// brief requests only the required fields and the status. Such rows can be compared but not written.
	brief bool
	// flagged asks for the rows of a small table that pass its filter; see query.filter.
	flagged bool
}

// answer is the answer to a part.
type answer struct {
	rows []index.Row // in the upstream's order, without unreadable rows
	// orders are the sort_orders of all rows, including unreadable ones, as the upstream sent them. For types without a
	// sort_order they are the first key column (universal_chain_id of chains and tokens).
	orders []string
	count  int     // number of rows, including unreadable ones
	bad    []error // why rows could not be read, with the row's key if it is known
}

// counts are the upstream's own counts; both are zero unless the upstream reports both.
type counts struct{ packets, transfers uint64 }

// maxParts is how many root fields a request has in addition to the counts. attestd allows 20 by default.
const maxParts = 18

// fetch asks for at most maxParts parts in one request, and for the counts, which the upstream takes at one moment.
//
// Packets have decoded and decoded_flattened only if they were looked up by hash without plain, and only on channels of
// a version other than zkgm.ChannelVersion. On zkgm.ChannelVersion both can be computed from data.
//
// Errors: as Upstream.Query; appliance.CodeUpstreamUnavailable for an answer of the wrong form.
func (r *reader) fetch(ctx context.Context, parts ...part) ([]answer, counts, error) {
	p := r.plan.Load()
	return r.query(ctx, p, p.counts, parts)
}

func (r *reader) query(ctx context.Context, p *plan, withCounts bool, parts []part) ([]answer, counts, error) {
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

// maxStats is how many counts an upstream may report; attestd reports two.
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

// mayGoOn reports whether there may be rows after a page. An upstream may have shorter pages than were asked for, but
// none shorter than minLimit.
func mayGoOn(page answer) bool { return page.count >= minLimit }

// maxPages bounds how far a small table is read, against an upstream whose pages never end.
const maxPages = 1000

// table returns all rows of a small type: ChainType, TokenType, ClientType, ConnectionType or ChannelType. Unreadable
// rows are left out and returned as errors. Fields that GraphQL does not show are found by filters (whitelist,
// recommended) and relations (universal_chain_id of nested objects).
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
		if !q.takes(argCursor) || !mayGoOn(got) || repeats || len(got.orders) == 0 ||
			got.orders[len(got.orders)-1] == page.cursor {
			return rows, bad, nil
		}
		page.cursor = got.orders[len(got.orders)-1]
	}
	return rows, append(bad, fmt.Errorf("%s: more than %d pages; further pages are skipped", q.name, maxPages)), nil
}

// tablePage reads a page of a small table and, in the same request, which of its rows pass the filter. The page of rows
// that pass starts at the same cursor and reaches at least as far.
func (r *reader) tablePage(ctx context.Context, p *plan, q *query, page part) (answer, error) {
	parts := []part{page}
	if q.filter != "" {
		flagged := page
		flagged.flagged = true
		parts = append(parts, flagged)
	}
	answers, _, err := r.query(ctx, p, false, parts)
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
