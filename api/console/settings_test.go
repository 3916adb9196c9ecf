package console_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestSettingsAreShownWithTheirSourceAndWithoutSecrets(t *testing.T) {
	t.Parallel()
	status, _, body := start(t).signedIn(t, "viewer").get("/settings")
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, body)
	}
	for _, want := range []string{"server.listen", "example.com/console", "restart", "reload", "file", "default"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not hold %q", want)
		}
	}
	if strings.Contains(body, "a-secret-of-the-upstream") {
		t.Error("the page tells a header of the upstream")
	}
}
