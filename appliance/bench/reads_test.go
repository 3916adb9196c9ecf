package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/replica"
)

// readKind is one of the measured queries.
type readKind struct {
	name    string
	query   string
	peer    string                      // the same for PostGraphile
	samples func(*readSamples) []string // values of the variable v; nil for a query without variables
}

const (
	page7     = `sender_canonical receiver_canonical base_amount base_token_symbol source_universal_chain_id destination_universal_chain_id sort_order`
	firstPage = `{ v2_transfers(args: {p_limit: 100}) { ` + page7 + ` } }`
	traced    = `sender_canonical receiver_canonical base_amount sort_order traces { type height transaction_hash timestamp universal_chain_id } base_token_meta { denom representations { name symbol decimals } }`

	peerPage7  = `sender_canonical: senderCanonical receiver_canonical: receiverCanonical base_amount: baseAmount base_token_symbol: baseTokenSymbol source_universal_chain_id: sourceUniversalChainId destination_universal_chain_id: destinationUniversalChainId sort_order: sortOrder`
	peerTraced = `sender_canonical: senderCanonical receiver_canonical: receiverCanonical base_amount: baseAmount sort_order: sortOrder traces: tracesList { type height transaction_hash: transactionHash timestamp universal_chain_id: universalChainId } base_token_meta: baseTokenMeta { denom representations: representationsByUniversalChainIdAndDenomList { name symbol decimals } }`
)

var readKinds = []readKind{
	{"first page of 100", firstPage,
		`{ allTransfersList(first: 100, orderBy: [SORT_ORDER_DESC]) { ` + peerPage7 + ` } }`, nil},
	{"100 at a random cursor",
		`query Page($v: String!) { v2_transfers(args: {p_limit: 100, p_sort_order: $v}) { ` + page7 + ` } }`,
		`query Page($v: String!) { transfersBeforeList(first: 100, cursor: $v) { ` + peerPage7 + ` } }`,
		func(s *readSamples) []string { return s.orders }},
	{"20 by address",
		`query Of($v: jsonb!) { v2_transfers(args: {p_limit: 20, p_addresses_canonical: $v}) { ` + page7 + ` } }`,
		`query Of($v: String!) { transfersOfList(address: $v) { ` + peerPage7 + ` } }`,
		func(s *readSamples) []string { return s.addresses }},
	{"by transaction hash",
		`query One($v: String!) { v2_transfers(args: {p_transaction_hash: $v}) { ` + page7 + ` } }`,
		`query One($v: String!) { allTransfersList(orderBy: [SORT_ORDER_DESC], condition: {transactionHash: $v}) { ` +
			peerPage7 + ` } }`,
		func(s *readSamples) []string { return s.transactions }},
	{"20 with traces, tokens", `{ v2_transfers(args: {p_limit: 20}) { ` + traced + ` } }`,
		`{ allTransfersList(first: 20, orderBy: [SORT_ORDER_DESC]) { ` + peerTraced + ` } }`, nil},
}

var readsResults = flag.String("reads", "", "BenchmarkReads: file of the results; with -page, their tables are written and nothing is measured")

// readSamples are arguments of random queries, from rows all over the data.
type readSamples struct{ orders, addresses, transactions []string }

// reads is the result of one round of one target.
type reads struct {
	kinds          [][]figure // by readKinds
	cached, static []figure
}

// BenchmarkReads measures GraphQL over HTTP, on 8 connections, from a replica of 1 million generated transfers and from
// one of 10 thousand, each with its own daemon. For comparison, it measures @cached answers, a static body of the same
// size from a bare fiber server, and the import of the data. All alternate in one run, because the machine's speed
// changes. Each figure is the median of its rounds. The load generator shares the cores with the servers.
//
// BENCH_TRANSFERS is the size of the large replica. Its rows are made once and kept in BENCH_DIR, or in the user's
// cache.
func BenchmarkReads(b *testing.B) {
	if *benchPage != "" {
		run, err := kept[readsRun](*readsResults)
		if err == nil {
			err = writePage(*benchPage, "reads.json", run.table())
		}
		if err != nil {
			b.Fatal(err)
		}
		return
	}
	const rounds, each = 5, time.Second
	transfers := envNumber(b, "BENCH_TRANSFERS", 1_000_000)
	large, imported := newReadDaemon(b, transfers)
	small, _ := newReadDaemon(b, min(10_000, transfers))
	samples := map[*daemontest.Daemon]*readSamples{large: sampleReplica(b, large), small: sampleReplica(b, small)}
	more := records(b, large, max(1, transfers/10), 2)
	peer := newPostGraphile(b, large.Replica())
	for _, d := range []*daemontest.Daemon{large, small} {
		d.Start(b)
	}
	defer small.Kill(b)
	requests := make(map[*daemontest.Daemon][][][]byte)
	for d, s := range samples {
		for _, k := range readKinds {
			requests[d] = append(requests[d], k.requests(b, d.URL, s))
		}
	}
	if peer != nil {
		peer.prepare(b, large.URL, samples[large])
	}
	cachedRequest := graphqlRequest(large.URL, "query @cached(ttl: 3600) "+firstPage, nil)
	body := checkAnswer(b, large.URL, cachedRequest)
	static, staticPID := startStatic(b, body)
	staticRequest := graphqlRequest(static, "query @cached(ttl: 3600) "+firstPage, nil)
	checkAnswer(b, static, staticRequest)

	peakMemory := watchMemory(b, large.Cmd.Process.Pid)
	results, peers := map[*daemontest.Daemon]*reads{large: newReads(), small: newReads()}, newReads()
	for b.Loop() {
		for range rounds {
			for i := range readKinds {
				for _, d := range []*daemontest.Daemon{large, small} {
					results[d].kinds[i] = append(results[d].kinds[i],
						load(b, d.URL, cpuOfProcess(b, d.Cmd.Process.Pid), requests[d][i], readConnections, each))
				}
				if peer != nil {
					peers.kinds[i] = append(peers.kinds[i], load(b, peer.url, func() time.Duration { return peer.cpu(b) },
						peer.requests[i], readConnections, each))
				}
			}
			r := results[large]
			r.cached = append(r.cached,
				load(b, large.URL, cpuOfProcess(b, large.Cmd.Process.Pid), [][]byte{cachedRequest}, readConnections, each))
			r.static = append(r.static, load(b, static, cpuOfProcess(b, staticPID), [][]byte{staticRequest}, readConnections, each))
		}
	}
	peak := peakMemory()
	large.Kill(b)
	stat, err := os.Stat(large.Replica())
	if err != nil {
		b.Fatal(err)
	}
	added := importRecords(b, large, more)
	reportReads(b, transfers, results[large], results[small], peers)
	reportReplica(b, peak, stat.Size(), imported, added)
}

func newReads() *reads { return &reads{kinds: make([][]figure, len(readKinds))} }

func reportReads(b *testing.B, transfers int, large, small, peer *reads) {
	run := readsRun{Transfers: transfers, Cores: runtime.NumCPU(), Connections: readConnections}
	fmt.Printf("\n%-26s %10s %10s %10s %10s %10s %12s\n", fmt.Sprintf("%d transfers", transfers), "per second",
		"PostGraph.", "CPU each", "p50", "p99", "10k is ×")
	row := func(name string, f figure, theirs, ratio string) {
		fmt.Printf("%-26s %10.0f %10s %7.0f µs %10s %10s %12s\n", name, f.perSecond, theirs, f.cpuMicros,
			f.p50.Round(time.Microsecond), f.p99.Round(time.Microsecond), ratio)
	}
	for i, k := range readKinds {
		f, ratio := median(large.kinds[i]), middleRatio(small.kinds[i], large.kinds[i])
		r := readsRow{Query: k.name, PerSecond: f.perSecond, CPU: f.cpuMicros, P99: micros(f.p99), Small: ratio}
		theirs := ""
		if len(peer.kinds[i]) > 0 {
			p := median(peer.kinds[i])
			r.Peer, r.PeerCPU, r.Ratio = p.perSecond, p.cpuMicros, middleRatio(large.kinds[i], peer.kinds[i])
			theirs = fmt.Sprintf("× %.1f", r.Ratio)
			b.ReportMetric(r.Ratio, strings.NewReplacer(" ", "-", ",", "").Replace(k.name)+"-of-PostGraphile")
		}
		run.Rows = append(run.Rows, r)
		row(k.name, f, theirs, fmt.Sprintf("%.2f", ratio))
	}
	if *readsResults != "" {
		if err := run.write(*readsResults); err != nil {
			b.Fatal(err)
		}
	}
	cached := middleRatio(large.cached, large.static)
	row("the first page, @cached", median(large.cached), "", "")
	row("a static body of its size", median(large.static), "", "")
	fmt.Print("\nof PostGraphile's answers a second: the second column (aim: at least 10 times)\n")
	fmt.Printf("@cached answers a second: %.2f of static ones (aim: at least 0.7)\n", cached)
	fmt.Printf("the same page at 10 thousand transfers and at %d: see the last column (aim: at most 1.3)\n", transfers)
	b.ReportMetric(cached, "cached-of-static")
}

func reportReplica(b *testing.B, peak daemontest.Memory, size int64, imported, added importRate) {
	const mb = 1e6
	fmt.Printf(
		"memory of its own at most: %.0f MB (aim: at most 300); with the file's pages, which the kernel takes back when it wants: %.0f MB\n",
		peak.Anonymous/mb, peak.Resident/mb)
	fmt.Printf("file:                     %.0f MB\n", float64(size)/mb)
	fmt.Printf("import into an empty one: %v (aim: more than 20000 transfers a second)\n", imported)
	fmt.Printf("import into a full one:   %v\n\n", added)
	b.ReportMetric(peak.Anonymous/mb, "MB-own")
	b.ReportMetric(imported.perSecond(), "imported/s")
}

// middleRatio is the median of the rounds' ratios of answers per second.
func middleRatio(a, b []figure) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i].perSecond / b[i].perSecond
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func envNumber(b *testing.B, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s=%s is not a number above zero", name, text)
	}
	return n
}

// records returns a file of generated records. The command makes the file if it is missing.
func records(b *testing.B, d *daemontest.Daemon, transfers, seed int) string {
	folder := os.Getenv("BENCH_DIR")
	if folder == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			b.Fatal(err)
		}
		folder = filepath.Join(cache, "attestd-bench")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(folder, fmt.Sprintf("%d-%d.ndjson.zst", transfers, seed))
	if _, err := os.Stat(file); err != nil {
		d.Run(b, "replica", "generate", "--transfers", strconv.Itoa(transfers), "--seed", strconv.Itoa(seed), "--file",
			file)
	}
	return file
}

// newReadDaemon prepares an appliance with a replica of so many transfers, and returns the rate of their import.
func newReadDaemon(b *testing.B, transfers int) (*daemontest.Daemon, importRate) {
	d := daemontest.New(b)
	d.Configure("ATTESTD_LIMITS_GRAPHQL_RATE=unlimited")
	return d, importRecords(b, d, records(b, d, transfers, 1))
}

// importRate is the result of an import.
type importRate struct {
	transfers int
	records   int64
	elapsed   time.Duration
}

func (r importRate) perSecond() float64 { return float64(r.transfers) / r.elapsed.Seconds() }

func (r importRate) String() string {
	return fmt.Sprintf("%.0f transfers a second, %.0f records; %d transfers in %s", r.perSecond(),
		float64(r.records)/r.elapsed.Seconds(), r.transfers, r.elapsed.Round(time.Millisecond))
}

// importRecords imports a file without a daemon, and counts the transfers that it added.
func importRecords(b *testing.B, d *daemontest.Daemon, file string) importRate {
	transfers := func() int {
		var status index.Status
		if out := d.Run(b, "replica", "status", "--output", "json"); json.Unmarshal([]byte(out), &status) != nil {
			b.Fatal(out)
		}
		return int(status.Rows[index.TransferType.Name])
	}
	before := transfers()
	var done struct {
		Rows    int64   `json:"rows"`
		Seconds float64 `json:"seconds"`
	}
	if out := d.Run(b, "replica", "import", file, "--output", "json"); json.Unmarshal([]byte(out), &done) != nil {
		b.Fatal(out)
	}
	return importRate{transfers() - before, done.Rows, time.Duration(done.Seconds * float64(time.Second))}
}

// sampleReplica picks 512 rows at even distances, and shuffles them.
func sampleReplica(b testing.TB, d *daemontest.Daemon) *readSamples {
	opened, err := replica.Open(d.Replica(), replica.Options{ReadOnly: true})
	if err != nil {
		b.Fatal(err)
	}
	defer opened.Close()
	var s readSamples
	err = opened.View(context.Background(), func(snapshot index.Snapshot) error {
		status, err := snapshot.Status(context.Background())
		if err != nil {
			return err
		}
		every, n := max(1, int(status.Rows[index.TransferType.Name])/512), 0
		return snapshot.Each(context.Background(), index.TransferType, func(row index.Row) error {
			if n++; n%every != 0 {
				return nil
			}
			var t index.Transfer
			if err := row.Decode(&t); err != nil {
				return err
			}
			s.orders = append(s.orders, t.SortOrder)
			s.addresses = append(s.addresses, *t.SenderCanonical)
			s.transactions = append(s.transactions, *t.SendTransactionHash)
			return nil
		})
	})
	if err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, list := range [][]string{s.orders, s.addresses, s.transactions} {
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	return &s
}

// requests returns all requests of a kind. It checks that the first of them is answered with rows.
func (k readKind) requests(b testing.TB, url string, s *readSamples) (requests [][]byte) {
	if k.samples == nil {
		requests = append(requests, graphqlRequest(url, k.query, nil))
	} else {
		for _, v := range k.samples(s) {
			requests = append(requests, graphqlRequest(url, k.query, map[string]any{"v": k.variable(v)}))
		}
	}
	checkAnswer(b, url, requests[0])
	return requests
}

// variable returns a list if the query takes one.
func (k readKind) variable(v string) any {
	if strings.Contains(k.query, "$v: jsonb") {
		return []string{v}
	}
	return v
}

func graphqlRequest(url, query string, variables map[string]any) []byte {
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		panic(err) // the values are strings, and maps of strings
	}
	return fmt.Appendf(nil,
		"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		daemon.GraphQLPath, strings.TrimPrefix(url, "http://"), len(body), body)
}

// checkAnswer sends a request once. The answer must have rows and no errors.
func checkAnswer(b testing.TB, url string, request []byte) []byte {
	conn := dial(b, url)
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		b.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || bytes.Contains(body, []byte(`"errors"`)) ||
		!bytes.Contains(body, []byte(`"sort_order":"`)) {
		b.Fatalf("%d %v: %s", answer.StatusCode, err, body)
	}
	return body
}

func dial(b testing.TB, url string) net.Conn {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	return conn
}

// readConnections is the number of concurrent connections.
const readConnections = 8

// load sends requests in turn on some connections. Each connection sends at least one.
func load(b testing.TB, url string, cpu func() time.Duration, requests [][]byte, connections int, each time.Duration) figure {
	before, start := cpu(), time.Now()
	latencies := make([][]time.Duration, connections)
	var wg sync.WaitGroup
	for i := range connections {
		conn := dial(b, url)
		defer conn.Close()
		wg.Go(func() {
			in := bufio.NewReaderSize(conn, 64<<10)
			for n, end := i*len(requests)/connections, start.Add(each); latencies[i] == nil ||
				time.Now().Before(end); n++ {
				begin := time.Now()
				_, err := conn.Write(requests[n%len(requests)])
				if err == nil {
					err = readAnswer(in)
				}
				if err != nil {
					b.Error(err)
					return
				}
				latencies[i] = append(latencies[i], time.Since(begin))
			}
		})
	}
	wg.Wait()
	elapsed, spent := time.Since(start), cpu()-before
	all := slices.Concat(latencies...)
	slices.Sort(all)
	if len(all) == 0 {
		b.Fatal("no query was answered")
	}
	return figure{
		perSecond: float64(len(all)) / elapsed.Seconds(),
		cpuMicros: float64(spent.Microseconds()) / float64(len(all)),
		p50:       all[len(all)/2], p99: all[len(all)*99/100],
	}
}

// watchMemory polls a process twenty times per second. The returned function ends that, and returns the peaks.
func watchMemory(b testing.TB, pid int) func() daemontest.Memory {
	peak := daemontest.MemoryOf(pid)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Second / 20)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				peak = peak.Most(daemontest.MemoryOf(pid))
			}
		}
	}()
	return func() daemontest.Memory {
		close(stop)
		<-stopped
		if peak.Resident == 0 {
			b.Fatal("the memory of the daemon is not known")
		}
		return peak
	}
}

// startStatic serves a body from a child process, and returns its address and process id.
func startStatic(b *testing.B, body []byte) (url string, pid int) {
	file := filepath.Join(b.TempDir(), "body")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		b.Fatal(err)
	}
	address := daemontest.FreeAddress(b)
	cmd := exec.Command("static", file, address)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	daemontest.WaitListening(b, address)
	return "http://" + address, cmd.Process.Pid
}

// serveStatic FILE ADDRESS is the program that startStatic starts: the upper bound for fiber. It ends when it is killed.
func serveStatic() {
	body, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true})
	app.Post(daemon.GraphQLPath, func(c *fiber.Ctx) error {
		c.Response().Header.SetContentType(fiber.MIMEApplicationJSON)
		c.Response().SetBodyRaw(body)
		return nil
	})
	panic(app.Listen(os.Args[2]))
}
