package landing

import (
	"html/template"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// node is a part of an OpenAPI description. It keeps the order of the source. The zero node stands for a missing part.
type node struct{ *yaml.Node }

// named is a member of an object.
type named struct {
	node
	name string
}

func (n node) there() bool { return n.Node != nil }

func (n node) text() string {
	if !n.there() {
		return ""
	}
	return n.Value
}

// real follows a YAML alias.
func (n node) real() node {
	if n.there() && n.Kind == yaml.AliasNode {
		return node{n.Alias}
	}
	return n
}

func (n node) members() (all []named) {
	n = n.real()
	if !n.there() || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		all = append(all, named{node{n.Content[i+1]}.real(), n.Content[i].Value})
	}
	return all
}

func (n node) list() (all []node) {
	n = n.real()
	if !n.there() || n.Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.Content {
		all = append(all, node{c}.real())
	}
	return all
}

// at returns the node at a path of member names.
func (n node) at(path ...string) node {
	for _, name := range path {
		found := node{}
		for _, m := range n.members() {
			if m.name == name {
				found = m.node
			}
		}
		n = found
	}
	return n
}

// resolve follows a $ref.
func (d document) resolve(n node) node {
	if ref := n.at("$ref").text(); ref != "" {
		return d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	return n
}

// typeOf describes the type of a value, with a link to a named schema.
func (d document) typeOf(s node) template.HTML {
	if ref := s.at("$ref").text(); ref != "" {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		return template.HTML(`<a href="#schema-` + name + `">` + name + `</a>`)
	}
	var parts []string
	for _, part := range s.at("allOf").list() {
		if part.at("$ref").there() {
			parts = append(parts, string(d.typeOf(part)))
		}
	}
	kinds := []string{s.at("type").text()}
	for _, kind := range s.at("type").list() {
		kinds = append(kinds, kind.text())
	}
	what := template.HTMLEscapeString(strings.Join(strings.Fields(strings.Join(kinds, " ")), " or "))
	if items := s.at("items"); items.there() {
		what += " of " + string(d.typeOf(items))
	}
	for _, detail := range []string{"format", "contentEncoding"} {
		if text := s.at(detail).text(); text != "" {
			what += ", " + template.HTMLEscapeString(text)
		}
	}
	for _, detail := range []string{"pattern", "const"} {
		if text := s.at(detail).text(); text != "" {
			what += ` <code>` + template.HTMLEscapeString(text) + `</code>`
		}
	}
	if values := s.at("enum").list(); len(values) > 0 && len(values) < 10 { // longer lists are described in the text
		separator := ": "
		for _, v := range values {
			what += separator + "<code>" + template.HTMLEscapeString(v.text()) + "</code>"
			separator = ", "
		}
	}
	return template.HTML(strings.Join(append(parts, what), ", "))
}

var inCode = regexp.MustCompile("`([^`]+)`")

// inline renders one line of Markdown. The description uses only inline code.
func inline(s string) string {
	return inCode.ReplaceAllString(template.HTMLEscapeString(s), "<code>$1</code>")
}

// prose renders Markdown with paragraphs and tables.
func prose(s string) template.HTML {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		switch {
		case block == "":
		case strings.HasPrefix(block, "|"):
			table(&b, strings.Split(block, "\n"))
		default:
			b.WriteString("<p>" + inline(block) + "</p>")
		}
	}
	return template.HTML(b.String())
}

// table writes a Markdown table. It skips the second line, which only separates the header.
func table(b *strings.Builder, lines []string) {
	b.WriteString(`<div class="wide" tabindex="0" role="group" aria-label="Table"><table>`)
	for i, line := range lines {
		if i == 1 {
			continue
		}
		cell := "td"
		if i == 0 {
			cell = `th scope="col"`
		}
		b.WriteString("<tr>")
		for text := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|") {
			b.WriteString("<" + cell + ">" + inline(strings.TrimSpace(text)) + "</" + cell[:2] + ">")
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table></div>")
}
