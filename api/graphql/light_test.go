package graphql_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/api/graphql"
)

const (
	pageOf50       = `{ v2_transfers(args: {p_limit: 50}) { packet_hash sender_canonical receiver_canonical base_amount sort_order } }`
	cachedPageOf50 = `query @cached(ttl: 60) ` + pageOf50
)

func decoded(t *testing.T, name, body string) string {
	t.Helper()
	var r io.Reader = strings.NewReader(body)
	var err error
	switch name {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "zstd":
		r, err = zstd.NewReader(r)
	case "br":
		r = brotli.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(text)
}

func TestAnswersAreCompressedAsTheClientAccepts(t *testing.T) {
	s := newServer(t, graphql.Options{})
	p, _ := newProxy(t, graphql.Options{})
	for server, s := range map[string]*server{"index": s, "proxy": p} {
		for _, query := range []string{pageOf50, cachedPageOf50} {
			plain := s.post(t, query, "", "Accept-Encoding", "identity")
			for accept, want := range map[string]string{
				"identity": "", "deflate": "", "gzip": "gzip", "br": "br", "zstd": "zstd", "gzip;q=0.1, br": "br",
				"gzip, br, zstd": "zstd",
				"zstd;q=0, gzip": "gzip", "identity;q=0, br": "br", "*": "zstd",
			} {
				got := s.post(t, query, "", "Accept-Encoding", accept)
				name := got.header.Get("Content-Encoding")
				if name != want || decoded(t, name, got.body) != plain.body || want != "" &&
					len(got.body) > len(plain.body)/2 {
					t.Errorf("%s, %.20s, %s: %q, %d bytes of %d", server, query, accept, name, len(got.body),
						len(plain.body))
				}
				if vary := got.header.Values("Vary"); len(vary) != 1 || vary[0] != "Accept, Accept-Encoding" {
					t.Errorf("%s, %.20s, %s: Vary is %q", server, query, accept, vary)
				}
			}
		}
	}
	until(t, "nothing is held", func() bool { return s.e.HeldBytes() == 0 })
}

func TestSmallAnswersAreNotCompressed(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for accept, want := range map[string]string{"gzip": "", "gzip, identity;q=0": "gzip"} {
		for _, query := range []string{`{ __typename }`, `query @cached(ttl: 60) { __typename }`} {
			got := s.post(t, query, "", "Accept-Encoding", accept)
			if name := got.header.Get("Content-Encoding"); name != want ||
				!strings.Contains(decoded(t, name, got.body), "__typename") {
				t.Errorf("%s: %q %q", accept, name, got.body)
			}
		}
	}
	for _, accept := range []string{"identity;q=0", "*;q=0", "identity;q=0, deflate"} {
		if got := s.post(t, pageOf50, "", "Accept-Encoding", accept); got.status != 406 ||
			got.code(t) != "not_acceptable" {
			t.Errorf("%s: %d %.100s", accept, got.status, got.body)
		}
	}
}

func TestAKeptAnswerIsCompressedOnce(t *testing.T) {
	s := newServer(t, graphql.Options{})
	s.post(t, cachedPageOf50, "", "Accept-Encoding", "identity")
	before := s.e.CachedBytes()
	first := s.post(t, cachedPageOf50, "", "Accept-Encoding", "zstd")
	after := s.e.CachedBytes()
	if after <= before {
		t.Errorf("the compressed answer is not kept: %d bytes, then %d", before, after)
	}
	for range 3 {
		if again := s.post(t, cachedPageOf50, "", "Accept-Encoding", "zstd"); again.body != first.body {
			t.Error("it is another one")
		}
	}
	if now := s.e.CachedBytes(); now != after {
		t.Errorf("it was kept again: %d bytes, then %d", after, now)
	}
}

func TestAnAnswerThatTheClientHasIsNotSentAgain(t *testing.T) {
	s := newServer(t, graphql.Options{})
	get := func(query string, header ...string) answer {
		return s.do(t, "GET", "/v1/graphql?query="+url.QueryEscape(query), "", header...)
	}
	post := func(query string, header ...string) answer { return s.post(t, query, "", header...) }
	for name, ask := range map[string]func(header ...string) answer{
		"GET":          func(h ...string) answer { return get(pageOf50, h...) },
		"GET, cached":  func(h ...string) answer { return get(cachedPageOf50, h...) },
		"POST, cached": func(h ...string) answer { return post(cachedPageOf50, h...) },
		"POST, if asked": func(h ...string) answer {
			if len(h) == 2 {
				h = append(h, "If-None-Match", `"-"`)
			}
			return post(pageOf50, h...)
		},
	} {
		plain, small := ask("Accept-Encoding", "identity"), ask("Accept-Encoding", "gzip")
		tag := plain.header.Get("ETag")
		if !strings.HasPrefix(tag, `"`) || small.header.Get("ETag") != "W/"+tag {
			t.Errorf("%s: ETag %q, compressed %q", name, tag, small.header.Get("ETag"))
		}
		for _, asked := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			for accept, answer := range map[string]answer{"gzip": small, "identity": plain} {
				got := ask("Accept-Encoding", accept, "If-None-Match", asked)
				if got.status != 304 || got.body != "" || got.header.Get("ETag") != answer.header.Get("ETag") ||
					got.header.Get("Vary") == "" || got.header.Get("Cache-Control") == "" {
					t.Errorf("%s, %s, If-None-Match %s: %d %v", name, accept, asked, got.status, got.header)
				}
			}
		}
		if got := ask("Accept-Encoding", "identity", "If-None-Match", `"other"`); got.status != 200 ||
			got.body != plain.body {
			t.Errorf("%s, another tag: %d", name, got.status)
		}
	}
	if got := post(pageOf50, "Accept-Encoding", "identity"); got.header.Get("ETag") != "" ||
		got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a POST that does not ask: %v", got.header)
	}
	if got := get(`{ nothing }`); got.header.Get("ETag") != "" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("errors: %v", got.header)
	}
	until(t, "nothing is held", func() bool { return s.e.HeldBytes() == 0 })
}

// A proxy may split a list header into several lines.
func TestListsInSeveralLinesAreReadWhole(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for _, query := range []string{pageOf50, cachedPageOf50} {
		target := s.url + "/v1/graphql?query=" + url.QueryEscape(query)
		ask := func(lines http.Header) answer {
			req, err := http.NewRequest("GET", target, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = lines
			resp, err := s.client.Do(req)
			return read(t, resp, err)
		}
		first := ask(http.Header{"Accept-Encoding": {"deflate", "br;q=0.5, gzip"},
			"Accept": {"text/html", mediaGraphQL}})
		if first.status != 200 || first.header.Get("Content-Encoding") != "gzip" ||
			!strings.HasPrefix(first.header.Get("Content-Type"), mediaGraphQL) {
			t.Errorf("%.20s: %d %v", query, first.status, first.header)
		}
		if again := ask(http.Header{"If-None-Match": {`"other"`, first.header.Get("ETag")}}); again.status != 304 {
			t.Errorf("%.20s: %d, want 304", query, again.status)
		}
	}
}

// If answers require a key, shared caches must not serve them to other clients.
func TestAnswersForKeysArePrivate(t *testing.T) {
	s := newServer(t, graphql.Options{RequireKey: true})
	got := s.post(t, cachedPageOf50, "")
	if got.header.Get("Cache-Control") != "private, max-age=60" ||
		got.header.Get("Vary") != "Accept, Accept-Encoding, X-Api-Key" {
		t.Errorf("@cached: %v", got.header)
	}
	got = s.do(t, "GET", "/v1/graphql?query="+url.QueryEscape(pageOf50), "")
	if got.header.Get("Cache-Control") != "private, no-cache" ||
		got.header.Get("Vary") != "Accept, Accept-Encoding, X-Api-Key" {
		t.Errorf("GET: %v", got.header)
	}
}

func BenchmarkCompress(b *testing.B) {
	s := newServer(b, graphql.Options{})
	const page = `{ v2_transfers(args: {p_limit: 100}) { packet_hash sender_canonical receiver_canonical base_amount sort_order status source_universal_chain_id destination_universal_chain_id traces { type height transaction_hash timestamp universal_chain_id } } }`
	plain := s.e.Execute(page, "")
	for _, name := range []string{"gzip", "zstd", "br"} {
		b.Run(name, func(b *testing.B) {
			coded := 0
			for b.Loop() {
				coded = s.e.Compress(plain, name)
			}
			b.ReportMetric(float64(len(plain)), "plain-B")
			b.ReportMetric(float64(coded), "coded-B")
		})
	}
}
