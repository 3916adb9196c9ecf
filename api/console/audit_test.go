package console_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api/console"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
)

// logKey returns the key that signs the daemon's checkpoints.
func (r *rig) logKey(t testing.TB) journal.LogKey {
	t.Helper()
	settings, err := r.admin.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		if s.Name != "data_dir" {
			continue
		}
		secret, err := os.ReadFile(filepath.Join(s.Value.(string), "log.key"))
		if err != nil {
			t.Fatal(err)
		}
		key, err := journal.ParseLogKey(string(secret))
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	t.Fatal("there is no data_dir")
	return journal.LogKey{}
}

func TestAnAuditHoldsAnOlderCheckpointAgainstTheJournal(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.attestTo(t, newPair())
	kept, err := r.admin.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.attestTo(t, newPair())
	rewritten, err := journal.SignCheckpoint(tlog.Tree{N: 1, Hash: tlog.RecordHash([]byte("another history"))},
		r.logKey(t).Signer)
	if err != nil {
		t.Fatal(err)
	}
	b := r.signedIn(t, "auditor")
	for name, c := range map[string]struct {
		checkpoint string
		want       []string
		not        string
	}{
		"none": {"", []string{"Journal integrity: verified", "its own key"},
			"The journal begins with"},
		"with one state and its time": {"", []string{"Result of 2"}, "Last audit"},
		"one that was kept": {string(kept), []string{"Journal integrity: verified",
			"The journal begins with the checkpoint of", "records of example.com/console"}, "no longer"},
		"with a form's line ends": {strings.ReplaceAll(string(kept), "\n", "\r\n") + "\r\n",
			[]string{"The journal begins with the checkpoint of"}, "no longer"},
		"of another history": {string(rewritten),
			[]string{"The journal is damaged: 1", "The journal no longer begins with the checkpoint of 1 records",
				"differ from the earlier checkpoint"}, "The journal begins with"},
		"tampered with": {strings.Replace(string(kept), "\n", "\n1", 1),
			[]string{"The checkpoint cannot be compared with the journal", "earlier checkpoint"}, "Journal integrity"},
		"rubbish": {"<b>rubbish</b>",
			[]string{"The checkpoint cannot be compared with the journal", "&lt;b&gt;rubbish"}, "Journal integrity"},
	} {
		status, body := b.postAudit(c.checkpoint)
		for _, want := range c.want {
			if status != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s: %d, without %q: %s", name, status, want, body)
			}
		}
		if strings.Contains(body, c.not) {
			t.Errorf("%s: the page says %q", name, c.not)
		}
	}
	if status, _, _ := b.post("/audit",
		url.Values{"checkpoint": {strings.Repeat("a", 20<<10)}}); status != http.StatusBadRequest {
		t.Errorf("what is too long for a checkpoint: %d", status)
	}
	if _, _, body := b.get("/audit"); !strings.Contains(body, "Last audit: 2") {
		t.Errorf("the page does not tell of the last audit: %s", body)
	}
}

// postAudit starts an audit like a browser without scripts. It waits until no other test runs one.
func (b *browser) postAudit(checkpoint string) (status int, body string) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		status, _, body = b.post("/audit", url.Values{"checkpoint": {checkpoint}})
		if status != http.StatusConflict || time.Now().After(deadline) {
			return status, body
		}
	}
}

func TestTheNewestCheckpointCanBeKept(t *testing.T) {
	t.Parallel()
	r := start(t)
	status, header, body := r.signedIn(t, "viewer").get("/audit/checkpoint")
	if _, err := journal.OpenCheckpoint([]byte(body), r.logKey(t).Verifier); status != http.StatusOK || err != nil {
		t.Errorf("%d, %v: %s", status, err, body)
	}
	if name := header.Get("Content-Disposition"); !strings.HasSuffix(name, `Z.checkpoint"`) {
		t.Errorf("it is named %s", name)
	}
}

func TestOnlyAuditorsAudit(t *testing.T) {
	t.Parallel()
	b := start(t).signedIn(t, "viewer")
	if status, _, body := b.get("/audit"); status != http.StatusOK ||
		strings.Contains(body, "<form method=\"post\" action=\"/audit\"") {
		t.Errorf("what a viewer sees: %d %s", status, body)
	}
	if status, _, _ := b.post("/audit", nil); status != http.StatusForbidden {
		t.Errorf("a viewer audits: %d", status)
	}
}

// An uploaded file that is not a checkpoint is refused. An audit without it would report an intact journal.
func TestAFileThatIsNoCheckpointIsNotAudited(t *testing.T) {
	t.Parallel()
	b := start(t).signedIn(t, "auditor")
	for content, want := range map[string]struct {
		status int
		says   string
	}{
		"":                              {http.StatusBadRequest, "is empty"},
		" \n":                           {http.StatusBadRequest, "is empty"},
		strings.Repeat("a", 20<<10):     {http.StatusBadRequest, "more than 16384 bytes"},
		strings.Repeat("a", (64<<10)+1): {http.StatusRequestEntityTooLarge, "larger than 65536 bytes"},
	} {
		var form bytes.Buffer
		parts := multipart.NewWriter(&form)
		file, err := parts.CreateFormFile("file", "kept.checkpoint")
		if err == nil {
			_, err = io.WriteString(file, content)
		}
		if err := errors.Join(err, parts.Close()); err != nil {
			t.Fatal(err)
		}
		status, body := b.send("/audit", parts.FormDataContentType(), &form)
		if status != want.status || !strings.Contains(body, want.says) ||
			strings.Contains(body, "Journal integrity: verified") {
			t.Errorf("a file of %d bytes: %d %s", len(content), status, body)
		}
	}
	if status, _, body := b.post("/audit",
		url.Values{"checkpoint": {strings.Repeat("a", 64<<10)}}); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a text that is too long for a form: %d %s", status, body)
	}
}

// send posts a body with any content type.
func (b *browser) send(path, contentType string, body io.Reader) (status int, text string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, b.base+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(read)
}

// endless is an admin socket with audits that run until the client disconnects. It then signals left.
func endless(t *testing.T) (dial func(context.Context) (net.Conn, error), left chan struct{}) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	left = make(chan struct{}, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/log/verify" {
			_, _ = io.WriteString(w, "{}")
			return
		}
		_, _ = io.WriteString(w, `{"done":1,"total":2}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		left <- struct{}{}
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
	}, left
}

// audit starts an audit like the page's module. It retries while an earlier audit is still ending.
func (b *browser) audit(ctx context.Context) *http.Response {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.base+"/audit", nil)
		if err != nil {
			b.t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		resp, err := b.http.Do(req)
		if err != nil {
			b.t.Fatal(err)
		}
		if resp.StatusCode != http.StatusConflict || time.Now().After(deadline) {
			return resp
		}
		resp.Body.Close()
	}
}

func TestAnAuditEndsWhenThePageIsLeft(t *testing.T) {
	t.Parallel()
	dial, left := endless(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := &url.URL{Scheme: "http", Host: l.Addr().String()}
	c, err := console.New(
		console.Options{Dial: dial, URL: at, Hosts: []string{"127.0.0.1"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Serve(l) }()
	t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
	b := (&rig{url: at.String()}).browser(t)
	link, err := c.Link("auditor", "alice (uid 1000)")
	if err != nil {
		t.Fatal(err)
	}
	b.post("/sign-in", url.Values{"link": {link.URL}})

	for range 2 {
		ctx, leave := context.WithCancel(t.Context())
		resp := b.audit(ctx)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && !strings.Contains(lines.Text(), `"done":1`) {
		}
		if lines.Err() != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("no progress: %d, %v", resp.StatusCode, lines.Err())
		}
		if status, _, body := b.post("/audit", nil); status != http.StatusConflict ||
			!strings.Contains(body, "Another audit is running") {
			t.Errorf("a second one at once: %d %s", status, body)
		}
		leave()
		resp.Body.Close()
		select {
		case <-left:
		case <-time.After(3 * time.Minute):
			t.Fatal("the audit goes on")
		}
	}
}

func TestAnAuditorDownloadsASignedReport(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.attestTo(t, newPair())
	b := r.signedIn(t, "auditor")
	today := time.Now().UTC().Format(time.DateOnly)
	ask := func(form string) (header http.Header, body string) {
		for deadline := time.Now().Add(time.Minute); ; {
			status, header, body := b.post("/audit/report", url.Values{"from": {today}, "until": {today}, "form": {form}})
			if status == http.StatusOK {
				return header, body
			}
			if status != http.StatusConflict || time.Now().After(deadline) { // another test runs an audit
				t.Fatalf("%s: %d %s", form, status, body)
			}
		}
	}
	header, file := ask("json")
	if want := `attachment; filename="report-` + today; !strings.HasPrefix(header.Get("Content-Disposition"), want) {
		t.Errorf("%s", header.Get("Content-Disposition"))
	}
	made, err := report.Verify([]byte(file), r.logKey(t).Verifier)
	if err != nil || made.Attestations == 0 || !strings.HasPrefix(made.By, "console: ") {
		t.Errorf("%v: %+v", err, made)
	}
	if header, pdf := ask("pdf"); !strings.HasPrefix(pdf, "%PDF-") || header.Get("Content-Type") != "application/pdf" {
		t.Errorf("the PDF: %v %.100s", header, pdf)
	}
	if _, page := ask("html"); !strings.Contains(page, "Journal integrity: verified") {
		t.Errorf("the page: %s", page)
	}
	for want, days := range map[string][2]string{"Swap them": {today, "2020-01-01"}, "in the future": {"2999-01-01",
		"2999-01-02"}, "first and the last day": {"", ""}} {
		if status, _, body := b.post("/audit/report", url.Values{"from": {days[0]}, "until": {days[1]}}); status !=
			http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%v: %d, without %q", days, status, want)
		}
	}
	if status, _, _ := r.signedIn(t, "viewer").post("/audit/report", nil); status != http.StatusForbidden {
		t.Errorf("a viewer: %d", status)
	}
}
