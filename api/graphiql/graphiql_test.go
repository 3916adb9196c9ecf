package graphiql

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gofiber/fiber/v2"
)

const script = "console.log('playground')"

// built returns files in the layout that build.mjs writes.
func built(t *testing.T) fstest.MapFS {
	t.Helper()
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write([]byte(script)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{
		"dist/.keep":                     {},
		"dist/index.html":                {Data: []byte(`<meta name="attestd-endpoint" content="{{endpoint}}">`)},
		"dist/assets/page-ABCD.js.gz":    {Data: zipped.Bytes()},
		"dist/assets/page-ABCD.js.br":    {Data: []byte("as brotli")},
		"dist/assets/halfway-ABCD.js.gz": {Data: zipped.Bytes()},
	}
}

type answer struct {
	status int
	header func(string) string
	body   string
}

func get(t *testing.T, files fstest.MapFS, target string, headers ...string) answer {
	t.Helper()
	app := fiber.New()
	playground := newHandler(files, Options{Endpoint: `/v1/graphql?a="b"`})
	app.Get("/graphiql", playground)
	app.Get("/graphiql/assets/*", playground)
	request := httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := app.Test(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header.Get, string(body)}
}

func TestPageNamesTheEndpointAndIsRevalidated(t *testing.T) {
	page := get(t, built(t), "/graphiql")
	if page.status != 200 || !strings.Contains(page.body, `content="/v1/graphql?a=&#34;b&#34;"`) {
		t.Fatalf("got %d: %s", page.status, page.body)
	}
	if got := page.header("Cache-Control"); got != "no-cache" {
		t.Errorf("Cache-Control: %s", got)
	}
	again := get(t, built(t), "/graphiql", "If-None-Match", `"other", W/`+page.header("ETag"))
	if again.status != 304 || again.body != "" {
		t.Errorf("with its ETag: got %d: %q", again.status, again.body)
	}
}

func TestBuildWithoutNodeSaysHowToGetThePlayground(t *testing.T) {
	files := fstest.MapFS{"dist/.keep": {}}
	page := get(t, files, "/graphiql")
	for _, want := range []string{"make playground", "/v1/graphql", "attestd playground"} {
		if !strings.Contains(page.body, want) {
			t.Errorf("the page does not mention %s", want)
		}
	}
	if strings.Contains(page.body, "{{") || strings.Contains(page.body, "<script") {
		t.Errorf("the page has a placeholder or a script:\n%s", page.body)
	}
	if got := get(t, files, "/graphiql/assets/page-ABCD.js").status; got != 404 {
		t.Errorf("asset: got %d", got)
	}
}

func TestAssetsAreSentAsTheClientReadsThem(t *testing.T) {
	for name, test := range map[string]struct{ accept, encoding string }{
		"browser over TLS":   {"gzip, deflate, br, zstd", "br"},
		"browser over HTTP":  {"gzip, deflate", "gzip"},
		"refuses brotli":     {"br;q=0, gzip;q=0.5", "gzip"},
		"prefers identity":   {"identity", ""},
		"says nothing":       {"", ""},
		"unknown encodings":  {"zstd, compress", ""},
		"upper case, spaces": {" BR ; q=0.1", "br"},
	} {
		t.Run(name, func(t *testing.T) {
			asset := get(t, built(t), "/graphiql/assets/page-ABCD.js", "Accept-Encoding", test.accept)
			if asset.status != 200 || asset.header("Content-Encoding") != test.encoding {
				t.Fatalf("got %d as %q", asset.status, asset.header("Content-Encoding"))
			}
			if test.encoding == "" && asset.body != script {
				t.Errorf("got %q", asset.body)
			}
			if got := asset.header("Content-Type"); got != "text/javascript; charset=utf-8" {
				t.Errorf("Content-Type: %s", got)
			}
			if got := asset.header("Cache-Control"); got != "public, max-age=31536000, immutable" {
				t.Errorf("Cache-Control: %s", got)
			}
			if got := asset.header("Vary"); got != "Accept-Encoding" {
				t.Errorf("Vary: %s", got)
			}
			again := get(t, built(t), "/graphiql/assets/page-ABCD.js",
				"Accept-Encoding", test.accept, "If-None-Match", asset.header("ETag"))
			if again.status != 304 {
				t.Errorf("with its ETag: got %d", again.status)
			}
		})
	}
}

func TestUnknownAssetsAreNotFound(t *testing.T) {
	for _, name := range []string{"none.js", "page-ABCD.js.gz", "halfway-ABCD.js", "../index.html",
		"%2e%2e/index.html"} {
		if got := get(t, built(t), "/graphiql/assets/"+name).status; got != 404 {
			t.Errorf("%s: got %d", name, got)
		}
	}
}

func TestEveryAnswerIsLockedDown(t *testing.T) {
	for _, target := range []string{"/graphiql", "/graphiql/assets/page-ABCD.js", "/graphiql/assets/none"} {
		got := get(t, built(t), target)
		policy := got.header("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "connect-src 'self'",
			"frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy lacks %s: %s", target, want, policy)
			}
		}
		if got.header("X-Content-Type-Options") != "nosniff" || got.header("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: nosniff or the referrer policy is missing", target)
		}
	}
}

// The embedded page has no inline script and loads no files from other hosts.
func TestEmbeddedPageLoadsOnlyItsOwnAssets(t *testing.T) {
	if !Built() {
		t.Skip("needs that the playground is built (make playground)")
	}
	page := newPage(dist, Options{Endpoint: "/v1/graphql"}).body
	for _, forbidden := range []string{"http:", "https:", "//", "{{", "<script>"} {
		if bytes.Contains(page, []byte(forbidden)) {
			t.Errorf("the page contains %s:\n%s", forbidden, page)
		}
	}
	assets := loadAssets(dist)
	for _, reference := range bytes.Split(page, []byte(`"/graphiql/assets/`))[1:] {
		name, _, _ := bytes.Cut(reference, []byte(`"`))
		if _, ok := assets[string(name)]; !ok {
			t.Errorf("the page refers to %s, which is not embedded", name)
		}
	}
}

// A browser that opens the endpoint, or the page with a trailing slash, is redirected to the page. Clients reach the
// endpoint.
func TestBrowsersAreLedToThePlayground(t *testing.T) {
	t.Parallel()
	app := fiber.New(fiber.Config{StrictRouting: true})
	app.Get("/graphiql/", Lead)
	app.All("/v1/graphql", LeadBrowsers(func(c *fiber.Ctx) error { return c.SendString("endpoint") }))
	for _, c := range []struct {
		method, url, accept string
		status              int
	}{
		{"GET", "/graphiql/", "text/html", 308},
		{"GET", "/v1/graphql", "text/html,application/xhtml+xml,*/*;q=0.8", 303},
		{"GET", "/v1/graphql?query={a}", "text/html", 200},
		{"GET", "/v1/graphql", "application/json", 200},
		{"GET", "/v1/graphql", "*/*", 200},
		{"POST", "/v1/graphql", "text/html", 200},
	} {
		request := httptest.NewRequest(c.method, c.url, nil)
		request.Header.Set("Accept", c.accept)
		answer, err := app.Test(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if to := answer.Header.Get("Location"); answer.StatusCode != c.status ||
			(c.status != 200) != (to == "/graphiql") {
			t.Errorf("%s %s for %s: %d to %q, want %d", c.method, c.url, c.accept, answer.StatusCode, to, c.status)
		}
	}
}
