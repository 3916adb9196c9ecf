package landing

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed reference.html
var referenceHTML string

var reference = template.Must(template.New("reference").Parse(referenceHTML))

// group holds the operations with one tag.
type group struct {
	Name       string
	Text       template.HTML
	Operations []operation
}

// operation is one method of one path.
type operation struct {
	ID, Method, Path string
	Summary, Access  string
	Text             template.HTML
	Example          string
	Parameters       []member
	Body             *member // nil without a body
	Answers          []member
}

// member is a row of a table: a parameter, an answer, or a member of an object.
type member struct {
	Name, In string
	Required bool
	Type     template.HTML
	Text     template.HTML
}

// schema is a body, or a part of one.
type schema struct {
	member
	Members []member
}

// Reference renders an OpenAPI description as an HTML page.
func Reference(description []byte) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(description, &root); err != nil {
		return nil, fmt.Errorf("OpenAPI: %w", err)
	}
	d := document{node{root.Content[0]}}
	var b bytes.Buffer
	err := reference.Execute(&b, struct {
		Style   template.CSS
		Icon    template.HTML
		Version string
		Text    template.HTML
		Groups  []group
		Schemas []schema
	}{template.CSS(style), icon(), d.at("openapi").text(), prose(d.at("info", "description").text()), d.groups(),
		d.schemas()})
	return b.Bytes(), err
}

// document is our own description, which is known to be well-formed.
type document struct{ node }

func (d document) groups() (all []group) {
	for _, tag := range d.at("tags").list() {
		g := group{Name: tag.at("name").text(), Text: prose(tag.at("description").text())}
		for _, path := range d.at("paths").members() {
			for _, method := range path.members() {
				if method.at("tags").list()[0].text() == g.Name {
					g.Operations = append(g.Operations, d.operation(path.name, method))
				}
			}
		}
		all = append(all, g)
	}
	return all
}

func (d document) operation(path string, o named) operation {
	made := operation{
		ID: o.at("operationId").text(), Method: strings.ToUpper(o.name), Path: path,
		Summary: o.at("summary").text(), Access: access(o.at("security").list()),
		Text: prose(o.at("description").text()),
	}
	for _, p := range o.at("parameters").list() {
		p = d.resolve(p)
		made.Parameters = append(made.Parameters, member{
			Name: p.at("name").text(), In: p.at("in").text(), Required: p.at("required").text() == "true",
			Type: d.typeOf(p.at("schema")), Text: prose(p.at("description").text()),
		})
	}
	if body := o.at("requestBody"); body.there() {
		made.Body = &member{Type: d.contentOf(body), Text: prose(body.at("description").text())}
	}
	for _, answer := range o.at("responses").members() {
		resolved := d.resolve(answer.node)
		made.Answers = append(made.Answers,
			member{Name: answer.name, Type: d.contentOf(resolved), Text: prose(resolved.at("description").text())})
	}
	made.Example = d.example(made, o)
	return made
}

// access describes whether an operation needs an API key.
func access(security []node) string {
	switch len(security) {
	case 0:
		return "No API key is required."
	case 1:
		return "Requires an API key in the header x-api-key."
	}
	return "An API key in the header x-api-key is optional, unless the configuration requires one."
}

// contentOf returns the type of a body. If a body has several media types, they share one schema, so the first
// suffices.
func (d document) contentOf(n node) template.HTML {
	for _, form := range n.at("content").members() {
		return template.HTML("<code>" + template.HTMLEscapeString(form.name) + "</code> " +
			string(d.typeOf(form.at("schema"))))
	}
	return ""
}

// example returns a curl command that sends the request.
func (d document) example(o operation, n named) string {
	var b strings.Builder
	fmt.Fprintf(&b, "curl -sS 'https://attestd.example.com%s'",
		strings.NewReplacer("{level}/{index}", "0/000", "{id}", "0198c1f2-7a3b-7def-8123-456789abcdef").Replace(o.Path))
	if o.ID == "queryByGet" {
		b.WriteString(" --get --data-urlencode 'query={ v2_stats_count { name value } }'")
	}
	if len(n.at("security").list()) == 1 {
		b.WriteString(" \\\n  -H \"x-api-key: $(cat api-key)\"")
	}
	if form := n.at("requestBody", "content", "application/json"); form.there() {
		body := d.sample(form.at("schema"))
		if given := form.at("example"); given.there() {
			_ = given.Decode(&body) // our own example; a test checks each of them
		}
		text, _ := json.Marshal(body) // strings, numbers and objects of them: cannot fail
		fmt.Fprintf(&b, " \\\n  -H 'content-type: application/json' -d '%s'", text)
	}
	return b.String()
}

// sample returns a value of a schema with only its required members.
func (d document) sample(s node) any {
	s = d.resolve(s)
	if given := s.at("examples").list(); len(given) > 0 {
		return given[0].text()
	}
	object := make(map[string]any)
	for _, name := range s.at("required").list() {
		object[name.text()] = d.sample(s.at("properties", name.text()))
	}
	return object
}

func (d document) schemas() (all []schema) {
	for _, s := range d.at("components", "schemas").members() {
		made := schema{member: member{Name: s.name, Type: d.typeOf(s.node), Text: prose(s.at("description").text())}}
		for _, part := range append(s.at("allOf").list(), s.node) {
			made.Members = append(made.Members, d.membersOf(part)...)
		}
		all = append(all, made)
	}
	return all
}

func (d document) membersOf(s node) (all []member) {
	required := make(map[string]bool)
	for _, name := range s.at("required").list() {
		required[name.text()] = true
	}
	for _, p := range s.at("properties").members() {
		all = append(all, member{Name: p.name, Required: required[p.name], Type: d.typeOf(p.node),
			Text: prose(p.at("description").text())})
	}
	return all
}
