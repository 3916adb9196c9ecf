package graphql_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// BenchmarkHTTP measures requests over a socket, including the client, with 8 connections: uncached, @cached, and a
// static body of the same size from the same server as the baseline for @cached. Run it with -cpu 2, or the number of
// the machine's processors.
func BenchmarkHTTP(b *testing.B) {
	replica := generated(b, 20_000)
	middle := middleTransfer(b, replica)
	e := newEndpoint(b, graphql.Options{Index: replica})
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true})
	app.All("/v1/graphql", e.Handle)
	static := []byte(e.Execute(pageOf7, ""))
	app.Post("/static", func(c *fiber.Ctx) error {
		c.Response().Header.SetContentType("application/json")
		c.Response().SetBodyRaw(static)
		return nil
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go app.Listener(listener)
	defer app.Shutdown()
	client := &fasthttp.HostClient{Addr: listener.Addr().String(), MaxConns: 64}
	defer client.CloseIdleConnections()

	const traces = `{ v2_transfers(args: {p_limit: 20}) { sender_canonical receiver_canonical base_amount sort_order traces { type height transaction_hash timestamp universal_chain_id } base_token_meta { denom representations { name symbol decimals } } } }`
	for _, bm := range []struct{ name, path, query string }{
		{"page of 100 with 7 fields", "/v1/graphql", pageOf7},
		{"page at a cursor", "/v1/graphql", strings.Replace(pageOf7, "p_limit: 100",
			fmt.Sprintf("p_limit: 100, p_sort_order: %q", middle.SortOrder), 1)},
		{"20 by address", "/v1/graphql", strings.Replace(pageOf7, "p_limit: 100",
			fmt.Sprintf("p_limit: 20, p_addresses_canonical: [%q]", *middle.SenderCanonical), 1)},
		{"by transaction hash", "/v1/graphql", strings.Replace(pageOf7, "p_limit: 100",
			fmt.Sprintf("p_transaction_hash: %q", *middle.SendTransactionHash), 1)},
		{"20 with traces and token metadata", "/v1/graphql", traces},
		{"cached", "/v1/graphql", "query @cached " + pageOf7},
		{"static", "/static", pageOf7},
	} {
		b.Run(bm.name, func(b *testing.B) {
			body := []byte(postBody(bm.query, ""))
			b.SetParallelism(4)
			b.ReportAllocs()
			before := cpuTime()
			b.RunParallel(func(pb *testing.PB) {
				req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
				for pb.Next() {
					req.SetRequestURI("http://x" + bm.path)
					req.Header.SetMethod("POST")
					req.Header.SetContentType("application/json")
					req.SetBodyRaw(body)
					if err := client.Do(req, resp); err != nil || resp.StatusCode() != 200 {
						b.Errorf("%d %v", resp.StatusCode(), err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
			// comparable even on a loaded machine
			b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &used) // fails only for other arguments
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkDecoded measures the cost of decoding packet data on request (decoded and decoded_flattened): pages of 100
// packets without these fields, with one and with both, and one packet.
func BenchmarkDecoded(b *testing.B) {
	e := newEndpoint(b, graphql.Options{Index: generated(b, 20_000)})
	const page = `{ v2_packets(args: {p_limit: 100}) { packet_hash data } }`
	for _, bm := range []struct{ name, query string }{
		{"100 packets, data", page},
		{"100 packets, data and decoded", strings.Replace(page, "data }", "data decoded }", 1)},
		{"100 packets, data, decoded and flattened",
			strings.Replace(page, "data }", "data decoded decoded_flattened }", 1)},
		{"1 packet, data", strings.Replace(page, "100", "1", 1)},
		{"1 packet, data and decoded",
			strings.Replace(strings.Replace(page, "100", "1", 1), "data }", "data decoded }", 1)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			before, size := cpuTime(), 0
			for b.Loop() {
				size = len(e.Execute(bm.query, ""))
			}
			b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(size), "answer-B")
		})
	}
}

// BenchmarkProxy measures the latency that a proxy adds to a request. It alternates requests to the upstream and to the
// proxy on one connection, so that noise affects both equally.
func BenchmarkProxy(b *testing.B) {
	o := graphql.Options{Index: generated(b, 20_000)}
	direct := serve(b, o)
	c, err := upstream.New(upstream.Options{URL: direct.url + "/v1/graphql", Timeout: 30 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	proxy := serve(b, graphql.Options{Upstream: c})
	for _, bm := range []struct{ name, query string }{
		{"page of 100 with 7 fields", pageOf7},
		{"small", statsQuery},
		{"cached", "query @cached(ttl: 3600) " + pageOf7},
	} {
		b.Run(bm.name, func(b *testing.B) {
			body := []byte(postBody(bm.query, ""))
			var took [2][]time.Duration
			for b.Loop() {
				for i, s := range []*server{direct, proxy} {
					req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
					req.SetRequestURI(s.url + "/v1/graphql")
					req.Header.SetMethod("POST")
					req.Header.SetContentType("application/json")
					req.SetBodyRaw(body)
					began := time.Now()
					if err := fasthttp.Do(req, resp); err != nil || resp.StatusCode() != 200 {
						b.Fatalf("%d %v", resp.StatusCode(), err)
					}
					took[i] = append(took[i], time.Since(began))
					fasthttp.ReleaseRequest(req)
					fasthttp.ReleaseResponse(resp)
				}
			}
			for _, q := range []struct {
				name string
				rank float64
			}{{"p50", .5}, {"p99", .99}} {
				var at [2]time.Duration
				for i := range took {
					slices.Sort(took[i])
					at[i] = took[i][int(q.rank*float64(len(took[i])))]
				}
				b.ReportMetric(float64(at[0].Microseconds()), "µs-direct-"+q.name)
				b.ReportMetric(float64((at[1] - at[0]).Microseconds()), "µs-added-"+q.name)
			}
		})
	}
}

// middleTransfer returns the 100th newest transfer.
func middleTransfer(b *testing.B, idx index.Index) (t index.Transfer) {
	b.Helper()
	err := idx.View(context.Background(), func(snap index.Snapshot) error {
		rows, err := snap.Transfers(context.Background(), index.TransferQuery{})
		if err != nil {
			return err
		}
		return rows[len(rows)-1].Decode(&t)
	})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// generated makes a replica of realistic data.
func generated(b *testing.B, transfers int) *replica.Store {
	b.Helper()
	replica, err := replica.Open(filepath.Join(b.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { replica.Close() })
	ctx := context.Background()
	err = dataset.Generate(ctx, dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: today},
		func(rows []index.Row) error {
			_, err := replica.Write(ctx, index.Batch{Rows: rows})
			return err
		})
	if err != nil {
		b.Fatal(err)
	}
	return replica
}
