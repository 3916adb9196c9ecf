package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// BenchmarkGreedyReads measures attestations while anonymous clients overload the reads. The cases are: no clients; 200
// that ask for the largest possible answer and read it slowly; 64 that ask for it repeatedly; 64 that ask for
// compressed pages; and 1,200 whose connections are all reset while the largest answer is being made. Each client has
// its own address, so that no rate limit of one address stops them. They run in a process with the lowest priority, so
// that they do not take CPU from the daemon.
func BenchmarkGreedyReads(b *testing.B) {
	const each = 10 * time.Second
	d := daemontest.New(b)
	d.Run(b, "replica", "generate", "--transfers", "20000")
	d.Start(b)
	defer d.Kill(b)
	query := largestQuery(b, d.URL)
	for b.Loop() {
		fmt.Printf("\n%-28s %10s %10s %10s %14s   %s\n", "", "attests/s", "p50", "p99", "RssAnon at most",
			"what the strangers got")
		var alone figure
		for _, kind := range append([]string{"nobody"}, slices.Sorted(maps.Keys(strangers))...) {
			end := startStrangers(b, d.URL, kind, query)
			peak := watchMemory(b, d.Cmd.Process.Pid)
			f := benchWhole(b, d, 8, each)
			got, anonymous := end(), peak().Anonymous
			fmt.Printf("%-28s %10.0f %10s %10s %11.0f MB   %s\n", kind, f.perSecond, f.p50.Round(time.Microsecond),
				f.p99.Round(time.Microsecond), anonymous/1e6, got)
			if kind == "nobody" {
				alone = f
				continue
			}
			unit := strings.ReplaceAll(kind, " ", "-")
			b.ReportMetric(float64(f.p99)/1e6, unit+"-p99-ms")
			b.ReportMetric(float64(f.p99)/float64(alone.p99), unit+"-p99-of-alone")
			b.ReportMetric(anonymous/1e6, unit+"-MB-own")
		}
		load, _ := os.ReadFile("/proc/loadavg")
		fmt.Printf("aims: p99 under 250 ms, RssAnon under 500 MB. Load of the machine at the end: %s\n", load)
	}
}

// largestQuery returns a query whose answer comes as close to graphql.max_response as possible. Its variable c only
// varies the key of @cached.
func largestQuery(tb testing.TB, url string) string {
	for aliases := 31; aliases >= 0; aliases-- {
		var q strings.Builder
		q.WriteString("query Largest($c: String) @cached(ttl: 60) {")
		for i := range 20 {
			fmt.Fprintf(&q,
				"r%d:v2_packets(args:{p_limit:100,p_sort_order:$c}){data decoded acknowledgement packet_hash "+
					"traces{transaction_hash block_hash height type timestamp}", i)
			for a := i; a < aliases; a += 20 {
				fmt.Fprintf(&q, " a%d:data", a)
			}
			q.WriteString("}")
		}
		q.WriteString("}")
		status, size, err := askLargest(url, q.String())
		switch {
		case err != nil:
			tb.Fatal(err)
		case status == http.StatusOK && size > 8<<20:
			return q.String()
		}
	}
	tb.Fatal("no query has an answer of more than 8 MiB: the data has too little")
	return ""
}

func askLargest(url, query string) (status, size int, err error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	if _, err := conn.Write(graphqlRequest(url, query, map[string]any{"c": cursorAbove(-1)})); err != nil {
		return 0, 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, 0, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if bytes.Contains(body[:min(len(body), 200)], []byte(`"errors"`)) {
		return http.StatusBadRequest, len(body), err
	}
	return answer.StatusCode, len(body), err
}

// cursorAbove returns a sort_order above all rows. It differs for each n.
func cursorAbove(n int) string { return "~" + strconv.Itoa(n) }

// strangers are the behaviours of the anonymous clients. Each runs until stop is closed, and counts the answers.
var strangers = map[string]func(s *stranger, stop <-chan struct{}){
	"200 slow readers": func(s *stranger, stop <-chan struct{}) { s.all(200, func(n int) { s.readSlowly(n, stop) }) },
	"64 greedy ones": func(s *stranger, stop <-chan struct{}) {
		s.all(64, func(n int) { s.readAgainAndAgain(n, stop) })
	},
	"64 compressed": func(s *stranger, stop <-chan struct{}) {
		s.query, s.coding = tracedPage, "zstd"
		s.all(64, func(n int) { s.readAgainAndAgain(n, stop) })
	},
	"1200 resets": func(s *stranger, stop <-chan struct{}) { s.resetAtOnce(1200, stop) },
}

// tracedPage asks for a page that is worth compressing: 200 KB, most of it hashes.
const tracedPage = `query Traced($c: String) { v2_transfers(args: {p_limit: 100, p_sort_order: $c}) { ` + page7 + ` packet_hash transfer_send_transaction_hash
	traces { type height transaction_hash block_hash timestamp universal_chain_id } } }`

// startStrangers starts a process of anonymous clients. The returned function ends it and describes the answers that it
// got.
func startStrangers(b *testing.B, url, kind, query string) func() string {
	if strangers[kind] == nil {
		return func() string { return "" }
	}
	cmd := exec.Command("strangers", kind, url, query)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return func() string {
		_ = stdin.Close()
		_ = cmd.Wait()
		return strings.TrimSpace(out.String())
	}
}

// actAsStrangers KIND URL QUERY is the program that startStrangers starts. When its standard input ends, it prints the
// answers that the clients got.
func actAsStrangers() {
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
	s := &stranger{url: os.Args[2], query: os.Args[3], got: make(map[string]int)}
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	strangers[os.Args[1]](s, stop)
	fmt.Println(s.got)
}

// stranger is a group of anonymous clients that send query.
type stranger struct {
	url, query string
	coding     string // Accept-Encoding of its requests; empty for none

	mu  sync.Mutex
	got map[string]int // by status
}

func (s *stranger) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[what]++
}

func (s *stranger) all(n int, do func(n int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// ask connects from the client's own address and sends the query. It returns nil on failure.
func (s *stranger) ask(n, again int) *net.TCPConn {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, byte(1+n/65536), byte(n/256), byte(n))},
		Timeout: 5 * time.Second}
	conn, err := from.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.count("no connection")
		return nil
	}
	request := graphqlRequest(s.url, s.query, map[string]any{"c": cursorAbove(n*1_000_000 + again)})
	if s.coding != "" {
		request = bytes.Replace(request, []byte("\r\n"), []byte("\r\nAccept-Encoding: "+s.coding+"\r\n"), 1)
	}
	if _, err := conn.Write(request); err != nil {
		s.count("not sent")
		_ = conn.Close()
		return nil
	}
	return conn.(*net.TCPConn)
}

// read reads the answer at each bytes per tenth of a second. 0 means as fast as possible.
func (s *stranger) read(conn net.Conn, each int64, stop <-chan struct{}) {
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.count("no answer")
		return
	}
	defer answer.Body.Close()
	s.count(strings.TrimSpace(strconv.Itoa(answer.StatusCode) + " " + answer.Header.Get("Content-Encoding")))
	if each == 0 {
		_, _ = io.Copy(io.Discard, answer.Body)
		return
	}
	for {
		if _, err := io.CopyN(io.Discard, answer.Body, each); err != nil || wait(stop, time.Second/10) {
			return
		}
	}
}

func wait(stop <-chan struct{}, d time.Duration) (stopped bool) {
	select {
	case <-stop:
		return true
	case <-time.After(d):
		return false
	}
}

func (s *stranger) readSlowly(n int, stop <-chan struct{}) { s.repeat(n, 16<<10, stop) }

func (s *stranger) readAgainAndAgain(n int, stop <-chan struct{}) { s.repeat(n, 0, stop) }

func (s *stranger) repeat(n int, each int64, stop <-chan struct{}) {
	for again := 0; !wait(stop, time.Millisecond); again++ {
		conn := s.ask(n, again)
		if conn == nil {
			continue
		}
		ended := make(chan struct{})
		go func() {
			select {
			case <-stop:
				_ = conn.Close()
			case <-ended:
			}
		}()
		s.read(conn, each, stop)
		close(ended)
		_ = conn.Close()
	}
}

// resetAtOnce sends n requests on n connections, and resets all connections once the requests have arrived. It repeats
// that every three seconds.
func (s *stranger) resetAtOnce(n int, stop <-chan struct{}) {
	for again := 0; ; again++ {
		conns := make([]*net.TCPConn, n)
		s.all(n, func(i int) { conns[i] = s.ask(i, again) })
		stopped := wait(stop, time.Second/5)
		for _, conn := range conns {
			if conn != nil {
				s.count("reset")
				_ = conn.SetLinger(0)
				_ = conn.Close()
			}
		}
		if stopped || wait(stop, 3*time.Second) {
			return
		}
	}
}
