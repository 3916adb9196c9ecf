package follower

import (
	"strconv"
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// operation is a GraphQL operation under construction. Its text depends only on the shape of the parts, so an upstream
// that caches parsed documents need not parse it again. Values that differ between requests are variables.
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
	// requests have many of these: literal limits, of which only two values occur, and short names save a third of
	// their size
	case p.hash != "":
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

// size is how many rows are requested.
func (p part) size() int {
	if p.limit == 0 {
		return index.MaxLimit
	}
	return p.limit
}

// comparison writes a direction as a literal. It is a string, as published clients write it, unless the schema declares
// an enum.
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

// fragment returns the name of the fragment with the fields requested for each row.
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
