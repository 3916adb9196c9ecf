package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// newUpstream runs an appliance with so many generated transfers until the test ends. program may name another version
// of attestd.
func newUpstream(tb testing.TB, transfers string, program ...string) *daemonProcess {
	tb.Helper()
	d := newDaemonFolder(tb)
	d.program = cmp.Or(strings.Join(program, ""), d.program)
	d.run(tb, "replica", "generate", "--transfers", transfers)
	d.start(tb)
	tb.Cleanup(func() {
		_ = d.cmd.Process.Kill() // it may have ended already
		_ = d.cmd.Wait()
	})
	return d
}

// follow makes the daemon follow the upstream at an address, with short polling intervals.
func (d *daemonProcess) follow(address string) {
	d.configure("ATTESTD_GRAPHQL_UPSTREAM="+address+daemon.GraphQLPath, "ATTESTD_GRAPHQL_POLL_INTERVAL=100ms",
		"ATTESTD_GRAPHQL_REFRESH_INTERVAL=200ms")
}

// await polls until holds returns true. It fails the test after patience.
func await(tb testing.TB, what string, holds func() (ok bool, now string)) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; {
		ok, now := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s; now: %s", what, patience, now)
		}
		time.Sleep(20 * time.Millisecond) // between two polls: the state can only be polled
	}
}

func (d *daemonProcess) awaitReadiness(t *testing.T, status int, body string) {
	t.Helper()
	await(t, "/readyz is "+body, func() (bool, string) {
		resp, got := d.ask(t, http.MethodGet, "/readyz", "", nil)
		return resp.StatusCode == status && strings.Contains(got, body), got
	})
}

func (d *daemonProcess) replicaStatus(t *testing.T) (s wire.ReplicaStatus) {
	t.Helper()
	if out := d.run(t, "replica", "status", "--output", "json"); json.Unmarshal([]byte(out), &s) != nil {
		t.Fatal(out)
	}
	return s
}

// fails runs a command that must fail, and returns its output.
func (d *daemonProcess) fails(t *testing.T, args ...string) string {
	t.Helper()
	out, err := d.command(args...).CombinedOutput()
	if err == nil {
		t.Errorf("attestd %s: succeeded\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}

func (d *daemonProcess) attests(t *testing.T) {
	t.Helper()
	c, err := client.New(d.url, d.token, client.Options{})
	if err == nil {
		_, err = c.Attest(t.Context(), randomRequest(), client.AttestOptions{})
	}
	if err != nil {
		t.Errorf("attestations must not depend on an upstream: %v", err)
	}
}

// export begins an export. Lines that are unread when end is called are lost.
func (d *daemonProcess) export(tb testing.TB) (lines *bufio.Reader, end func()) {
	tb.Helper()
	cmd := d.command("replica", "export", "-")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return bufio.NewReaderSize(out, 1<<20), func() {
		_ = out.Close()
		_ = cmd.Wait() // fails if lines are unread
	}
}

// compare compares the exports of two replicas line by line, up to the first difference. It returns the number of equal
// lines.
func compare(tb testing.TB, a, b *daemonProcess) (lines int, difference string) {
	tb.Helper()
	one, endOne := a.export(tb)
	defer endOne()
	other, endOther := b.export(tb)
	defer endOther()
	for ; ; lines++ {
		x, errX := one.ReadString('\n')
		y, errY := other.ReadString('\n')
		switch {
		case x != y:
			return lines, fmt.Sprintf("line %d:\n%s%s", lines+1, x, y)
		case errX == io.EOF && errY == io.EOF:
			return lines, ""
		case errX != nil || errY != nil:
			return lines, fmt.Sprintf("line %d: %v, %v", lines+1, errX, errY)
		}
	}
}

// awaitSame waits until two replicas are equal, since tables are refreshed at their own interval. It returns the number
// of records.
func awaitSame(tb testing.TB, a, b *daemonProcess) (records int) {
	tb.Helper()
	await(tb, "the replicas are equal", func() (ok bool, now string) {
		records, now = compare(tb, a, b)
		return now == "", now
	})
	return records
}

func TestADaemonKeepsInStepWithItsUpstream(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, "500")
	d := newDaemonFolder(t)
	d.follow(up.url)
	metrics := freeAddress(t)
	d.configure("ATTESTD_GRAPHQL_MAX_LAG=2s", "ATTESTD_METRICS_LISTEN="+metrics)
	d.start(t)
	t.Cleanup(func() { d.kill(t) })

	if out := d.run(t, "replica", "sync"); !strings.HasPrefix(out, "Synchronised with "+up.url+daemon.GraphQLPath) {
		t.Error(out)
	}
	if records := awaitSame(t, up, d); records < 900 {
		t.Errorf("only %d records", records)
	}
	d.awaitReadiness(t, http.StatusOK, "ok")
	s := d.replicaStatus(t).Follower
	if s == nil || s.State != follower.StateLive || s.Backfilled.IsZero() || s.LagRows != 0 || s.LagSeconds == nil ||
		s.Failing {
		t.Errorf("%+v", s)
	}
	if out := d.run(t, "replica", "status"); !regexp.MustCompile(
		`follower +live\nlag +[0-9.ms]+, 0 rows\n`).MatchString(out) {
		t.Error(out)
	}
	if out := d.run(t, "replica", "verify", "--sample", "200"); !strings.Contains(out,
		"The replica equals its upstream.") {
		t.Error(out)
	}
	checkMetrics(t, metrics, "attestd_replica_backfilled 1", `attestd_replica_rows{kind="chain"} `,
		"attestd_replica_lag_rows 0",
		"attestd_replica_newest_timestamp_seconds 1", "attestd_replica_last_error_timestamp_seconds NaN",
		"attestd_replica_follower_failing 0", "attestd_replica_unverified 0", "attestd_follower_requests_total ")
	if out := d.run(t, "doctor"); !regexp.MustCompile(`ok +upstream +http.* answers in`).MatchString(out) ||
		!strings.Contains(out, "the follower is live") {
		t.Error(out)
	}

	up.kill(t)
	d.awaitReadiness(t, http.StatusServiceUnavailable, `"replica":"replica_behind"`)
	if resp, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(
		countsQuery)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") {
		t.Errorf("reads without the upstream: %s %s", resp.Status, body)
	}
	d.attests(t)
	if s := d.replicaStatus(t).Follower; !s.Failing || s.LastError == "" || s.LastErrorAt.IsZero() ||
		*s.LagSeconds < 2 {
		t.Errorf("%+v", s)
	}
	if out := d.fails(t, "replica", "verify"); !strings.Contains(out, string(appliance.CodeUpstreamUnavailable)) {
		t.Error(out)
	}
	if out := d.fails(t, "doctor"); !strings.Contains(out, "the follower fails") ||
		!strings.Contains(out, "replica is") {
		t.Error(out)
	}

	up.start(t)
	up.run(t, "replica", "generate", "--transfers", "50", "--seed", "9")
	d.awaitReadiness(t, http.StatusOK, "ok")
	d.run(t, "replica", "sync")
	awaitSame(t, up, d)
}

func checkMetrics(t *testing.T, address string, wanted ...string) {
	t.Helper()
	_, text := (&daemonProcess{url: "http://" + address}).ask(t, http.MethodGet, "/metrics", "", nil)
	for _, line := range wanted {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("/metrics lacks %s", line)
		}
	}
}

func TestAFollowerGoesOnWhereItWasAfterARestart(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, "300")
	d := newDaemonFolder(t)
	d.follow(up.url)
	d.start(t)
	d.run(t, "replica", "sync")
	d.kill(t)
	up.run(t, "replica", "generate", "--transfers", "20", "--seed", "9")
	d.start(t)
	t.Cleanup(func() { d.kill(t) })
	d.run(t, "replica", "sync")
	awaitSame(t, up, d)
	if s := d.replicaStatus(t).Follower; s.Written > 300 {
		t.Errorf("%d rows were written again, of some 40 new ones", s.Written)
	}
}

func TestADaemonForwardsToAnUpstream(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, "50")
	d := newDaemonFolder(t)
	d.configure("ATTESTD_GRAPHQL_SOURCE=proxy", "ATTESTD_GRAPHQL_UPSTREAM="+up.url+daemon.GraphQLPath)
	d.start(t)
	t.Cleanup(func() { d.kill(t) })
	for name, query := range map[string]string{
		"rows":    `{"query":"{ v2_transfers(args: {p_limit: 3}) { sort_order status } }"}`,
		"counts":  countsQuery,
		"unknown": `{"query":"{ v2_bonds { id } }"}`, // forwarded: the upstream may know it
	} {
		want, wantBody := up.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		got, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		if got.StatusCode != want.StatusCode || body != wantBody {
			t.Errorf("%s: %s %s, want %s %s", name, got.Status, body, want.Status, wantBody)
		}
	}
	for _, path := range []string{"/api/rest/health", "/graphiql"} {
		if resp, body := d.ask(t, http.MethodGet, path, "", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if _, err := os.Stat(d.replica()); err == nil {
		t.Error("a proxy has made a replica")
	}
	if out := d.fails(t, "replica", "sync"); !strings.Contains(out, "graphql.source") {
		t.Error(out)
	}

	up.kill(t)
	resp, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(countsQuery))
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "UPSTREAM_UNAVAILABLE") {
		t.Errorf("without the upstream: %s %s", resp.Status, body)
	}
	d.awaitReadiness(t, http.StatusOK, "ok")
	d.attests(t)
	if out := d.fails(t, "doctor"); !regexp.MustCompile(`fail +upstream`).MatchString(out) {
		t.Error(out)
	}
}

func TestDevMakesUpNoDataBesideAnUpstreams(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, "50")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "attestd", "dev", "--dir", dir, "--listen", freeAddress(t), "--transfers",
		"500")
	cmd.Env = append(os.Environ(), "ATTESTD_GRAPHQL_UPSTREAM="+up.url+daemon.GraphQLPath)
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
	if !strings.Contains(banner.Text(), "with the data of "+up.url+daemon.GraphQLPath) {
		t.Error(banner.Text())
	}
	d := &daemonProcess{dir: dir}
	d.run(t, "replica", "sync")
	if rows := d.replicaStatus(t).Rows[index.TransferType.Name]; rows != 50 {
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
	up := newUpstream(t, "50")
	r := newRecorder(t, up.url)
	d := newDaemonFolder(t)
	d.follow(r.url)
	d.start(t)
	d.run(t, "replica", "sync")
	const here = `{"query":"query IsHere { v2_stats_count { name value } }"}`
	const bonds = `{"query":"query IsBonds { v2_stats_count { name value } v2_bonds { id } }"}`
	if _, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds)); !strings.Contains(body,
		"v2_bonds") || r.count("IsBonds") != 0 {
		t.Errorf("without the fallback it is refused here: %s", body)
	}
	d.kill(t)

	d.configure("ATTESTD_GRAPHQL_FALLBACK=proxy")
	d.start(t)
	t.Cleanup(func() { d.kill(t) })
	if resp, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "",
		strings.NewReader(here)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") ||
		r.count("IsHere") != 0 {
		t.Errorf("what is here is answered here: %s %s", resp.Status, body)
	}
	_, want := up.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds))
	if _, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(bonds)); body != want ||
		r.count("IsBonds") != 1 {
		t.Errorf("what is not here is the upstream's to answer, once, and whole: %s, want %s", body, want)
	}
	up.kill(t)
	if resp, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "",
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
