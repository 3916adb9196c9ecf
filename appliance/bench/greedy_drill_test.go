package bench

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// Anonymous clients ask for the largest answers, do not read them, ask repeatedly, or disconnect. Each attestation is
// still answered, and all resources are freed afterwards. BenchmarkGreedyReads measures it with more clients.
func TestDrillAttestationsGoOnWhileStrangersAreGreedy(t *testing.T) {
	d := daemontest.New(t)
	d.Run(t, "replica", "generate", "--transfers", "200")
	metrics := daemontest.FreeAddress(t)
	d.Configure("ATTESTD_METRICS_LISTEN="+metrics, daemontest.LongRequests)
	d.Start(t)
	defer d.Kill(t)
	s := &stranger{url: d.URL, query: largestQuery(t, d.URL), got: make(map[string]int)}
	stop := make(chan struct{})
	var greedy sync.WaitGroup
	greedy.Go(func() { s.all(20, func(n int) { s.readSlowly(n, stop) }) })
	greedy.Go(func() { s.all(8, func(n int) { s.readAgainAndAgain(100+n, stop) }) })
	greedy.Go(func() { s.resetAtOnce(50, stop) })
	for began := time.Now(); time.Since(began) < 3*time.Second || !s.hadAll() && time.Since(began) < daemontest.Patience; {
		body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, daemontest.RandomRequest().UnspendableAddress,
			daemontest.RandomRequest().Beneficiary)
		if resp, text := d.Ask(t, http.MethodPost, "/functions/v1/attest", d.Token,
			strings.NewReader(body)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s", resp.Status, text)
		}
	}
	close(stop)
	greedy.Wait()
	if !s.hadAll() {
		t.Errorf("the strangers got %v: that was no load", s.got)
	}
	daemontest.Await(t, "no bytes of answers are held for nobody", func() (bool, string) {
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
