package main

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemon"
)

// Anonymous clients ask for the largest answers, do not read them, ask repeatedly, or disconnect. Each attestation is
// still answered, and all resources are freed afterwards. BenchmarkGreedyReads measures it with more clients.
func TestDrillAttestationsGoOnWhileStrangersAreGreedy(t *testing.T) {
	d := newDaemonFolder(t)
	d.run(t, "replica", "generate", "--transfers", "200")
	metrics := freeAddress(t)
	d.configure("ATTESTD_METRICS_LISTEN="+metrics, longRequests)
	d.start(t)
	defer d.kill(t)
	s := &stranger{url: d.url, query: largestQuery(t, d.url), got: make(map[string]int)}
	stop := make(chan struct{})
	var greedy sync.WaitGroup
	greedy.Go(func() { s.all(20, func(n int) { s.readSlowly(n, stop) }) })
	greedy.Go(func() { s.all(8, func(n int) { s.readAgainAndAgain(100+n, stop) }) })
	greedy.Go(func() { s.resetAtOnce(50, stop) })
	for began := time.Now(); time.Since(began) < 3*time.Second || !s.hadAll() && time.Since(began) < patience; {
		body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, randomRequest().UnspendableAddress,
			randomRequest().Beneficiary)
		if resp, text := d.ask(t, http.MethodPost, "/functions/v1/attest", d.token,
			strings.NewReader(body)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s", resp.Status, text)
		}
	}
	close(stop)
	greedy.Wait()
	if !s.hadAll() {
		t.Errorf("the strangers got %v: that was no load", s.got)
	}
	await(t, "no bytes of answers are held for nobody", func() (bool, string) {
		held := metric(t, metrics, "attestd_graphql_answer_bytes")
		return held == "0", held
	})
}

// hadAll reports whether anonymous clients were answered, refused, and reset.
func (s *stranger) hadAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got["200"] > 0 && s.got["503"] > 0 && s.got["reset"] > 0
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, address, name string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return value
		}
	}
	t.Fatal("there is no metric " + name)
	return ""
}

// A costly query is charged as many requests, and its client's next requests wait. Other clients are not affected.
func TestACostlyQueryCountsAsManyOfItsCallersRate(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.run(t, "replica", "generate", "--transfers", "200")
	const price = 10 // seconds between two usual requests
	d.configure("ATTESTD_LIMITS_GRAPHQL_RATE=6/m")
	d.start(t)
	defer d.kill(t)
	const counts = `{"query":"{ v2_stats_count { name value } }"}`
	costly := `{"query":"{ a: v2_packets { data decoded traces { chain { display_name } } } b: v2_packets { c: data d: data e: data } }"}`
	if resp, text := d.ask(t, http.MethodPost, daemon.GraphQLPath, "",
		strings.NewReader(costly)); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %.300s", resp.Status, text)
	}
	resp, text := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(counts))
	if wait, err := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests ||
		err != nil || wait <= price {
		t.Errorf("after a costly query: %s, Retry-After %q %s", resp.Status, resp.Header.Get("Retry-After"), text)
	}
	if resp, text := d.ask(t, http.MethodPost, daemon.GraphQLPath, d.token,
		strings.NewReader(counts)); resp.StatusCode != http.StatusOK {
		t.Errorf("by an API key: %s %s", resp.Status, text)
	}
}
