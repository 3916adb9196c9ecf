package graphql_test

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/graphql"
)

// logLines counts log lines, by level and message.
type logLines struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}

func (l *logLines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return strings.Join(l.lines, "\n")
}

// breakerTest is a proxy with access to its breaker's state and log.
type breakerTest struct {
	*server
	*hosted
	log      *logLines
	registry *prometheus.Registry
	pause    time.Duration
}

func newBreakerTest(t *testing.T, pause time.Duration) *breakerTest {
	t.Helper()
	b := &breakerTest{log: &logLines{}, registry: prometheus.NewRegistry(), pause: pause}
	b.server, b.hosted = newProxy(t,
		graphql.WithBreakerOpen(graphql.Options{Log: slog.New(b.log), Registry: b.registry}, pause))
	return b
}

// expect checks the breaker's state, the number of upstream requests so far, and the log lines since the last call.
func (b *breakerTest) expect(t *testing.T, state float64, asked int, logged string) {
	t.Helper()
	b.wasAsked(t, asked)
	if got := gatherGauge(t, b.registry, "attestd_upstream_breaker_state"); got != state {
		t.Errorf("state %v, want %v", got, state)
	}
	if got := b.log.take(); got != logged {
		t.Errorf("logged %q, want %q", got, logged)
	}
}

// failing sends a request that must fail. leftAlone says whether the breaker must be open.
func (b *breakerTest) failing(t *testing.T, leftAlone bool) {
	t.Helper()
	got := b.post(t, statsQuery, "")
	retry, err := strconv.ParseFloat(got.header.Get("Retry-After"), 64)
	after := time.Duration(retry) * time.Second
	rest := time.Second
	if leftAlone {
		rest = max(rest, b.pause)
	}
	if got.status != 503 || got.code(t) != "UPSTREAM_UNAVAILABLE" || err != nil || after > rest || after < rest*9/10 ||
		strings.Contains(got.body, leftAloneSaid) != leftAlone {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
}

const leftAloneSaid = "not queried for some seconds"

// tried sends requests until the upstream has received the given number.
func (b *breakerTest) tried(t *testing.T, want int) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); len(b.requests()) < want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing tries")
		}
		b.post(t, statsQuery, "")
	}
}

const opened = `WARN the upstream keeps failing: forwarding of queries is suspended error=the upstream answered 500: HTTP 500, "text/plain": "oops"`

func TestBreakerOpens(t *testing.T) {
	b := newBreakerTest(t, time.Hour)
	b.fails(says(500, "text/plain", "oops"))
	for range 4 {
		b.failing(t, false)
	}
	b.fails(nil)
	b.post(t, statsQuery, "").data(t) // a success between failures resets the count
	b.fails(says(500, "text/plain", "oops"))
	for range 4 {
		b.failing(t, false)
	}
	b.expect(t, 0, 9, "")
	b.failing(t, false)
	b.expect(t, 2, 10, opened)
	for range 20 {
		b.failing(t, true)
	}
	b.expect(t, 2, 10, "")
}

func TestBreakerTriesAndCloses(t *testing.T) {
	const pause, trials = 50 * time.Millisecond, 7
	b := newBreakerTest(t, pause)
	b.fails(says(500, "text/plain", "oops"))
	b.tried(t, 5)
	if logged := b.log.take(); logged != opened {
		t.Errorf("logged %q", logged)
	}

	// After each pause, one trial request fails, and no further line is logged.
	began := time.Now()
	b.tried(t, 5+trials)
	if took := time.Since(began); took < (trials-1)*pause {
		t.Errorf("%d tried within %s", trials, took)
	}
	if logged := b.log.take(); logged != "" {
		t.Errorf("logged %q", logged)
	}

	// During a trial, all other requests are refused at once.
	entered, release := make(chan struct{}), make(chan struct{})
	b.fails(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says(200, mediaJSON, `{"data":{}}`)(w, r)
	})
	var trial sync.WaitGroup
	trial.Go(func() { b.tried(t, 5+trials+1) })
	<-entered
	b.failing(t, true)
	b.expect(t, 1, 5+trials+1, "")
	close(release)
	trial.Wait()
	b.fails(nil)
	b.post(t, statsQuery, "").data(t)
	b.expect(t, 0, 5+trials+2, "INFO the upstream answers again: forwarding of queries resumes")
}

func gatherGauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestWhatOpensTheBreaker(t *testing.T) {
	canceled := func(t *testing.T, s *server, h *hosted) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := len(h.requests())
		done := make(chan string)
		go func() { done <- s.e.ExecuteContext(ctx, statsQuery) }()
		h.await(t, asked+1)
		cancel()
		if got := (answer{body: <-done}); got.code(t) != "timeout" {
			t.Errorf("got %s", got.body)
		}
	}
	leftAlone, wanted := 0, map[bool]int{true: 3, false: 0}
	post := func(t *testing.T, s *server, _ *hosted) {
		if strings.Contains(s.post(t, statsQuery, "").body, leftAloneSaid) {
			leftAlone++
		}
	}
	for _, tt := range []struct {
		name  string
		fault http.HandlerFunc
		ask   func(*testing.T, *server, *hosted)
		opens bool
	}{
		{"500", says(500, "", ""), post, true},
		{"429", says(429, mediaJSON, `{"errors":[{"message":"slow down"}]}`), post, true},
		{"bad bodies", says(200, mediaJSON, `{"data":`), post, true},
		{"no key", says(401, "", ""), post, true},
		{"cut", cuts, post, true},
		{"too slow", stalls, post, true},
		{"refusals", says(400, mediaJSON, `{"errors":[{"message":"no"}]}`), post, false},
		{"errors", says(200, mediaJSON, `{"errors":[{"message":"no"}]}`), post, false},
		{"large answers", says(200, mediaJSON, `{"data":"`+strings.Repeat("x", 6000)+`"}`), post, false},
		{"clients that go away", stalls, canceled, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := time.Minute
			if tt.name == "too slow" {
				timeout = 500 * time.Millisecond
			}
			o := graphql.Options{Limits: graphql.Limits{MaxResponseBytes: 5000, Timeout: timeout}}
			s, h := newProxy(t, graphql.WithBreakerOpen(o, time.Hour))
			h.fails(tt.fault)
			leftAlone = 0
			for range 8 {
				tt.ask(t, s, h)
			}
			want := wanted[tt.opens]
			if leftAlone != want {
				t.Errorf("the upstream was left alone %d times, want %d", leftAlone, want)
			}
			if tt.name != "too slow" { // a request may time out before it is sent
				h.wasAsked(t, 8-want)
			}
		})
	}
}
