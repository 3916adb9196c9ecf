package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// follow makes the daemon follow the upstream at an address, with short polling intervals.
func follow(d *daemontest.Daemon, address string) {
	d.Configure("ATTESTD_GRAPHQL_UPSTREAM="+address+daemon.GraphQLPath, "ATTESTD_GRAPHQL_POLL_INTERVAL=100ms",
		"ATTESTD_GRAPHQL_REFRESH_INTERVAL=200ms")
}

func awaitReadiness(t *testing.T, d *daemontest.Daemon, status int, body string) {
	t.Helper()
	daemontest.Await(t, "/readyz is "+body, func() (bool, string) {
		resp, got := d.Ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == status && strings.Contains(got, body), got
	})
}

func replicaStatus(t *testing.T, d *daemontest.Daemon) (s wire.ReplicaStatus) {
	t.Helper()
	if out := d.Run(t, "replica", "status", "--output", "json"); json.Unmarshal([]byte(out), &s) != nil {
		t.Fatal(out)
	}
	return s
}

func attests(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	c, err := client.New(d.URL, d.Token, client.Options{})
	if err == nil {
		_, err = c.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{})
	}
	if err != nil {
		t.Errorf("attestations must not depend on an upstream: %v", err)
	}
}

// awaitSame waits until two replicas are equal, since tables are refreshed at their own interval. It returns the number
// of records.
func awaitSame(tb testing.TB, a, b *daemontest.Daemon) (records int) {
	tb.Helper()
	daemontest.Await(tb, "the replicas are equal", func() (ok bool, now string) {
		records, now = daemontest.Compare(tb, a, b)
		return now == "", now
	})
	return records
}

func TestADaemonKeepsInStepWithItsUpstream(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "500")
	d := daemontest.New(t)
	d.Program = daemontest.Raced(t)
	follow(d, up.URL)
	metrics := daemontest.FreeAddress(t)
	d.Configure("ATTESTD_GRAPHQL_MAX_LAG=2s", "ATTESTD_METRICS_LISTEN="+metrics)
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })

	if out := d.Run(t, "replica", "sync"); !strings.HasPrefix(out, "Synchronised with "+up.URL+daemon.GraphQLPath) {
		t.Error(out)
	}
	if records := awaitSame(t, up, d); records < 900 {
		t.Errorf("only %d records", records)
	}
	awaitReadiness(t, d, http.StatusOK, "ok")
	s := replicaStatus(t, d).Follower
	if s == nil || s.State != follower.StateLive || s.Backfilled.IsZero() || s.LagRows != 0 || s.LagSeconds == nil ||
		s.Failing {
		t.Errorf("%+v", s)
	}
	if out := d.Run(t, "replica", "status"); !regexp.MustCompile(
		`follower +live\nlag +[0-9.ms]+, 0 rows\n`).MatchString(out) {
		t.Error(out)
	}
	if out := d.Run(t, "replica", "verify", "--sample", "200"); !strings.Contains(out,
		"The replica equals its upstream.") {
		t.Error(out)
	}
	checkMetrics(t, metrics, "attestd_replica_backfilled 1", `attestd_replica_rows{kind="chain"} `,
		"attestd_replica_lag_rows 0",
		"attestd_replica_newest_timestamp_seconds 1", "attestd_replica_last_error_timestamp_seconds NaN",
		"attestd_replica_follower_failing 0", "attestd_replica_unverified 0", "attestd_follower_requests_total ")
	if out := d.Run(t, "doctor"); !regexp.MustCompile(`ok +upstream +http.* answers in`).MatchString(out) ||
		!strings.Contains(out, "the follower is live") {
		t.Error(out)
	}

	up.Kill(t)
	awaitReadiness(t, d, http.StatusServiceUnavailable, `"replica":"replica_behind"`)
	if resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(
		daemontest.CountsQuery)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") {
		t.Errorf("reads without the upstream: %s %s", resp.Status, body)
	}
	attests(t, d)
	if s := replicaStatus(t, d).Follower; !s.Failing || s.LastError == "" || s.LastErrorAt.IsZero() ||
		*s.LagSeconds < 2 {
		t.Errorf("%+v", s)
	}
	if out := d.Fails(t, "replica", "verify"); !strings.Contains(out, string(appliance.CodeUpstreamUnavailable)) {
		t.Error(out)
	}
	if out := d.Fails(t, "doctor"); !strings.Contains(out, "the follower fails") ||
		!strings.Contains(out, "replica is") {
		t.Error(out)
	}

	up.Start(t)
	up.Run(t, "replica", "generate", "--transfers", "50", "--seed", "9")
	awaitReadiness(t, d, http.StatusOK, "ok")
	d.Run(t, "replica", "sync")
	awaitSame(t, up, d)
}

func checkMetrics(t *testing.T, address string, wanted ...string) {
	t.Helper()
	_, text := (&daemontest.Daemon{URL: "http://" + address}).Ask(t, http.MethodGet, "/metrics", "", nil)
	for _, line := range wanted {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

func TestAFollowerGoesOnWhereItWasAfterARestart(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "300")
	d := daemontest.New(t)
	follow(d, up.URL)
	d.Start(t)
	d.Run(t, "replica", "sync")
	d.Kill(t)
	up.Run(t, "replica", "generate", "--transfers", "20", "--seed", "9")
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	d.Run(t, "replica", "sync")
	awaitSame(t, up, d)
	if s := replicaStatus(t, d).Follower; s.Written > 300 {
		t.Errorf("%d rows were written again, of some 40 new ones", s.Written)
	}
}

func TestADaemonForwardsToAnUpstream(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "50")
	d := daemontest.New(t)
	d.Configure("ATTESTD_GRAPHQL_SOURCE=proxy", "ATTESTD_GRAPHQL_UPSTREAM="+up.URL+daemon.GraphQLPath)
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	for name, query := range map[string]string{
		"rows":    `{"query":"{ v2_transfers(args: {p_limit: 3}) { sort_order status } }"}`,
		"counts":  daemontest.CountsQuery,
		"unknown": `{"query":"{ v2_bonds { id } }"}`, // forwarded: the upstream may know it
	} {
		want, wantBody := up.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		got, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		if got.StatusCode != want.StatusCode || body != wantBody {
			t.Errorf("%s: %s %s, want %s %s", name, got.Status, body, want.Status, wantBody)
		}
	}
	for _, path := range []string{"/api/rest/health", "/graphiql"} {
		if resp, body := d.Ask(t, http.MethodGet, path, "", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if _, err := os.Stat(d.Replica()); err == nil {
		t.Error("a proxy has made a replica")
	}
	if out := d.Fails(t, "replica", "sync"); !strings.Contains(out, "graphql.source") {
		t.Error(out)
	}

	up.Kill(t)
	resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(daemontest.CountsQuery))
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "UPSTREAM_UNAVAILABLE") {
		t.Errorf("without the upstream: %s %s", resp.Status, body)
	}
	awaitReadiness(t, d, http.StatusOK, "ok")
	attests(t, d)
	if out := d.Fails(t, "doctor"); !regexp.MustCompile(`fail +upstream`).MatchString(out) {
		t.Error(out)
	}
}

func TestDevMakesUpNoDataBesideAnUpstreams(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "50")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "attestd", "dev", "--dir", dir, "--listen", daemontest.FreeAddress(t),
		"--transfers", "500")
	cmd.Env = append(os.Environ(), "ATTESTD_GRAPHQL_UPSTREAM="+up.URL+daemon.GraphQLPath)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // it is killed
	defer func() { _ = cmd.Process.Kill() }()
	banner := bufio.NewScanner(out)
	for banner.Scan() && !strings.Contains(banner.Text(), "explore") {
	}
	if !strings.Contains(banner.Text(), "with the data of "+up.URL+daemon.GraphQLPath) {
		t.Error(banner.Text())
	}
	d := &daemontest.Daemon{Dir: dir}
	d.Run(t, "replica", "sync")
	if rows := replicaStatus(t, d).Rows[index.TransferType.Name]; rows != 50 {
		t.Errorf("%d transfers, want the 50 of the upstream", rows)
	}
}

// recorder is a proxy in front of an upstream that remembers the requests.
type recorder struct {
	url   string
	mu    sync.Mutex
	asked []string
}

func newRecorder(t *testing.T, upstream string) *recorder {
	t.Helper()
	target, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0) // from the upstream that a test has killed
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.asked = append(r.asked, string(body))
		r.mu.Unlock()
		request.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, request)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// count returns the number of requests that contain a text.
func (r *recorder) count(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, body := range r.asked {
		if strings.Contains(body, text) {
			n++
		}
	}
	return n
}

func TestOnlyWhatTheReplicaLacksFallsBackToTheUpstream(t *testing.T) {
	t.Parallel()
	up := daemontest.NewUpstream(t, "50")
	r := newRecorder(t, up.URL)
	d := daemontest.New(t)
	follow(d, r.url)
	d.Start(t)
	d.Run(t, "replica", "sync")
	const here = `{"query":"query IsHere { v2_stats_count { name value } }"}`
	const bonds = `{"query":"query IsBonds { v2_stats_count { name value } v2_bonds { id } }"}`
	if _, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds)); !strings.Contains(body,
		"v2_bonds") || r.count("IsBonds") != 0 {
		t.Errorf("without the fallback it is refused here: %s", body)
	}
	d.Kill(t)

	d.Configure("ATTESTD_GRAPHQL_FALLBACK=proxy")
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	if resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "",
		strings.NewReader(here)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") ||
		r.count("IsHere") != 0 {
		t.Errorf("what is here is answered here: %s %s", resp.Status, body)
	}
	_, want := up.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds))
	if _, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds)); body != want ||
		r.count("IsBonds") != 1 {
		t.Errorf("what is not here is the upstream's to answer, once, and whole: %s, want %s", body, want)
	}
	up.Kill(t)
	if resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "",
		strings.NewReader(here)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") {
		t.Errorf("what is here does not need the upstream: %s %s", resp.Status, body)
	}
}

func TestAReportSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	t.Parallel()
	report := follower.Report{
		Rows:     map[string]follower.Count{"packet": {Here: 10, Upstream: 12}, "transfer": {Here: 20, Upstream: 20}},
		Compared: map[string]int{"packet": 10, "transfer": 7},
		Behind:   3, Differing: 25, Doubtful: 1, Missing: []string{"v2_packet_type.structure"},
		Unverified: []follower.Quarantined{{Kind: "transfer", Key: "0x01 0", Reason: "base_amount is 5\x1b[31m"}},
	}
	for i := range 25 {
		report.Differences = append(report.Differences, follower.Difference{Kind: "packet",
			Key: fmt.Sprintf("0x%02d", i), What: "differs", Fields: []string{"status", "data"}})
	}
	var text strings.Builder
	writeReport(&text, report)
	for _, want := range []string{
		"chains       -     -         0\n", "packets      10    12        10\n", "transfers    20    20        7\n",
		"Differences, 20 of 25:", "0x19  differs  status, data", "Unverified, 1 of 1:",
		"25 rows differ from the upstream.", "1 rows fail verification", "a different number of rows",
		"3 rows of packets in transit are behind", "lacks v2_packet_type.structure",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.ContainsAny(text.String(), "\x1b") || strings.Contains(text.String(), "0x20") ||
		strings.Contains(text.String(), "The replica equals") {
		t.Error(text.String())
	}
}

// headersServer answers each request with 503, and sends a header of each request to values.
func headersServer(t *testing.T, name string) (address string, values <-chan string) {
	t.Helper()
	seen := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get(name)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	return server.URL, seen
}

func TestHeadersGoToTheConfiguredUpstreamOnlyAndCtrlCEndsASync(t *testing.T) {
	t.Parallel()
	address, values := headersServer(t, "X-Api-Key")
	other, otherValues := headersServer(t, "X-Api-Key")
	d := daemontest.NewReplica(t, address)
	secret := filepath.Join(d.Dir, "key")
	if err := os.WriteFile(secret, []byte("swordfish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Configure("ATTESTD_GRAPHQL_UPSTREAM_HEADERS=X-Api-Key: file:" + secret)
	for _, c := range []struct {
		args   []string
		values <-chan string
		want   string
	}{
		{[]string{"replica", "sync"}, values, "swordfish"},
		{[]string{"replica", "sync", "--upstream", other + daemon.GraphQLPath}, otherValues, ""},
	} {
		cmd := d.Command(c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-c.values:
			if got != c.want {
				t.Errorf("%v: the header is %q, want %q", c.args, got, c.want)
			}
		case <-time.After(daemontest.Patience):
			t.Error("nothing was asked")
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		exit, failed := errors.AsType[*exec.ExitError](err)
		if !failed || exit.ExitCode() != exitInterrupted || !strings.Contains(stderr.String(),
			"interrupted; 0 rows are written; run the same command again to continue\n") {
			t.Errorf("%v %s", err, stderr.String())
		}
	}
}
