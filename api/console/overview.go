package console

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/journal"
)

// overviewPage shows whether the appliance signs, whether the journal is intact, and whether the replica's data are
// fresh.
func overviewPage() page {
	return page{name: "overview", path: "/", title: "Overview", least: Viewer, routes: []route{
		{"GET /{$}", Viewer, showOverview},
		{"GET /overview/live", Viewer, followOverview},
		{"GET /overview/history", Viewer, sendHistory},
		{"POST /overview/doctor", Viewer, examineAgain},
	}}
}

// statusInterval is how often a live page receives a new status.
const statusInterval = 3 * time.Second

// overview is the data of the page.
type overview struct {
	overviewNow
	Span     timeSpan // of the graphs
	Spans    []timeSpan
	Figures  []figure
	Findings findings
	Events   []eventRow // the newest
}

// overviewNow is the part of the data that is updated while the page is open.
type overviewNow struct {
	Faults  []finding // what is not well, the failures first
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
	span := readSpan(v.URL.Query().Get("span"))
	shown := figures(samples)
	if !span.Live() {
		history, err := v.Admin.History(v.Context(), span.Seconds)
		if err != nil {
			return err
		}
		shown = withHistory(shown, history.Steps)
	}
	found := v.console.doctor.recentFindings(v)
	current.Faults = faults(current.Status.Checks, found)
	events, err := newestEvents(v)
	if err != nil {
		return err
	}
	rows, err := v.describe(events)
	if err != nil {
		return err
	}
	return v.show(w, overview{current, span, spans, shown, found, rows})
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
	return overviewNow{faults(status.Checks, v.console.doctor.findingsFor(v, status.Checks)),
		answers(status, v.console.now()), status, time.Duration(status.UptimeSeconds) * time.Second, titles}, nil
}

// faults joins the checks of the status with doctor's findings about parts that the status does not rate. Doctor's
// findings may be a minute old, so the status wins.
func faults(checks []health.Finding, found findings) (all []finding) {
	rated := make(map[string]bool)
	for _, f := range checks {
		rated[f.Check] = true
	}
	joined := slices.Clone(checks)
	for _, f := range found.Bad {
		repeats := f.Check == "daemon" && f.Remedy == health.RecoveryRemedy // a part that the status rates
		if !rated[f.Check] && !repeats {
			joined = append(joined, f.Finding)
		}
	}
	for _, f := range health.Faults(joined) {
		if f.Check != "stop" { // the answer about signing says it
			all = append(all, finding{f})
		}
	}
	return all
}

// feedEvents is the number of events on the overview.
const feedEvents = 8

func newestEvents(v *visit) ([]journal.Entry, error) {
	return v.Admin.Records(v.Context(), journal.Query{EventsOnly: true, Limit: feedEvents})
}

// describe describes events, with the current names of the API keys.
func (v *visit) describe(events []journal.Entry) ([]eventRow, error) {
	keys, err := keyNames(v)
	return eventRows(events, keys), err
}

// followOverview streams new samples, and the parts of the page that depend on the status, and the newest events,
// rendered as HTML by the page's own template.
func followOverview(w http.ResponseWriter, v *visit) error {
	return v.stream(w, func(ctx context.Context, send func(event string, data any) error) error {
		if err := send("begin", nil); err != nil {
			return err
		}
		var told time.Time
		newest := int64(-1) // index of the newest event that was sent
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
			if err := send("now", html); err != nil {
				return err
			}
			newest, err = v.sendFeed(newest, send)
			return err
		})
	})
}

// sendFeed sends the newest events if there are some beyond the index that was sent last. It returns the newest index.
func (v *visit) sendFeed(sent int64, send func(event string, data any) error) (newest int64, err error) {
	events, err := newestEvents(v)
	if err != nil || len(events) == 0 || events[0].Index == sent {
		return sent, err
	}
	rows, err := v.describe(events)
	if err != nil {
		return sent, err
	}
	html, err := v.console.looks.part("overview", "feed", rows)
	if err != nil {
		return sent, err
	}
	return events[0].Index, send("feed", html)
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
type finding struct{ health.Finding }

// Looks returns the CSS class for the state.
func (f finding) Looks() string {
	return map[health.State]string{health.OK: good, health.Warn: warn, health.Fail: bad}[f.State]
}

// Command returns the command that the remedy contains, or "".
func (f finding) Command() string { return commandIn(f.Remedy) }

const (
	// findingsLast is how long findings are reused, because a doctor run is expensive.
	findingsLast = time.Minute
	// findingsStay is the shortest time between two runs, if the checks of the status change in between.
	findingsStay = 10 * time.Second
	// findingsWait is how long a page waits for a run.
	findingsWait   = 2 * time.Second
	doctorDeadline = 2 * time.Minute
)

// doctor caches the findings for all users. It has at most one run at a time.
type doctor struct {
	mu      sync.Mutex
	found   findings
	running chan struct{} // closed when the run ends; nil if none runs
	faulty  string        // the checks that were not well at the start of the last run
}

// findingsFor returns the findings of the last run. If other checks of the status fail than at its start, it starts a
// run for the next page: doctor knows more about the cause.
func (d *doctor) findingsFor(v *visit, checks []health.Finding) findings {
	var names []string
	for _, f := range health.Faults(checks) {
		names = append(names, f.Check)
	}
	faulty := strings.Join(names, " ")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.faulty != faulty && v.console.now().Sub(d.found.At) > findingsStay {
		d.faulty = faulty
		d.start(v)
	}
	return d.found
}

// start starts a run unless one is in progress. d.mu must be held.
func (d *doctor) start(v *visit) {
	if d.running == nil {
		d.running = make(chan struct{})
		go d.run(v)
	}
}

// recentFindings returns recent findings, or starts a run and waits up to findingsWait for it.
func (d *doctor) recentFindings(v *visit) findings {
	d.mu.Lock()
	if v.console.now().Sub(d.found.At) > findingsLast {
		d.start(v)
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
			found.Bad = append(found.Bad, failed("doctor panicked: %v", cause))
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.found = found
		close(d.running)
		d.running = nil
	}()
	if err := v.Admin.Doctor(ctx, &report); err != nil {
		found.Bad = []finding{failed("%s", err)}
	}
	for _, f := range report.Checks {
		switch {
		case f.State == health.OK:
			found.Good = append(found.Good, f)
		case strings.HasPrefix(f.Remedy, "run doctor as root"):
			found.Unseen = append(found.Unseen, f)
		default:
			found.Bad = append(found.Bad, f)
		}
	}
}

// failed is the finding if doctor itself fails.
func failed(format string, args ...any) finding {
	return finding{health.Named("doctor", health.Failure("attestd doctor", format, args...))[0]}
}

// examineAgain discards the findings, so that the next page starts a new run.
func examineAgain(w http.ResponseWriter, v *visit) error {
	v.console.doctor.mu.Lock()
	v.console.doctor.found.At = time.Time{}
	v.console.doctor.mu.Unlock()
	return v.redirect(w, "/#findings")
}
