package console_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/history"
)

// The history of 30 days survives a restart, with the work before it. The graphs and the table show it.
func TestTheHistorySurvivesARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	old := history.Open(filepath.Join(dir, "data", history.FileName), slog.New(slog.DiscardHandler))
	old.Add(time.Now().Add(-20*24*time.Hour), history.Step{Attestations: 4000})
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	const attested = 3
	first := start(t).startIn(t, dir, "")
	_, token, err := first.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: "of the history",
		Rate: appliance.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	for range attested {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, first.api+"/functions/v1/attest",
			strings.NewReader(`{"unspendableAddress":"0x0000000000000000000000000000000000000001",`+
				`"beneficiary":"0x0000000000000000000000000000000000000002"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Api-Key", token)
		answer, err := http.DefaultClient.Do(req)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("attest: %v, %v", answer, err)
		}
		_ = answer.Body.Close()
	}
	first.end()
	b := start(t).startIn(t, dir, "").signedIn(t, "viewer")
	for span, want := range map[string]int64{"24h": attested, "30d": 4000 + attested} {
		_, _, body := b.get("/overview/history?span=" + span)
		var found wire.History
		if err := json.Unmarshal([]byte(body), &found); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		var all history.Step
		for _, s := range found.Steps {
			all.Add(s)
		}
		if all.Attestations != want || all.Requests < attested || all.P99 <= 0 || all.Signatures < attested ||
			all.HSM <= 0 {
			t.Errorf("%s: %+v, want %d attestations", span, all, want)
		}
		cells := map[string][2]string{"24h": {"24 hours", "3"}, "30d": {"30 days", "4,003"}}[span]
		_, _, page := b.get("/?span=" + span)
		for _, want := range []string{"The last " + cells[0], `data-label="` + cells[0] + `">` + cells[1] + "<"} {
			if !strings.Contains(page, want) {
				t.Errorf("%s: the page lacks %q", span, want)
			}
		}
	}
}
