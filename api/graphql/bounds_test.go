package graphql_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/replica"
)

// busyIndex counts concurrent views. Each view blocks until the gate opens or its context ends.
type busyIndex struct {
	index.Index
	gate       chan struct{}
	busy, most atomic.Int64
	begun      atomic.Int64
	left       atomic.Int64 // views with an ended context
}

func (i *busyIndex) View(ctx context.Context, read func(index.Snapshot) error) error {
	i.begun.Add(1)
	for now := i.busy.Add(1); ; {
		most := i.most.Load()
		if now <= most || i.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer i.busy.Add(-1)
	select {
	case <-i.gate:
	case <-ctx.Done():
		i.left.Add(1)
		return ctx.Err()
	}
	return i.Index.View(ctx, read)
}

// until polls for a state that has no signal.
func until(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !reached(); {
		if time.Now().After(deadline) {
			t.Fatal("not reached: " + what)
		}
		time.Sleep(time.Millisecond) // poll interval
	}
}

func TestExecutionsAtOnceAreBounded(t *testing.T) {
	index := &busyIndex{Index: openReplica(t), gate: make(chan struct{})}
	o := graphql.WithLine(graphql.Options{Index: index, Executions: 2}, 5, time.Minute)
	s := newServer(t, o)
	var wg sync.WaitGroup
	var answered atomic.Int64
	for i := range 7 {
		wg.Go(func() {
			// Each request has another document, because parsing also takes a slot. Cached queries are included.
			got := s.post(t, fmt.Sprintf("query Q%d %s { v2_stats_count { name } }", i, []string{"", "@cached"}[i%2]),
				"")
			if got.status == http.StatusOK {
				answered.Add(1)
			}
		})
		until(t, "they wait", func() bool { return index.busy.Load()+s.e.Waiting() == int64(i+1) })
	}
	for _, query := range []string{"{ v2_stats_count { name } }", "query @cached { v2_stats_count { value } }"} {
		got := s.post(t, query, "")
		if got.status != http.StatusServiceUnavailable || got.code(t) != "overloaded" ||
			got.header.Get("Retry-After") != "1" {
			t.Errorf("with a full line: %d %v %s", got.status, got.header, got.body)
		}
	}
	close(index.gate)
	wg.Wait()
	if index.most.Load() != 2 || answered.Load() != 7 {
		t.Errorf("%d at once, want 2; %d answered, want 7", index.most.Load(), answered.Load())
	}
}

func TestReadsUseEveryProcessorWhileNothingIsSigned(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	for _, c := range []struct {
		attesting bool
		want      int64
	}{{false, 3}, {true, 2}} {
		index := &busyIndex{Index: openReplica(t), gate: make(chan struct{})}
		o := graphql.Options{Index: index, Attesting: func() bool { return c.attesting }}
		s := newServer(t, graphql.WithLine(o, 5, time.Minute))
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { s.post(t, fmt.Sprintf("query Q%d { v2_stats_count { name } }", i), "") })
			until(t, "they wait", func() bool { return index.busy.Load()+s.e.Waiting() == int64(i+1) })
		}
		close(index.gate)
		wg.Wait()
		if index.most.Load() != c.want {
			t.Errorf("attesting %v: %d at once, want %d", c.attesting, index.most.Load(), c.want)
		}
	}
}

func TestWaitingForATurnHasAnEnd(t *testing.T) {
	index := &busyIndex{Index: openReplica(t), gate: make(chan struct{})}
	s := newServer(t, graphql.WithLine(graphql.Options{Index: index, Executions: 1}, 5, 20*time.Millisecond))
	var wg sync.WaitGroup
	wg.Go(func() { s.post(t, "{ v2_stats_count { name } }", "") })
	until(t, "one is executed", func() bool { return index.busy.Load() == 1 })
	if got := s.post(t, "{ v2_stats_count { value } }", ""); got.status != http.StatusServiceUnavailable ||
		got.code(t) != "overloaded" {
		t.Errorf("%d %s", got.status, got.body)
	}
	close(index.gate)
	wg.Wait()
}

// A shared run ends when its last waiting client leaves, but not before.
func TestASharedRunEndsWithTheLastWhoWaitsForIt(t *testing.T) {
	index := &busyIndex{Index: openReplica(t), gate: make(chan struct{})}
	// With this timeout, only the last client's leaving ends the run.
	e := newEndpoint(t, graphql.Options{Index: index, Limits: graphql.Limits{Timeout: time.Hour}})
	const query = `query @cached { v2_stats_count { name } }`
	var wg sync.WaitGroup
	var leave []context.CancelFunc
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		leave = append(leave, cancel)
		wg.Go(func() { e.ExecuteContext(ctx, query) })
		until(t, "it is shared", func() bool { return e.Sharers() == i+1 })
	}
	until(t, "it runs", func() bool { return index.busy.Load() == 1 })
	leave[0]()
	leave[1]()
	until(t, "two have left", func() bool { return e.Sharers() == 1 })
	if index.left.Load() != 0 {
		t.Error("it has ended while one waits")
	}
	leave[2]()
	until(t, "it ends", func() bool { return index.left.Load() == 1 })
	wg.Wait()
	close(index.gate)
	answer{body: e.Execute(query, "")}.data(t) // a new run, which completes normally
	if index.begun.Load() != 2 || e.Waiting() != 0 {
		t.Errorf("%d runs, %d wait", index.begun.Load(), e.Waiting())
	}
}

// slow sends a query and reads the status line and headers of the answer, but almost none of its body.
func (s *server) slow(t *testing.T, query string) (status int, conn net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	body := postBody(query, "")
	if _, err := fmt.Fprintf(conn,
		"POST /v1/graphql HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 1024), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, conn
}

// largeQuery has an 8 MB answer from largeIndex, more than the kernel buffers for a client that does not read.
const largeQuery = "query { v2_packets { a: data b: data c: data d: data } }"

func largeIndex(t *testing.T) index.Index {
	t.Helper()
	r, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var batch index.Batch
	for i := range 100 {
		row, err := index.NewRow(index.Packet{
			PacketHash: fmt.Sprintf("0x%064x", i), SortOrder: fmt.Sprintf("%08d", i), SourceUniversalChainID: "a.1",
			DestUniversalChainID: "b.1",
			Data:                 new("0x" + strings.Repeat("ab", 10_000)),
		})
		if err != nil {
			t.Fatal(err)
		}
		batch.Rows = append(batch.Rows, row)
	}
	if _, err := r.Write(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestBytesOfAnswersAreBounded(t *testing.T) {
	const most = 24 << 20
	s := newServer(t, graphql.Options{Index: largeIndex(t), AnswerBytes: most})
	size := len(s.post(t, largeQuery, "").data(t))
	until(t, "the answer is off the wire", func() bool { return s.e.HeldBytes() == 0 })
	var slow []net.Conn
	for {
		status, conn := s.slow(t, largeQuery)
		if held := s.e.HeldBytes(); held > most {
			t.Fatalf("%d bytes are held, more than %d", held, most)
		}
		if status == http.StatusServiceUnavailable {
			break
		}
		if slow = append(slow, conn); len(slow) > 2*most/size {
			t.Fatalf("%d answers of %d bytes are on their way, with room for %d bytes", len(slow), size, most)
		}
	}
	if len(slow) == 0 {
		t.Fatal("none was answered")
	}
	got := s.post(t, largeQuery, "")
	if got.status != http.StatusServiceUnavailable || got.code(t) != "overloaded" ||
		got.header.Get("Retry-After") != "1" {
		t.Errorf("one more: %d %v %.200s", got.status, got.header, got.body)
	}
	s.post(t, "{ v2_packets { sort_order } }", "").data(t) // small answers always fit
	for _, conn := range slow {
		conn.Close()
	}
	until(t, "nothing is held for those who have left", func() bool { return s.e.HeldBytes() == 0 })
	s.post(t, largeQuery, "").data(t)
}

// A cached answer is held in memory once, however many clients read it slowly.
func TestACachedAnswerIsHeldOnce(t *testing.T) {
	s := newServer(t, graphql.Options{Index: largeIndex(t), AnswerBytes: 24 << 20})
	query := strings.Replace(largeQuery, "{", "@cached {", 1)
	size := len(s.post(t, query, "").data(t))
	for range 10 {
		if status, _ := s.slow(t, query); status != http.StatusOK {
			t.Fatalf("answered %d", status)
		}
	}
	if held := s.e.HeldBytes(); held < int64(size) || held > int64(2*size) {
		t.Errorf("%d bytes are held for an answer of %d", held, size)
	}
}

func TestNothingIsHeldForAnswersThatWereNotMade(t *testing.T) {
	s := newServer(t, graphql.Options{Index: largeIndex(t), Limits: graphql.Limits{MaxResponseBytes: 3 << 20}})
	if got := s.post(t, largeQuery, ""); got.code(t) != "response_too_large" {
		t.Errorf("%.200s", got.body)
	}
	panicking := newServer(t, graphql.Options{Index: panickingIndex{openReplica(t)}})
	if got := panicking.post(t, "{ v2_stats_count { name } }", ""); got.status != http.StatusInternalServerError {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, server := range []*server{s, panicking} {
		if held := server.e.HeldBytes(); held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	}
}

type panickingIndex struct{ index.Index }

func (panickingIndex) View(context.Context, func(index.Snapshot) error) error { panic("a defect") }

// Bodies that are announced but never sent cannot exceed the memory bound.
func TestBodiesThatAreReadAreBounded(t *testing.T) {
	s := newServer(t, graphql.Options{})
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for range 100 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		fmt.Fprintf(conn,
			"POST /v1/graphql HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			200<<10, strings.Repeat(" ", 70<<10))
	}
	until(t, "the room is full", func() bool { return s.e.IncomingBytes() > 15<<20 })
	if got := s.post(t, "{ v2_stats_count { name } }", ""); got.status != http.StatusOK {
		t.Errorf("a small one: %d %s", got.status, got.body)
	}
	resp, err := s.client.Post(s.url+"/v1/graphql", "application/json", io.LimitReader(
		strings.NewReader(postBody("{ v2_stats_count { name } }", "")+strings.Repeat(" ", 200<<10)), 200<<10))
	if got := read(t, resp, err); got.status != http.StatusServiceUnavailable || got.code(t) != "overloaded" {
		t.Errorf("one more: %d %s", got.status, got.body)
	}
	for _, conn := range conns {
		conn.Close()
	}
	until(t, "the room is empty", func() bool { return s.e.IncomingBytes() == 0 })
}

func TestACostlyRequestIsChargedAsSeveral(t *testing.T) {
	var charged atomic.Int64 // in hundredths
	s := newServer(t, graphql.WithCharge(graphql.Options{Index: largeIndex(t)}, func(n float64) {
		charged.Add(int64(n * 100))
	}))
	costOf := func(query string) float64 {
		charged.Store(0)
		s.post(t, query, "").data(t)
		return float64(charged.Load()) / 100
	}
	if n := costOf(`{ v2_packets { sort_order } }`); n != 0 {
		t.Errorf("a usual page is charged %v more", n)
	}
	for _, query := range []string{largeQuery, strings.Replace(largeQuery, "{", "@cached {", 1)} {
		if n := costOf(query); n < 10 {
			t.Errorf("several MiB are charged %v more", n)
		}
	}
	if n := costOf(strings.Replace(largeQuery, "{", "@cached {", 1)); n != 0 {
		t.Errorf("a cached answer is charged %v more", n)
	}
	absent := `{ v2_packets(args: {p_source_universal_chain_id: "absent.1"})`
	if n := costOf(absent + everything(loadSchema(t), "v2_packet_type") + "}"); n < 1 {
		t.Errorf("a costly query with a short answer is charged %v more", n)
	}
	if n := costOf("{ v2_packets" + everything(loadSchema(t), "v2_packet_type") + "}"); n < 1 {
		t.Errorf("every field of 100 packets is charged %v more", n)
	}
}
