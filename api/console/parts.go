package console

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/witness"
)

// Part is a part of the appliance with a page of its own, and the page's path. The pages of a replica and a quorum show
// more.
type Part string

// The parts that may be configured.
const (
	Watchtower Part = "watchtower"
	Witnesses  Part = "witnesses"
	Cluster    Part = "cluster"
	Sinks      Part = "sinks"
	Policy     Part = "policy"

	backups Part = "backups" // each appliance has them
)

// partPages returns the pages of the configured parts, and that of backups.
func partPages(configured []Part) (all []page) {
	for _, p := range []struct {
		Part
		title  string
		checks []string // of the status
		add    func(context.Context, *visit, *partView) error
	}{
		{Watchtower, "Watchtower", []string{"chain"}, addChain},
		{Witnesses, "Witnesses", []string{"witnesses"}, addWitnesses},
		{Cluster, "Cluster", []string{"cluster"}, addCluster},
		{Sinks, "Sinks", []string{"sinks"}, addSinks},
		{Policy, "Policy", []string{"stop", "approvers"}, addPolicy},
		{backups, "Backups", []string{"backup"}, addBackups},
	} {
		if p.Part != backups && !slices.Contains(configured, p.Part) {
			continue
		}
		read := func(ctx context.Context, v *visit) (any, error) {
			status, err := v.Admin.Status(ctx)
			if err != nil {
				return nil, err
			}
			data := partView{Part: p.Part, Changes: v.IsOperator(), Auditor: v.IsAuditor()}
			for _, check := range p.checks {
				for _, f := range health.Of(status.Checks, check) {
					data.Findings = append(data.Findings, finding{f})
				}
			}
			return data, p.add(ctx, v, &data)
		}
		path := "/" + string(p.Part)
		made := page{name: "part", path: path, title: p.title, least: Viewer, routes: []route{
			{"GET " + path, Viewer, func(w http.ResponseWriter, v *visit) error {
				data, err := read(v.Context(), v)
				if err != nil {
					return err
				}
				return v.show(w, data)
			}},
			{"GET " + path + "/live", Viewer, func(w http.ResponseWriter, v *visit) error {
				return v.followLive(w, partInterval, func(ctx context.Context) (any, error) { return read(ctx, v) })
			}},
		}}
		if p.Part == backups {
			made.routes = append(made.routes, route{"POST /backups", Operator, downloadBackup})
		}
		all = append(all, made)
	}
	return all
}

// partInterval is the time between two updates of a live page of a part.
const partInterval = 5 * time.Second

// partView is the state of a part. Only the field of the part is set.
type partView struct {
	Part     Part
	Findings []finding
	Changes  bool // the user may make changes
	Auditor  bool

	Chain     *chain.Status
	Witnesses *witness.Status
	Cluster   *wire.Cluster
	Sinks     []sinks.Status
	Settings  []shownSetting
}

func addChain(ctx context.Context, v *visit, data *partView) error {
	status, err := v.Admin.ChainStatus(ctx)
	data.Chain = &status
	return err
}

func addWitnesses(ctx context.Context, v *visit, data *partView) error {
	status, err := v.Admin.Witnesses(ctx)
	data.Witnesses = &status
	return err
}

func addCluster(ctx context.Context, v *visit, data *partView) error {
	status, err := v.Admin.Cluster(ctx)
	data.Cluster = &status
	return err
}

func addSinks(ctx context.Context, v *visit, data *partView) (err error) {
	data.Sinks, err = v.Admin.Sinks(ctx)
	return err
}

func addPolicy(ctx context.Context, v *visit, data *partView) error {
	return data.addSettings(ctx, v, "attestation.policy", "attestation.screening_list")
}

func addBackups(ctx context.Context, v *visit, data *partView) error {
	return data.addSettings(ctx, v, "backup.")
}

// addSettings adds the settings whose names begin with one of the prefixes.
func (p *partView) addSettings(ctx context.Context, v *visit, prefixes ...string) error {
	settings, err := v.Admin.Settings(ctx)
	for _, s := range settings {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(s.Name, prefix) }) {
			p.Settings = append(p.Settings, shownSetting{Setting: s, Lines: lines(s.Value)})
		}
	}
	return err
}

// partPath returns the path of the page that shows more about a check, or "".
func (v *visit) partPath(check string) string {
	path := map[string]string{"chain": "/watchtower", "backup": "/backups", "upstream": "/replica",
		"approvers": "/approvals", "journal": "/audit"}[check]
	if path == "" {
		path = "/" + check
	}
	if slices.ContainsFunc(v.console.pages, func(p page) bool { return p.path == path && v.Role >= p.least }) {
		return path
	}
	return ""
}
