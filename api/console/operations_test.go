package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// TestAnOperatorPausesBacksUpAndBinds is not parallel, because the other tests need an appliance that attests.
func TestAnOperatorPausesBacksUpAndBinds(t *testing.T) {
	r := start(t)
	t.Cleanup(func() { _, _ = r.admin.Resume(t.Context()) })
	b := r.signedIn(t, "operator")
	before, err := r.admin.Records(t.Context(), journal.Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := b.post("/operations/pause", nil); status != http.StatusBadRequest ||
		!strings.Contains(body, "Give the reason") {
		t.Errorf("a pause without a reason: %d", status)
	}
	for _, step := range []struct {
		path string
		form url.Values
		want string // on the page afterwards
	}{
		{"/operations/pause", url.Values{"reason": {"the contract is upgraded"}}, "the contract is upgraded"},
		{"/operations/resume", nil, "operational"},
	} {
		if status, _, body := b.post(step.path, step.form); status != http.StatusSeeOther {
			t.Fatalf("%s: %d %s", step.path, status, body)
		}
		if _, _, page := b.get("/operations"); !strings.Contains(page, step.want) {
			t.Errorf("%s: the page lacks %q: %s", step.path, step.want, page)
		}
	}
	status, header, file := b.post("/backups", nil)
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Disposition"), `attachment; filename="attestd-`) ||
		!strings.HasSuffix(header.Get("Content-Disposition"), `.tar.zst"`) {
		t.Errorf("backup: %d %v", status, header)
	}
	if found, err := archive.Inspect(t.Context(), strings.NewReader(file), audit.Options{}); err != nil ||
		!found.Report.OK() || found.Report.Size == 0 {
		t.Errorf("the backup: %v, %+v", err, found.Report)
	}
	key, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: "to bind", Rate: appliance.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, body := b.post("/operations/bind", url.Values{"id": {key.ID}}); status != http.StatusSeeOther {
		t.Errorf("bind: %d %s", status, body)
	}
	if status, _, _ := b.post("/operations/bind", url.Values{"id": {key.ID}, "attestor": {"unknown"}}); status <
		http.StatusBadRequest {
		t.Errorf("bind to an unknown attestor key: %d", status)
	}
	entries, err := r.admin.Records(t.Context(), journal.Query{EventsOnly: true, Limit: 20})
	if err != nil {
		t.Fatal(err)
	}
	recorded := make(map[journal.EventKind]string)
	for _, e := range entries {
		if len(before) > 0 && e.Index <= before[0].Index {
			break // of earlier tests
		}
		recorded[e.Event.Kind] = e.Event.By
	}
	for _, kind := range []journal.EventKind{journal.EventPaused, journal.EventResumed, journal.EventBackup,
		journal.EventKeyBound} {
		if !strings.HasPrefix(recorded[kind], "console: ") {
			t.Errorf("the event %s is by %q", kind, recorded[kind])
		}
	}
	for _, path := range []string{"/operations/pause", "/operations/resume", "/operations/bind", "/backups"} {
		if status, _, _ := r.signedIn(t, "auditor").post(path, nil); status != http.StatusForbidden {
			t.Errorf("an auditor's %s: %d", path, status)
		}
	}
}
