package api_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v2"
	"go.yaml.in/yaml/v3"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
)

type openAPI struct {
	OpenAPI  string
	Paths    map[string]map[string]any
	Webhooks map[string]struct {
		Post struct {
			Parameters []struct{ Name string }
		}
	}
	Components struct {
		Schemas map[string]struct {
			Enum        []string
			Description string
			AllOf       []struct {
				If struct {
					Properties map[string]struct {
						Const events.Type
						Enum  []events.Type
					}
				}
			} `yaml:"allOf"`
		}
	}
}

func TestTheDescriptionIsServedAndComplete(t *testing.T) {
	t.Parallel()
	r := newRig(t, offerEvents(t, 1), func(o *api.Options) { o.Routes = readsOfTheDaemon() })
	a := r.do("GET", "/openapi.yaml", "")
	var doc openAPI
	r.must(yaml.Unmarshal(a.body, &doc))
	if doc.OpenAPI != "3.1.0" || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("OpenAPI %q as %s", doc.OpenAPI, a.header.Get("Content-Type"))
	}
	doc.checkRoutes(t, r.server.Routes())
	doc.checkCodes(t)
	checkReferences(t, a.body)
	var headers []string
	for _, p := range doc.Webhooks["event"].Post.Parameters {
		headers = append(headers, p.Name)
	}
	if want := []string{"webhook-id", "webhook-timestamp", "webhook-signature"}; !slices.Equal(headers, want) {
		t.Errorf("a webhook has the headers %q, want %q", headers, want)
	}
}

// The description has the data of each type of events once.
func TestEachTypeOfEventsIsDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("openapi.yaml")
	var doc openAPI
	if err == nil {
		err = yaml.Unmarshal(text, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	var described []events.Type
	for _, one := range doc.Components.Schemas["Event"].AllOf {
		if t := one.If.Properties["type"]; t.Const != "" {
			described = append(described, t.Const)
		} else {
			described = append(described, t.Enum...)
		}
	}
	slices.Sort(described)
	if !slices.Equal(described, events.Types()) {
		t.Errorf("described are %q, want %q", described, events.Types())
	}
}

func TestTheDescriptionIsCompressed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	whole := r.do("GET", "/openapi.yaml", "")
	if whole.header.Get("Content-Encoding") != "" || whole.header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("to a client that takes no coding: %v", whole.header)
	}
	for accept, want := range map[string]string{"zstd": "zstd", "gzip": "gzip", "br, zstd;q=0": "br", "gzip;q=0": ""} {
		coded := r.do("GET", "/openapi.yaml", "", "Accept-Encoding", accept)
		if got := coded.header.Get("Content-Encoding"); got != want || want != "" &&
			len(coded.body) > len(whole.body)/3 {
			t.Errorf("Accept-Encoding %s: %d of %d bytes in %q, want %q", accept, len(coded.body), len(whole.body), got,
				want)
		}
		if want == "br" { // our own clients do not decode br
			continue
		}
		body, err := coding.NewReader(want, bytes.NewReader(coded.body))
		r.must(err)
		decoded, err := io.ReadAll(body)
		if r.must(err); !bytes.Equal(decoded, whole.body) {
			t.Errorf("%s has %d other bytes", want, len(decoded))
		}
	}
}

// readsOfTheDaemon are the routes that package daemon adds, without the playground and the methods that only refuse.
func readsOfTheDaemon() []api.Route {
	ok := func(*fiber.Ctx) error { return nil }
	return []api.Route{
		{Method: "POST", Path: "/v1/graphql", Scope: appliance.ScopeGraphQL, Open: true, Handler: ok},
		{Method: "GET", Path: "/v1/graphql", Scope: appliance.ScopeGraphQL, Open: true, Handler: ok},
		{Method: "GET", Path: "/api/rest/health", Handler: ok},
	}
}

func (doc openAPI) checkRoutes(t *testing.T, served []api.Route) {
	t.Helper()
	parameter := regexp.MustCompile(`:(\w+)`)
	operations := 0
	for _, route := range served {
		path := strings.Replace(parameter.ReplaceAllString(route.Path, "{$1}"), "*", "{level}/{index}", 1)
		operation, has := doc.Paths[path][strings.ToLower(route.Method)].(map[string]any)
		if !has {
			t.Errorf("%s %s is served and not described", route.Method, path)
			continue
		}
		operations++
		if security, told := operation["security"].([]any); !told || (len(security) > 0) != (route.Scope != "" || route.AnyScope) {
			t.Errorf("%s %s: the security described is not the one served", route.Method, path)
		}
	}
	for path, methods := range doc.Paths {
		operations -= len(methods)
		if len(methods) == 0 {
			t.Errorf("%s has no operation", path)
		}
	}
	if operations != 0 {
		t.Errorf("%d operations are described and not served", -operations)
	}
}

func (doc openAPI) checkCodes(t *testing.T) {
	t.Helper()
	described := map[string]bool{}
	code := doc.Components.Schemas["Code"]
	for _, c := range code.Enum {
		described[c] = true
	}
	statuses := api.Statuses()
	delete(statuses, api.CodeReloadRefused) // only on the admin socket, for our own commands
	for c, status := range statuses {
		row := fmt.Sprintf("| %d | `%s` |", status, c)
		if !described[string(c)] || !strings.Contains(code.Description, row) {
			t.Errorf("code %s, status %d, is not described", c, status)
		}
	}
	if len(described) != len(statuses) {
		t.Errorf("%d codes are described, there are %d", len(described), len(statuses))
	}
}

func checkReferences(t *testing.T, doc []byte) {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal(doc, &tree); err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\$ref: '#/([^']+)'`).FindAllSubmatch(doc, -1) {
		var at any = tree
		for _, name := range strings.Split(string(m[1]), "/") {
			members, _ := at.(map[string]any)
			at = members[name]
		}
		if at == nil {
			t.Errorf("reference to nothing: %s", m[1])
		}
	}
}

func TestEveryCodeOfTheDomainHasAStatus(t *testing.T) {
	t.Parallel()
	for _, c := range domainCodes(t) {
		if api.Statuses()[c] == 0 {
			t.Errorf("%s has no status", c)
		}
	}
}

// domainCodes reads the constants of type Code from the source of package appliance, because Go cannot list them.
func domainCodes(t *testing.T) (codes []appliance.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../appliance/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, appliance.Code(text))
		}
		return true
	})
	if len(codes) < 20 {
		t.Fatalf("only %d codes found", len(codes))
	}
	return codes
}
