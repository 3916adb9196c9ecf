package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
)

const (
	dashboardFile = "../../../packaging/grafana/attestd.json"
	rulesFile     = "../../../packaging/prometheus/attestd.rules.yml"
)

// The dashboard and the alerts only query metrics and labels that a daemon with all features exports. Some are exported
// by the member of a cluster only.
func TestTheDashboardAndTheAlertsAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	d, member := daemontest.New(t), daemontest.NewMembers(t, 1)[0]
	node := chaintest.New(t)
	policy, listen := filepath.Join(d.Dir, "policy"), daemontest.FreeAddress(t)
	const witness = "witness w1 w1.example+11c8f4c8+BEtCePP28bkSi/ZxLF65+cydHDRh+AhwUc5Okowfb9iu http://127.0.0.1:1\nquorum w1\n"
	if err := os.WriteFile(policy, []byte(witness), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Environ = []string{
		"ATTESTD_METRICS_LISTEN=" + listen, "ATTESTD_JOURNAL_WITNESSES=" + policy,
		"ATTESTD_GRAPHQL_UPSTREAM=http://127.0.0.1:1/v1/graphql", "ATTESTD_GRAPHQL_FALLBACK=proxy",
		`ATTESTD_AUDIT_SINKS=[{"name": "copy", "type": "file", "path": "` + filepath.Join(d.Dir, "audit.jsonl") + `"}]`,
		fmt.Sprintf(
			`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": [%q], "address": %q, "start_block": 0, "confirmations": 0}]`, node.URL, chaintest.Contract),
	}
	d.Start(t)
	defer func() { d.Kill(t) }()
	var there map[string]map[string]bool
	daemontest.Await(t, "the sink's lag is known", func() (bool, string) { // once the journal was read
		there = scrape(t, "http://"+listen+"/metrics")
		return there["attestd_sink_lag_records"] != nil, "it is not"
	})
	d.Run(t, "webhook", "create", "billing", "--url", "https://hooks.invalid/attestd")
	for name, labels := range scrape(t, "http://"+listen+"/metrics") {
		there[name] = labels
	}
	listen = daemontest.FreeAddress(t)
	quorumAndIndexer(member, d, node, listen)
	member.Start(t)
	defer func() { member.Kill(t) }()
	daemontest.Await(t, "the members are compared", func() (bool, string) { // once the database answers
		shared := scrape(t, "http://"+listen+"/metrics")
		for name, labels := range shared {
			if there[name] == nil {
				there[name] = labels
			}
		}
		return shared["attestd_cluster_members_differ"] != nil, "they are not"
	})
	for title, expr := range queries(t) {
		var labels []string
		for _, m := range selector.FindAllStringSubmatch(expr, -1) {
			has, found := there[m[1]]
			if !found {
				t.Errorf("%s: there is no metric %s", title, m[1])
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				if !has[l[1]] && !ofPrometheus[l[1]] {
					t.Errorf("%s: %s has no label %s", title, m[1], l[1])
				}
			}
			for l := range has {
				labels = append(labels, l)
			}
		}
		for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(m[1], ",") {
				if l = strings.TrimSpace(l); !slices.Contains(labels, l) && !ofPrometheus[l] {
					t.Errorf("%s: nothing that it asks for has the label %s", title, l)
				}
			}
		}
	}
}

// quorumAndIndexer configures a member of a quorum that indexes a chain.
func quorumAndIndexer(member *daemontest.Daemon, d *daemontest.Daemon, node *chaintest.Node, listen string) {
	member.Configure("ATTESTD_METRICS_LISTEN="+listen,
		"ATTESTD_QUORUM_CONTRACT="+daemontest.QuorumContract, "ATTESTD_QUORUM_THRESHOLD=1",
		`ATTESTD_QUORUM_MEMBERS=[{"name": "geneva", "signer": "`+devUnspendable+
			`", "url": "http://127.0.0.1:1", "api_key": "file:`+filepath.Join(d.Dir, "api-key")+`"}]`,
		"ATTESTD_GRAPHQL_SOURCE=chains", fmt.Sprintf(
			`ATTESTD_INDEXER_CHAINS=[{"id": "ethereum.1337", "rpcs": [%q], "core": %q, "zkgm": %q, "confirmations": 0}]`,
			node.URL, chaintest.Emitter, chaintest.Emitter))
}

var (
	selector = regexp.MustCompile(`\b((?:attestd|process)_[a-z_]+)(\{[^}]*\})?`)
	label    = regexp.MustCompile(`(\w+) *(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|on|group_left) *\(([^)]+)\)`)
	sampled  = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
)

// ofPrometheus are the labels that Prometheus adds, and key, which metrics have if attestor keys have names.
var ofPrometheus = map[string]bool{"instance": true, "job": true, "key": true}

// scrape returns the labels of each metric.
func scrape(t *testing.T, url string) map[string]map[string]bool {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]map[string]bool{"up": {}}
	for line := range strings.Lines(string(body)) {
		m := sampled.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		if there[m[1]] == nil {
			there[m[1]] = make(map[string]bool)
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			there[m[1]][l[1]] = true
		}
	}
	return there
}

// queries are the expressions of the dashboard's panels and of the alerts, by title.
func queries(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	read(t, dashboardFile, json.Unmarshal, &dashboard)
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			all["panel "+p.Title+" "+q.RefID] = q.Expr
		}
	}
	panels := len(all)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	read(t, rulesFile, yaml.Unmarshal, &rules)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	if panels < 30 || len(all)-panels < 30 {
		t.Fatalf("only %d queries of panels and %d of alerts are found", panels, len(all)-panels)
	}
	return all
}

func read(t *testing.T, file string, decode func([]byte, any) error, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = decode(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
