package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/attestd/attestd/api/wire"
)

// overviewPage shows whether the appliance signs, whether the journal is intact, and whether the replica's data are
// fresh.
func overviewPage() page {
	return page{name: "overview", path: "/", title: "Overview", least: Viewer, routes: []route{
		{"GET /{$}", Viewer, showOverview},
		{"GET /overview/live", Viewer, followOverview},
		{"POST /overview/doctor", Viewer, examineAgain},
	}}
}

// statusInterval is how often a live page receives a new status.
const statusInterval = 3 * time.Second

// overview is the data of the page.
type overview struct {
	overviewNow
	Figures  []figure
	Findings findings
}

// overviewNow is the part of the data that is updated while the page is open.
type overviewNow struct {
	Answers []answer
	Status  wire.Status
	Lasts   time.Duration     // uptime of the daemon
	Pages   map[string]string // titles of the pages that the user may see, by path
}

func showOverview(w http.ResponseWriter, v *visit) error {
	current, err := overviewOf(v)
	if err != nil {
		return err
	}
	var samples []wire.Sample
	if err := v.Admin.Activity(v.Context(), graphSeconds, false, func(s wire.Sample) error {
		samples = append(samples, s)
		return nil
	}); err != nil {
		return err
	}
	return v.show(w, overview{current, figures(samples), v.console.doctor.recentFindings(v)})
}

func overviewOf(v *visit) (overviewNow, error) {
	status, err := v.Admin.Status(v.Context())
	if err != nil {
		return overviewNow{}, err
	}
	titles := make(map[string]string)
	for _, p := range v.console.pages {
		if v.Role >= p.least {
			titles[p.path] = p.title
		}
	}
	return overviewNow{answers(status, v.console.now()), status, time.Duration(status.UptimeSeconds) * time.Second,
		titles}, nil
}

// followOverview streams new samples, and the parts of the page that depend on the status, rendered as HTML by the
// page's own template.
func followOverview(w http.ResponseWriter, v *visit) error {
	return v.stream(w, func(ctx context.Context, send func(event string, data any) error) error {
		if err := send("begin", nil); err != nil {
			return err
		}
		var told time.Time
		return v.Admin.Activity(ctx, graphSeconds, true, func(s wire.Sample) error {
			if err := send("sample", s); err != nil {
				return err
			}
			if s.Time.Sub(told) < statusInterval || v.console.now().Sub(s.Time) > statusInterval {
				return nil
			}
			told = s.Time
			current, err := overviewOf(v)
			if err != nil {
				return err
			}
			html, err := v.console.looks.part("overview", "now", current)
			if err != nil {
				return err
			}
			return send("now", html)
		})
	})
}

// findings are the results of a doctor run.
type findings struct {
	Looking bool // a run is in progress
	At      time.Time
	Bad     []finding // state fail or warn
	Good    []finding
	Unseen  []finding // checks that only root can run
}

// finding is one check of doctor.
type finding struct {
	Check  string `json:"check"`
	State  string `json:"state"` // ok, warn or fail
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
}

// Looks returns the CSS class for the state.
func (f finding) Looks() string {
	return map[string]string{"ok": good, "warn": warn, "fail": bad}[f.State]
}

// Command returns the command that the remedy contains, or "".
func (f finding) Command() string { return commandIn(f.Remedy) }

const (
	// findingsLast is how long findings are reused, because a doctor run is expensive.
	findingsLast = time.Minute
	// findingsWait is how long a page waits for a run.
	findingsWait   = 2 * time.Second
	doctorDeadline = 2 * time.Minute
)

// doctor caches the findings for all users. It has at most one run at a time.
type doctor struct {
	mu      sync.Mutex
	found   findings
	running chan struct{} // closed when the run ends; nil if none runs
}

// recentFindings returns recent findings, or starts a run and waits up to findingsWait for it.
func (d *doctor) recentFindings(v *visit) findings {
	d.mu.Lock()
	if d.running == nil && v.console.now().Sub(d.found.At) > findingsLast {
		d.running = make(chan struct{})
		go d.run(v)
	}
	running, last := d.running, d.found
	d.mu.Unlock()
	if running == nil {
		return last
	}
	select {
	case <-running:
	case <-time.After(findingsWait):
	case <-v.Context().Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	found := d.found
	found.Looking = d.running != nil
	return found
}

func (d *doctor) run(v *visit) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.Context()), doctorDeadline)
	defer cancel()
	var report struct{ Checks []finding }
	found := findings{At: v.console.now()}
	defer func() {
		if cause := recover(); cause != nil { // this goroutine runs in the process that signs
			fault := finding{Check: "doctor", State: "fail", Detail: fmt.Sprintf("doctor panicked: %v", cause),
				Remedy: "attestd doctor"}
			found.Bad = append(found.Bad, fault)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.found = found
		close(d.running)
		d.running = nil
	}()
	if err := v.Admin.Doctor(ctx, &report); err != nil {
		found.Bad = []finding{{Check: "doctor", State: "fail", Detail: err.Error(), Remedy: "attestd doctor"}}
	}
	for _, state := range []string{"fail", "warn"} {
		for _, f := range report.Checks {
			switch {
			case f.State != state:
			case strings.HasPrefix(f.Remedy, "run doctor as root"):
				found.Unseen = append(found.Unseen, f)
			default:
				found.Bad = append(found.Bad, f)
			}
		}
	}
	for _, f := range report.Checks {
		if f.State == "ok" {
			found.Good = append(found.Good, f)
		}
	}
}

// examineAgain discards the findings, so that the next page starts a new run.
func examineAgain(w http.ResponseWriter, v *visit) error {
	v.console.doctor.mu.Lock()
	v.console.doctor.found.At = time.Time{}
	v.console.doctor.mu.Unlock()
	return v.redirect(w, "/#findings")
}
