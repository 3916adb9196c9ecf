package follower

import (
	"strconv"
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// operation is a GraphQL operation being put together. Its text depends on the shape of the parts alone, so that an upstream
// that keeps parsed documents has it parsed already; what differs from request to request is in the variables.
type operation struct {
	declared, root, fragments strings.Builder
	defined                   map[string]bool // names of fragments
	variables                 map[string]any
}

func newOperation() *operation {
	return &operation{defined: make(map[string]bool), variables: make(map[string]any)}
}

// text returns the document.
func (o *operation) text() string {
	declared := ""
	if o.declared.Len() > 0 {
		declared = "(" + o.declared.String() + ")"
	}
	return "query Follow" + declared + "{" + o.root.String() + "}" + o.fragments.String()
}

// add adds a root field.
func (o *operation) add(alias string, q *query, p part) {
	o.root.WriteString(" " + alias + ":" + q.name)
	if args := o.args(alias, q, p); len(args) > 0 {
		o.root.WriteString("(args:{" + strings.Join(args, " ") + "})")
	}
	o.root.WriteString("{..." + o.fragment(q, p) + "}")
}

func (o *operation) args(alias string, q *query, p part) (args []string) {
	variable := func(arg, name, kind string, value any) {
		o.declared.WriteString("$" + name + ":" + kind + "! ")
		o.variables[name] = value
		args = append(args, arg+":$"+name)
	}
	switch {
	case p.hash != "": // of which there are many in a request: their limits, of which there are two, and short names make it a third smaller
		args = append(args, argLimit+":"+strconv.Itoa(p.size()))
		variable(argHash, alias, "String", p.hash)
	case q.takes(argLimit):
		variable(argLimit, alias+"_limit", "Int", p.size())
	}
	if p.cursor != "" {
		variable(argCursor, alias+"_from", "String", p.cursor)
		args = append(args, argComparison+":"+q.comparison(p.direction))
	}
	if p.flagged {
		args = append(args, q.filter+":true")
	}
	return args
}

// size is how many rows are asked for.
func (p part) size() int {
	if p.limit == 0 {
		return index.MaxLimit
	}
	return p.limit
}

// comparison writes a direction as a literal. It is text where the upstream does not say that it is an enum: so the published
// clients write it.
func (q *query) comparison(d index.Direction) string {
	text := "lt"
	if d == index.Newer {
		text = "gt"
	}
	if q.args[argComparison].enum {
		return text
	}
	return strconv.Quote(text)
}

// fragment returns the name of the fragment with what is asked of each row.
func (o *operation) fragment(q *query, p part) string {
	name, selection := q.t.Name, q.page
	switch {
	case p.brief || p.flagged:
		name, selection = name+"_brief", q.brief
	case !p.here.IsZero():
		name, selection = name+"_onward", q.onward
	case p.hash != "" && !p.plain && q.lookup != q.page:
		name, selection = name+"_lookup", q.lookup
	}
	if !o.defined[name] {
		o.defined[name] = true
		o.fragments.WriteString(" fragment " + name + " on " + q.rows + "{" + selection + "}")
	}
	return name
}
