package graphql_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// clock is a clock that tests advance.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return today.Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// cachedServer returns a server, and an index that counts its reads.
func cachedServer(t *testing.T) (*server, *gatedIndex, *clock, *prometheus.Registry) {
	index, c, registry := &gatedIndex{Index: openReplica(t)}, &clock{}, prometheus.NewRegistry()
	return newServer(t, graphql.Options{Index: index, Now: c.now, Registry: registry}), index, c, registry
}

// gatedIndex counts views, and blocks them while it has a gate.
type gatedIndex struct {
	index.Index
	views atomic.Int64
	gate  chan struct{}
	fail  atomic.Bool
}

func (i *gatedIndex) View(ctx context.Context, read func(index.Snapshot) error) error {
	i.views.Add(1)
	if i.gate != nil {
		<-i.gate
	}
	if i.fail.Load() {
		return appliance.Errorf(appliance.CodeReplicaUnavailable, "the replica cannot be read")
	}
	return i.Index.View(ctx, read)
}

func TestCachedSharesAnAnswerUntilItsTTL(t *testing.T) {
	s, index, c, registry := cachedServer(t)
	const query = `query Q($n: Int) @cached(ttl: 10) { v2_transfers(args: {p_limit: $n}) { sort_order } }`
	ask := func(wantViews int64, wantAge string) {
		t.Helper()
		got := s.post(t, query, `{"n": 1}`)
		got.data(t)
		if index.views.Load() != wantViews || got.header.Get("Age") != wantAge ||
			got.header.Get("Cache-Control") != "max-age=10" {
			t.Errorf("%d views, Age %s, %s; want %d, %s", index.views.Load(), got.header.Get("Age"),
				got.header.Get("Cache-Control"), wantViews, wantAge)
		}
	}
	ask(1, "0")
	ask(1, "0")
	c.advance(9999 * time.Millisecond)
	ask(1, "9")
	c.advance(time.Millisecond) // the ttl ends
	ask(2, "0")

	metrics := gather(t, registry)
	if metrics["attestd_graphql_cache_hits_total"] != 2 || metrics["attestd_graphql_cache_misses_total"] != 2 {
		t.Errorf("metrics %v", metrics)
	}
	if plain := s.post(t, `{ v2_stats_count { name } }`, ""); plain.header.Get("Age") != "" ||
		plain.header.Get("Cache-Control") != "no-store" {
		t.Errorf("without the directive: %v", plain.header)
	}
}

func TestTTLThatIsNotGivenIsTheDefault(t *testing.T) {
	s, _, _, _ := cachedServer(t)
	if got := s.post(t, `query($ttl: Int) @cached(ttl: $ttl) { v2_stats_count { name } }`,
		""); got.header.Get("Cache-Control") != "max-age=60" {
		t.Errorf("%v %s", got.header, got.body)
	}
}

func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	return values
}

// The cache key covers the query, the operation name and the variables as canonical JSON.
func TestCacheKey(t *testing.T) {
	const first = `{"query":"query A($n:Int,$h:[String!])@cached{v2_transfers(args:{p_limit:$n,p_addresses_canonical:$h}){status}} query B($n:Int)@cached{v2_packets(args:{p_limit:$n}){status}}","operationName":"A","variables":{"n":10,"h":["0x01"]}}`
	for _, tt := range []struct {
		name, old, new string
		hit            bool
	}{
		{"the same bytes", "", "", true},
		{"order of variables", `{"n":10,"h":["0x01"]}`, `{"h":["0x01"],"n":10}`, true},
		{"space in variables", `{"n":10`, "{ \"n\" :\t10", true},
		{"1e1 for 10", `"n":10`, `"n":1e1`, true},
		{"10.0 for 10", `"n":10`, `"n":10.0`, true},
		{"escapes in text", `"0x01"`, `"\u0030x01"`, true},
		{"order of parameters", `"operationName":"A","variables":{"n":10,"h":["0x01"]}`,
			`"variables":{"n":10,"h":["0x01"]},"operationName":"A"`, true},
		{"space in the query", `query A(`, `query  A (`, true},
		{"another variable", `"n":10`, `"n":11`, false},
		{"text for a number", `["0x01"]`, `["0x02"]`, false},
		{"another ttl", `@cached{v2_t`, `@cached(ttl: 61){v2_t`, false},
		{"another operation", `"A"`, `"B"`, false},
		{"another field", `{status}} query B`, `{data:status}} query B`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, index, _, _ := cachedServer(t)
			s.do(t, "POST", "/v1/graphql", first, "Content-Type", mediaJSON).data(t)
			s.do(t, "POST", "/v1/graphql", strings.Replace(first, tt.old, tt.new, 1), "Content-Type", mediaJSON)
			s.do(t, "POST", "/v1/graphql", strings.Replace(first, tt.old, tt.new, 1), "Content-Type", mediaJSON)
			if hit := index.views.Load() == 1; hit != tt.hit {
				t.Errorf("hit is %v", hit)
			}
		})
	}
}

// A refresh executes the query, and replaces the cached answer of the same query without refresh.
func TestRefreshReplaces(t *testing.T) {
	for _, tt := range []struct{ name, plain, refresh, plainVariables, refreshVariables string }{
		{"literal", `query @cached(ttl: 60) { v2_stats_count { name } }`,
			`query @cached(ttl: 60, refresh: true) { v2_stats_count { name } }`, "", ""},
		{"literal, first", `query @cached(ttl: 60) { v2_stats_count { name } }`,
			`query @cached(refresh: true, ttl: 60) { v2_stats_count { name } }`, "", ""},
		{"literal alone", `query @cached { v2_stats_count { name } }`,
			`query @cached(refresh: true) { v2_stats_count { name } }`, "", ""},
		{"variable", `query($r: Boolean!) @cached(refresh: $r) { v2_stats_count { name } }`,
			`query($r: Boolean!) @cached(refresh: $r) { v2_stats_count { name } }`, `{"r": false}`, `{"r": true}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, index, c, _ := cachedServer(t)
			s.post(t, tt.plain, tt.plainVariables)
			c.advance(5 * time.Second)
			s.post(t, tt.refresh, tt.refreshVariables)
			if index.views.Load() != 2 {
				t.Errorf("the refresh was not executed")
			}
			got := s.post(t, tt.plain, tt.plainVariables)
			if index.views.Load() != 2 || got.header.Get("Age") != "0" {
				t.Errorf("after the refresh: %d views, Age %s", index.views.Load(), got.header.Get("Age"))
			}
			s.post(t, tt.refresh, tt.refreshVariables)
			if index.views.Load() != 3 {
				t.Errorf("the second refresh was not executed")
			}
		})
	}
}

func TestErrorsAreNotCached(t *testing.T) {
	s, index, _, _ := cachedServer(t)
	const query = `query @cached { v2_stats_count { name } }`
	index.fail.Store(true)
	if got := s.post(t, query, ""); got.status != 503 || got.code(t) != "replica_unavailable" {
		t.Errorf("%d %s", got.status, got.body)
	}
	index.fail.Store(false)
	if got := s.post(t, query, ""); got.header.Get("Age") != "0" || index.views.Load() != 2 {
		t.Errorf("%v %s", got.header, got.body)
	}
}

func TestConcurrentIdenticalQueriesRunOnce(t *testing.T) {
	s, index, _, _ := cachedServer(t)
	index.gate = make(chan struct{})
	const query = `query($a: Int, $b: Int) @cached { a: v2_transfers(args: {p_limit: $a}) { status } b: v2_transfers(args: {p_limit: $b}) { status } }`
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range 20 {
		wg.Go(func() {
			variables := []string{`{"a": 1, "b": 2}`, `{"b": 2, "a": 1}`}[i%2]
			if got := s.post(t, query, variables); got.status != 200 || strings.Contains(got.body, "errors") {
				failed.Add(1)
			}
		})
	}
	for index.views.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(index.gate)
	wg.Wait()
	if index.views.Load() != 1 || failed.Load() != 0 {
		t.Errorf("%d views, %d failed", index.views.Load(), failed.Load())
	}
}

// If the client that began a shared run leaves, the other clients still get the answer.
func TestCancelledLeaderDoesNotFailTheOthers(t *testing.T) {
	index := &gatedIndex{Index: openReplica(t), gate: make(chan struct{})}
	e := newEndpoint(t, graphql.Options{Index: index})
	const query = `query @cached { v2_stats_count { name } }`
	ctx, cancel := context.WithCancel(context.Background())
	led := make(chan string)
	go func() { led <- e.ExecuteContext(ctx, query) }()
	for index.views.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	followed := make(chan string)
	go func() { followed <- e.ExecuteContext(context.Background(), query) }()
	for e.Sharers() < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if got := <-led; (answer{body: got}).code(t) != "timeout" {
		t.Errorf("the leader got %s", got)
	}
	close(index.gate)
	answer{body: <-followed}.data(t)
	if index.views.Load() != 1 {
		t.Errorf("%d views", index.views.Load())
	}
}

func TestCacheIsBoundedInBytes(t *testing.T) {
	registry := prometheus.NewRegistry()
	e := newEndpoint(t, graphql.Options{CacheBytes: 100_000, Registry: registry})
	for i := range 200 {
		answer{body: e.Execute(
			fmt.Sprintf(
				`query @cached { v2_transfers(args: {p_sort_order: %q, p_limit: 50}) { packet_hash sort_order status } }`, sortOrder(i)), "")}.data(t)
	}
	if held := e.CachedBytes(); held > 100_000 {
		t.Errorf("%d bytes are held", held)
	}
	if gather(t, registry)["attestd_graphql_cache_evictions_total"] == 0 {
		t.Error("no eviction was counted")
	}
}

func TestCachedByGET(t *testing.T) {
	s, index, _, _ := cachedServer(t)
	for range 2 {
		got := s.do(t, "GET", "/v1/graphql?query=query%40cached%7Bv2_stats_count%7Bname%7D%7D", "")
		if got.data(t) == "" || got.header.Get("Cache-Control") != "max-age=60" ||
			got.header.Get("Vary") != "Accept, Accept-Encoding" {
			t.Errorf("%v %s", got.header, got.body)
		}
	}
	if index.views.Load() != 1 {
		t.Errorf("%d views", index.views.Load())
	}
}
