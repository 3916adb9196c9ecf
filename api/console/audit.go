package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/text"
)

// auditPage audits the journal, and checks it against an older checkpoint.
func auditPage() page {
	a := &audits{one: make(chan struct{}, 1)}
	return page{name: "audit", path: "/audit", title: "Audit", least: Viewer, routes: []route{
		{"GET /audit", Viewer, showAudit},
		{"GET /audit/checkpoint", Viewer, downloadCheckpoint},
		{"POST /audit", Auditor, a.run},
		{"POST /audit/report", Auditor, a.report},
	}}
}

// audits runs one audit of the console at a time, because each reads the whole journal.
type audits struct{ one chan struct{} }

// auditView is the audit page.
type auditView struct {
	Last        *wire.Audit // the last audit by any client; nil if none since the daemon's start
	Records     int64
	Checkpoint  string // the newest published checkpoint
	Audits      bool   // the user may start an audit
	Earlier     string // the older checkpoint, as entered
	Wrong       string
	Result      *auditResult
	From, Until string // default days of a report: the last month until today
}

// auditResult is the result of an audit.
type auditResult struct {
	audit.Report
	At      time.Time
	Earlier string // describes the older checkpoint; empty without one
	Holds   bool   // the journal begins with the older checkpoint's records
}

// Attestations returns the number of records that are not events.
func (r auditResult) Attestations() int64 { return r.Size - r.Events }

// maxCheckpoint bounds a checkpoint, in bytes. Real checkpoints have about 200 bytes.
const maxCheckpoint = 16 << 10

func showAudit(w http.ResponseWriter, v *visit) error { return v.showAudit(w, auditView{}) }

func (v *visit) showAudit(w http.ResponseWriter, data auditView) error {
	status, err := v.Admin.Status(v.Context())
	if err != nil {
		return err
	}
	checkpoint, err := v.Admin.Published(v.Context())
	if err != nil {
		return err
	}
	data.Last, data.Records, data.Checkpoint, data.Audits = status.Journal.LastAudit, status.Journal.Records,
		string(checkpoint), v.IsAuditor()
	now := v.console.now().UTC()
	data.From, data.Until = now.AddDate(0, -1, 0).Format(time.DateOnly), now.Format(time.DateOnly)
	return v.show(w, data)
}

// downloadCheckpoint answers with the newest published checkpoint, for safekeeping elsewhere.
func downloadCheckpoint(w http.ResponseWriter, v *visit) error {
	checkpoint, err := v.Admin.Published(v.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition",
		fmt.Sprintf("attachment; filename=%q", v.console.now().UTC().Format("2006-01-02T150405Z")+".checkpoint"))
	_, _ = w.Write(checkpoint) // fails only if the client has disconnected
	return nil
}

// run audits the journal. With the page's module it streams the progress as events. Without scripts it answers with the
// page and the result. The audit ends when the user leaves the page.
func (a *audits) run(w http.ResponseWriter, v *visit) error {
	earlier, err := readEarlier(v.Request)
	if err != nil {
		return err
	}
	live := v.Header.Get("Accept") == "text/event-stream"
	release, err := a.begin()
	if err != nil {
		return err
	}
	defer release()
	if live {
		return v.stream(w, func(ctx context.Context, send func(event string, data any) error) error {
			return v.audit(ctx, earlier, send)
		})
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(v.Context())
	defer cancel()
	defer context.AfterFunc(v.ended, cancel)()
	result, wrong, err := v.verify(ctx, earlier, nil)
	if err != nil {
		return err
	}
	return v.showAudit(w, auditView{Earlier: earlier, Wrong: wrong, Result: result})
}

// audit streams the progress and then the result, as HTML.
func (v *visit) audit(ctx context.Context, earlier string, send func(event string, data any) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result, wrong, err := v.verify(ctx, earlier, func(done, total int64) {
		if send("progress", wire.Progress[struct{}]{Done: done, Total: total}) != nil {
			cancel()
		}
	})
	if err != nil {
		_ = send("result", "") // the log has the reason
		return err
	}
	html, err := v.console.looks.part(v.page.name, "result", auditView{Wrong: wrong, Result: result})
	if err != nil {
		return err
	}
	return send("result", html)
}

// report answers with the file of an audit report: the signed JSON, the PDF, or the page for printing.
func (a *audits) report(w http.ResponseWriter, v *visit) error {
	from, until, err := readPeriod(v)
	if err != nil {
		return err
	}
	release, err := a.begin()
	if err != nil {
		return err
	}
	defer release()
	var signed report.Signed
	err = v.download(w, func(ctx context.Context) (err error) {
		signed, err = v.Admin.Report(ctx, from, until, nil)
		return err
	}, func() bool { return false })
	if err != nil {
		return err
	}
	name := fmt.Sprintf("report-%s-%s", from.Format(time.DateOnly), until.Format(time.DateOnly))
	var file bytes.Buffer
	switch v.PostFormValue("form") {
	case "html":
		name, err = name+".html", signed.WritePage(&file)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
	case "pdf":
		name, err = name+".pdf", signed.WritePDF(&file)
		w.Header().Set("Content-Type", "application/pdf")
	default:
		name, err = name+".json", json.NewEncoder(&file).Encode(signed)
		w.Header().Set("Content-Type", "application/json")
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	_, _ = w.Write(file.Bytes()) // fails only if the client has disconnected
	return nil
}

// readPeriod reads the days of a report. Both are included; the last may be today.
func readPeriod(v *visit) (from, until time.Time, err error) {
	if from, err = time.Parse(time.DateOnly, v.PostFormValue("from")); err == nil {
		until, err = time.Parse(time.DateOnly, v.PostFormValue("until"))
	}
	switch until = until.AddDate(0, 0, 1); {
	case err != nil:
		return from, until, badRequest("Give the first and the last day of the report, such as 2026-10-01.")
	case !from.Before(until):
		return from, until, badRequest("The first day is after the last. Swap them.")
	case from.After(v.console.now()):
		return from, until, badRequest("The first day is in the future. Give an earlier one.")
	}
	if now := v.console.now().UTC(); until.After(now) {
		until = now
	}
	return from, until, nil
}

// begin takes the place of the one audit that may run at a time. release gives it back.
func (a *audits) begin() (release func(), err error) {
	select {
	case a.one <- struct{}{}:
		return func() { <-a.one }, nil
	default:
		return nil, &client.Problem{Problem: wire.Problem{Status: http.StatusConflict, Detail: "Another audit is running, " +
			"and only one can run at a time. Try again when it ends."}}
	}
}

// verify audits the journal. wrong explains why earlier is not a checkpoint that the journal can be compared with.
func (v *visit) verify(ctx context.Context, earlier string,
	progress func(done, total int64)) (result *auditResult, wrong string, err error) {
	opts := audit.Options{Progress: progress}
	if earlier != "" {
		opts.Earlier = []byte(earlier)
	}
	report, err := v.Admin.Verify(ctx, opts)
	if problem, refused := errors.AsType[*client.Problem](err); refused && earlier != "" &&
		problem.Code == appliance.CodeInvalidField {
		return nil, "The checkpoint cannot be compared with the journal: " + problem.Detail + ".", nil
	}
	if err != nil {
		return nil, "", err
	}
	result = &auditResult{Report: report, At: v.console.now(), Holds: true}
	if earlier != "" {
		result.Earlier = toldBy(earlier)
	}
	for _, d := range report.Damages {
		if d.Index < 0 && d.Part == "checkpoint" {
			result.Holds = false
		}
	}
	return result, "", nil
}

// toldBy describes a checkpoint by its size and origin.
func toldBy(checkpoint string) string {
	lines := append(strings.SplitN(checkpoint, "\n", 3), "", "")
	records, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return "the checkpoint"
	}
	return fmt.Sprintf("the checkpoint of %s records of %s", text.Count(records), lines[0])
}

// readEarlier returns the older checkpoint from a form: an uploaded file or a text. It refuses an unreadable upload. An
// audit without that checkpoint would report an intact journal.
func readEarlier(r *http.Request) (string, error) {
	if err := r.ParseForm(); err != nil {
		return "", formError(err)
	}
	file, _, err := r.FormFile("file")
	if errors.Is(err, http.ErrMissingFile) || errors.Is(err, http.ErrNotMultipart) {
		return readCheckpoint(r.PostFormValue("checkpoint"))
	}
	if err != nil {
		return "", formError(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxCheckpoint+1))
	if err != nil {
		return "", formError(err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return "", badRequest("The chosen file is empty. Choose a file with a checkpoint. The audit did not run.")
	}
	return readCheckpoint(string(text))
}

// formError explains to the client why its form cannot be read.
func formError(err error) error {
	if tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
		return tooLarge
	}
	return badRequest("The form cannot be read: " + err.Error() + ".")
}

// readCheckpoint restores the line ends that were signed, because forms change them.
func readCheckpoint(text string) (string, error) {
	if len(text) > maxCheckpoint {
		return "", badRequest(fmt.Sprintf("This is not a checkpoint: it has more than %d bytes.", maxCheckpoint))
	}
	text = strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
	if text != "" {
		text += "\n"
	}
	return text, nil
}
