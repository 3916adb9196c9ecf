package console_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/console"
)

// The console verifies a backup before its first byte, and leaves nothing behind. The test is not parallel, because it
// sets TMPDIR.
func TestABackupThatIsWrongIsNotSent(t *testing.T) {
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /backup", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "no archive")
	})
	admin := httptest.NewServer(mux)
	t.Cleanup(admin.Close)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := &url.URL{Scheme: "http", Host: l.Addr().String()}
	c, err := console.New(console.Options{URL: at, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", admin.Listener.Addr().String())
		}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- c.Serve(l) }()
	t.Cleanup(func() { _ = c.Shutdown(context.Background()); <-served })
	link, err := c.Link("operator", "alice")
	if err != nil {
		t.Fatal(err)
	}
	b := (&rig{url: at.String()}).browser(t)
	if status, _, body := b.post("/sign-in", url.Values{"link": {link.URL}}); status != http.StatusSeeOther {
		t.Fatalf("sign in: %d %s", status, body)
	}
	status, header, body := b.post("/backups", nil)
	if status != http.StatusInternalServerError || header.Get("Content-Disposition") != "" ||
		!strings.Contains(body, "No backup was made: the copy is wrong") {
		t.Errorf("%d %v %s", status, header, body)
	}
	if left, err := os.ReadDir(scratch); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
