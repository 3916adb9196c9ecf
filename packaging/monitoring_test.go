package packaging

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const rulesFile = "prometheus/attestd.rules.yml"

// promtool checks the rules and runs the tests of the alerts.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"check", "rules", rulesFile},
		{"test", "rules", "prometheus/attestd.rules.test.yml"}} {
		promtool(t, args...)
	}
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	program, err := exec.LookPath("../bin/promtool") // installed by packaging/promtool.sh
	if err != nil {
		program = "promtool"
		need(t, program)
	}
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Prometheus can parse each query of the dashboard. promtool parses rules only, so the test makes each query a rule.
func TestPrometheusReadsTheDashboardsQueries(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("grafana/attestd.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Targets            []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	type recording struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var all []recording
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, p := range dashboard.Panels {
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("%s does not fit the grid: %+v", p.Title, p.GridPos)
		}
		if len(p.Targets) > 0 && p.Description == "" {
			t.Errorf("%s does not say what it shows", p.Title)
		}
		for _, q := range p.Targets {
			all = append(all,
				recording{fmt.Sprintf("panel:%d:%s", p.ID, strings.ToLower(q.RefID)), variables.Replace(q.Expr)})
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d queries are found", len(all))
	}
	rules, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": all}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.rules.yml")
	if err := os.WriteFile(file, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// For each alert there is a case in which it fires and one in which it does not.
func TestEachAlertIsTestedBothWays(t *testing.T) {
	t.Parallel()
	var tests struct {
		Tests []struct {
			Cases []struct {
				Alert string `yaml:"alertname"`
				Fires []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	readYAML(t, "prometheus/attestd.rules.test.yml", &tests)
	fires, silent := make(map[string]bool), make(map[string]bool)
	for _, test := range tests.Tests {
		for _, c := range test.Cases {
			if len(c.Fires) > 0 {
				fires[c.Alert] = true
			} else {
				silent[c.Alert] = true
			}
		}
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: is there a case in which it fires: %v; and one in which it does not: %v", r.Alert,
				fires[r.Alert], silent[r.Alert])
		}
	}
}

type rule struct {
	Alert, Expr string
	Annotations struct{ Summary, Remedy string }
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	readYAML(t, rulesFile, &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("no rule in %s", rulesFile)
	}
	return all
}

func readYAML(t *testing.T, file string, v any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

var metricName = regexp.MustCompile(`attestd_[a-z_]+[a-z]`)

// Alerts refer only to metrics that exist.
func TestRulesNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	exists := metrics(t)
	for _, r := range rules(t) {
		if r.Annotations.Summary == "" || r.Annotations.Remedy == "" {
			t.Errorf("%s says neither what is wrong nor what to do: %+v", r.Alert, r.Annotations)
		}
		for _, name := range metricName.FindAllString(r.Expr, -1) {
			if !exists[name] && !exists[strings.TrimSuffix(name, "_bucket")] {
				t.Errorf("%s: there is no metric %s", r.Alert, name)
			}
		}
	}
}

// The table of metrics in operations.md is complete, and each metric in it exists.
func TestOperationsTellsEachMetric(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| metric | meaning |")
	if !found {
		t.Fatal("operations.md has no table of metrics")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	told := make(map[string]bool)
	for _, name := range metricName.FindAllString(table, -1) {
		if told[name] {
			t.Errorf("the table tells %s twice", name)
		}
		told[name] = true
	}
	exists := metrics(t)
	for _, name := range slices.Sorted(maps.Keys(exists)) {
		if !told[name] {
			t.Errorf("the table does not tell %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if !exists[name] {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// metrics returns the metric names in the program's source, where each is a whole string.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	literal := regexp.MustCompile(`"(attestd_[a-z_]+)"`)
	names := make(map[string]bool)
	for _, root := range []string{"../api", "../appliance", "../hsm", "../store"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range literal.FindAllSubmatch(source, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(names) < 30 {
		t.Fatalf("only %d metrics are found: %v", len(names), names)
	}
	return names
}
