package followertest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

const said = `{"data":{"v2_stats_count":[{"name":"total_transfers","value":"12"}]}}`

// target answers every POST with said, and records the requests.
func target(t *testing.T) (url string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, r.URL.RequestURI()+" "+r.Header.Get("X-Api-Key")+" "+string(body))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, said)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1/graphql", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return bodies
	}
}

// got is a response as the client received it.
type got struct {
	status int
	header http.Header
	body   string
	err    error // of the request, or of reading the body
}

// post sends a request that accepts gzip only if a header says so.
func post(t *testing.T, client *http.Client, url, body string, header ...string) (g got) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(read), err}
}

// postUntil posts as a client that disconnects when the context ends.
func postUntil(ctx context.Context, t *testing.T, url string) got {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader("{}"))
	if err != nil {
		return got{err: err}
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := newClient(t).Do(req)
	if err != nil {
		return got{err: err}
	}
	return got{status: resp.StatusCode, err: resp.Body.Close()}
}

// newClient returns a client without automatic compression.
func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestAProxyForwardsWhatItIsSent(t *testing.T) {
	url, asked := target(t)
	p := followertest.NewProxy(t, url)
	client := newClient(t)
	for range 3 {
		if g := post(t, client, p.URL()+"?a=1", "{}", "X-Api-Key", "k"); g.err != nil || g.status != 200 || g.body != said || g.header.Get("Content-Type") != "application/json" {
			t.Fatalf("%+v", g)
		}
	}
	if all := asked(); len(all) != 3 || all[2] != "/v1/graphql?a=1 k {}" {
		t.Errorf("the target was asked %q", all)
	}
	c := p.Counts()
	if c.Requests != 3 || c.Connections != 1 || c.MostAtOnce != 1 || c.Gzip != 0 || c.BytesIn < 6 || c.BytesOut < int64(3*len(said)) {
		t.Errorf("%+v", c)
	}
}

func TestAProxyCompressesForThoseWhoTakeIt(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	client := newClient(t)
	g := post(t, client, p.URL(), "{}", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(g.body))
	if err != nil || g.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v, %+v", err, g)
	}
	if plain, err := io.ReadAll(z); err != nil || string(plain) != said {
		t.Errorf("%s, %v", plain, err)
	}
	p.Compress(false)
	if g := post(t, client, p.URL(), "{}", "Accept-Encoding", "gzip"); g.body != said {
		t.Errorf("%+v", g)
	}
	if c := p.Counts(); c.Gzip != 2 {
		t.Errorf("%+v", c)
	}
	p.CheckManners(t)
}

func TestEachFaultIsSeenByAClient(t *testing.T) {
	url, asked := target(t)
	graphQL := func(g got) bool {
		var r struct{ Errors []struct{ Message string } }
		return g.err == nil && g.status == 200 && json.Unmarshal([]byte(g.body), &r) == nil && len(r.Errors) == 1
	}
	status := func(code int, retryAfter string) func(got) bool {
		return func(g got) bool { return g.err == nil && g.status == code && g.header.Get("Retry-After") == retryAfter }
	}
	whole := func(g got) bool { return g.err == nil && g.status == 200 && !json.Valid([]byte(g.body)) }
	for _, test := range []struct {
		fault followertest.Fault
		seen  func(got) bool
	}{
		{followertest.Delay(time.Millisecond, time.Millisecond), func(g got) bool { return g.err == nil && g.body == said }},
		{followertest.Cut(), func(g got) bool { return errors.Is(g.err, io.EOF) && g.status == 0 }},
		{followertest.CutInBody(), func(g got) bool {
			return errors.Is(g.err, io.ErrUnexpectedEOF) && g.status == 200 && strings.HasPrefix(said, g.body) && g.body != "" && g.body != said
		}},
		{followertest.Status(429), status(429, "")},
		{followertest.Status(429).RetryAfter(1500 * time.Millisecond), status(429, "2")},
		{followertest.Status(429).RetryAfterDate(time.Hour), func(g got) bool {
			at, err := http.ParseTime(g.header.Get("Retry-After"))
			return err == nil && g.status == 429 && time.Until(at) > 59*time.Minute && time.Until(at) <= time.Hour+time.Second
		}},
		{followertest.Status(500), status(500, "")},
		{followertest.Status(503).RetryAfter(time.Second), status(503, "1")},
		{followertest.Truncated(), func(g got) bool { return whole(g) && strings.HasPrefix(said, g.body) && g.body != "" }},
		{followertest.TornGzip(), whole},
		{followertest.Malformed(), func(g got) bool { return whole(g) && len(g.body) == len(said) }},
		{followertest.Empty(), func(g got) bool { return whole(g) && g.body == "" }},
		{followertest.HTML(), func(g got) bool { return whole(g) && strings.HasPrefix(g.header.Get("Content-Type"), "text/html") }},
		{followertest.GraphQLError("X"), func(g got) bool {
			return graphQL(g) && strings.Contains(g.body, `"code":"X"`) && !strings.Contains(g.body, "data")
		}},
		{followertest.PartialData(), func(g got) bool { return graphQL(g) && strings.Contains(g.body, `"total_transfers"`) }},
	} {
		t.Run(test.fault.Name, func(t *testing.T) {
			p := followertest.NewProxy(t, url)
			client := newClient(t)
			p.Fail(test.fault)
			if g := post(t, client, p.URL(), "{}"); !test.seen(g) {
				t.Errorf("seen: %+v", g)
			}
			p.Heal()
			if g := post(t, client, p.URL(), "{}"); g.err != nil || g.body != said {
				t.Errorf("healed: %+v", g)
			}
			if x := p.Exchanges(); len(x) != 2 || x[0].Fault != test.fault.Name || x[1].Fault != "" || p.Faults() != 1 || x[0].GaveUp {
				t.Errorf("noted: %+v", x)
			}
		})
	}
	if len(asked()) == 0 {
		t.Error("the target was never asked")
	}
}

func TestTornGzipIsNeitherWholeNorJSON(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	p.Fail(followertest.TornGzip())
	g := post(t, newClient(t), p.URL(), "{}", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(g.body))
	if err != nil {
		t.Fatalf("%v, %+v", err, g)
	}
	if _, err := io.ReadAll(z); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read to the end: %v", err)
	}
}

func TestFaultsHappenAsOftenAsTold(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	client := newClient(t)
	failures := func(seed uint64) (pattern string) {
		p.Seed(seed)
		p.Fail(followertest.Status(500).Sometimes(0.3), followertest.Truncated().Sometimes(0.1))
		for range 100 {
			g := post(t, client, p.URL(), "{}")
			pattern += map[bool]string{true: ".", false: "x"}[g.body == said]
		}
		return pattern
	}
	first := failures(7)
	if n := strings.Count(first, "x"); n < 20 || n > 55 {
		t.Errorf("%d of 100 failed: %s", n, first)
	}
	if again := failures(7); again != first {
		t.Errorf("the same seed fails otherwise: %s, %s", first, again)
	}
}

func TestARateLimitLetsSomeThrough(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	p.Fail(followertest.RateLimit(3))
	client := newClient(t)
	for i := range 5 {
		g := post(t, client, p.URL(), "{}")
		if refused := g.status == 429 && g.header.Get("Retry-After") == "1"; refused != (i >= 3) {
			t.Errorf("request %d: %+v", i, g)
		}
	}
}

func TestAnUnpluggedProxyRefusesConnections(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	client := newClient(t)
	address := p.URL()
	for range 3 {
		if g := post(t, client, address, "{}"); g.err != nil {
			t.Fatal(g.err)
		}
		p.Unplug()
		if g := post(t, newClient(t), address, "{}"); !errors.Is(g.err, syscall.ECONNREFUSED) {
			t.Errorf("unplugged: %v", g.err)
		}
		if g := post(t, client, address, "{}"); g.err == nil {
			t.Error("a connection has outlived it")
		}
		p.Plug()
	}
	if g := post(t, client, address, "{}"); g.err != nil || p.URL() != address {
		t.Errorf("%v, now at %s", g.err, p.URL())
	}
}

func TestAProxyLiesAsItIsTold(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	client := newClient(t)
	p.Lie(func(body []byte) []byte { return bytes.ReplaceAll(body, []byte("12"), []byte("13")) })
	if g := post(t, client, p.URL(), "{}"); !strings.Contains(g.body, `"13"`) {
		t.Errorf("%+v", g)
	}
	p.Lie(followertest.AlterObjects(func(object map[string]any) {
		if object["name"] == "total_transfers" {
			object["value"] = "14"
		}
	}))
	if g := post(t, client, p.URL(), "{}"); !strings.Contains(g.body, `"14"`) {
		t.Errorf("%+v", g)
	}
	p.Lie(nil)
	if g := post(t, client, p.URL(), "{}"); g.body != said {
		t.Errorf("%+v", g)
	}
}

func TestAClientWhoGoesAwayIsNotOneAtOnce(t *testing.T) {
	url, _ := target(t)
	p := followertest.NewProxy(t, url)
	p.Fail(followertest.Delay(time.Minute, 0))
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan got)
	go func() { gone <- postUntil(ctx, t, p.URL()) }()
	followertest.Await(t, time.Minute, "the proxy is asked", func() bool { return len(p.Exchanges()) == 1 })
	leave()
	if g := <-gone; g.err == nil {
		t.Fatal("an answer came")
	}
	p.Heal()
	post(t, newClient(t), p.URL(), "{}")
	followertest.Await(t, time.Minute, "the proxy notices", func() bool { return p.Exchanges()[0].GaveUp })
	if c := p.Counts(); c.MostAtOnce != 1 || c.Requests != 2 {
		t.Errorf("%+v", c)
	}
}

func TestAProxyNoticesBadManners(t *testing.T) {
	url, _ := target(t)
	for name, misbehave := range map[string]func(p *followertest.Proxy){
		"two at once": func(p *followertest.Proxy) {
			p.Fail(followertest.Delay(100*time.Millisecond, 0))
			followertest.Await(t, time.Minute, "two come within the delay", func() bool {
				var both sync.WaitGroup
				for range 2 {
					both.Go(func() { post(t, newClient(t), p.URL(), "{}", "Accept-Encoding", "gzip") })
				}
				both.Wait()
				return p.Counts().MostAtOnce == 2
			})
		},
		"does not wait": func(p *followertest.Proxy) {
			p.Fail(followertest.Status(429).RetryAfter(time.Hour))
			client := newClient(t)
			for range 2 {
				post(t, client, p.URL(), "{}", "Accept-Encoding", "gzip")
			}
		},
		"takes no gzip": func(p *followertest.Proxy) { post(t, newClient(t), p.URL(), "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			p := followertest.NewProxy(t, url)
			misbehave(p)
			var noted recorder
			p.CheckManners(&noted)
			if noted.errors != 1 {
				t.Errorf("%d complaints", noted.errors)
			}
		})
	}
}

// recorder is a test that counts its errors.
type recorder struct {
	testing.TB
	errors int
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.errors++ }

func TestAnOlderTargetLacksFields(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"data":{"__schema":{"types":[{"name":"a","fields":[{"name":"x"},{"name":"y"}]},{"name":"b","fields":[{"name":"x"}]}]},"t":{"fields":[{"name":"x"},{"name":"z"}]}}}`)
	}))
	defer server.Close()
	p := followertest.NewProxy(t, server.URL)
	client := newClient(t)
	p.Older("a.x")
	want := `{"data":{"__schema":{"types":[{"fields":[{"name":"y"}],"name":"a"},{"fields":[{"name":"x"}],"name":"b"}]},"t":{"fields":[{"name":"z"}]}}}`
	if g := post(t, client, p.URL(), `{"query":"{ __schema { types { name fields { name } } } }"}`); g.body != want {
		t.Errorf("introspection: %s", g.body)
	}
	if g := post(t, client, p.URL(), `{"query":"{ as { x } }"}`); !strings.Contains(g.body, `Cannot query field \"x\"`) {
		t.Errorf("a query for it: %s", g.body)
	}
	if g := post(t, client, p.URL(), `{"query":"{ as { xx y } }"}`); strings.Contains(g.body, "errors") {
		t.Errorf("a query without it: %s", g.body)
	}
}
