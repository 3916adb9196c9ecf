package console_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/console"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/softhsm"
	"github.com/attestd/attestd/hsm/worker"
)

func TestMain(m *testing.M) {
	worker.Main() // the daemon runs this program again as the worker that holds the HSM's library
	status := m.Run()
	if running != nil {
		running.end()
	}
	console.EndProvider()
	os.Exit(status)
}

// rig is a daemon with its console, over a SoftHSM token, a journal and a replica with generated rows. All tests share
// it and find each other's leftovers, so each test creates the fixtures that it looks for.
type rig struct {
	url    string // of the console
	api    string // URL of the API
	admin  *client.Admin
	socket string // path of the admin socket
	key    string // an API key's token
	end    func()
}

var (
	startOnce sync.Once
	running   *rig
	startErr  error
)

func start(t testing.TB) *rig {
	t.Helper()
	startOnce.Do(func() { running, startErr = startDaemon() })
	if startErr != nil {
		t.Fatal(startErr)
	}
	return running
}

// findings are the doctor's findings in the rig, where the doctor command is not available.
var findings = map[string]any{"state": "warn", "checks": []map[string]string{
	{"check": "disk sync", "state": "ok", "detail": "0.4 ms"},
	{"check": "certificate", "state": "warn", "detail": "ends in 12 days", "remedy": "renew it; then: attestd reload"},
}}

func startDaemon() (*rig, error) {
	dir, err := os.MkdirTemp("", "attestd-console-")
	if err != nil {
		return nil, err
	}
	c, err := configure(dir)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan daemon.Ready, 1), make(chan error, 1)
	go func() {
		ended <- daemon.Serve(ctx, c, slog.New(slog.DiscardHandler), daemon.Options{
			Version: "test", Doctor: func(context.Context) any { return findings },
			Ready: func(r daemon.Ready) error { ready <- r; return nil },
		})
	}()
	r := &rig{admin: client.NewAdmin(c.Admin.Socket), socket: c.Admin.Socket, end: func() {
		stop()
		<-ended
		_ = os.RemoveAll(dir)
	}}
	select {
	case at := <-ready:
		r.url, r.api = at.Console.String(), "http://"+at.API.String()
	case err := <-ended:
		return nil, err
	}
	_, r.key, err = r.admin.CreateKey(ctx, appliance.KeyRequest{Name: "payments", Rate: appliance.Unlimited})
	if err != nil {
		return nil, err
	}
	return r, dataset.Generate(ctx, dataset.GenerateOptions{Transfers: 500, Seed: 1, Now: time.Now()},
		func(rows []index.Row) error {
			_, err := r.admin.Write(ctx, index.Batch{Rows: rows})
			return err
		})
}

// configure makes a token with a key, and the configuration of an appliance that uses it.
func configure(dir string) (*config.Config, error) {
	folder, err := softhsm.Create(dir)
	if err != nil {
		return nil, err
	}
	if err := folder.Setenv(); err != nil {
		return nil, err
	}
	uri := folder.URI("console", "attestor")
	if _, err := hsm.Init(context.Background(), hsm.InitOptions{URI: uri, SOPIN: folder.SOPIN}); err != nil {
		return nil, err
	}
	file, policy := filepath.Join(dir, "attestd.yaml"), filepath.Join(dir, "policy.yaml")
	rules := "approvals: [{ when: { api_key: [approved] }, approvers: [alice, bob, carol], required: 2, within: 1h }]\n"
	if err := os.WriteFile(policy, []byte(rules), 0o600); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`data_dir: %q
server: { listen: "127.0.0.1:0" }
admin: { socket: %q }
metrics: { listen: "" }
console: { listen: "127.0.0.1:0" }
hsm: { uri: %q }
journal: { origin: example.com/console }
attestation: { policy: %q }
webhooks: { allow_networks: [127.0.0.0/8], allow_plain_http: true }
graphql: { upstream_headers: ["x-api-key: a-secret-of-the-upstream"] }
`, filepath.Join(dir, "data"), filepath.Join(dir, "admin.sock"), uri.String(), policy)
	issuer, err := console.Issuer()
	if err != nil {
		return nil, err
	}
	if issuer != "" {
		secret := filepath.Join(dir, "client-secret")
		if err := os.WriteFile(secret, []byte("the console's secret\n"), 0o600); err != nil {
			return nil, err
		}
		text = strings.Replace(text, `console: { listen: "127.0.0.1:0" }`, fmt.Sprintf(`console:
  listen: "127.0.0.1:0"
  oidc: { issuer: %q, client_id: attestd, client_secret: "file:%s", viewers: [staff], auditors: [audit], operators: [ops] }`, issuer, secret), 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return (&config.Source{}).LoadFile(file, nil)
}

// browser is an HTTP client with cookies that does not follow redirects.
type browser struct {
	t    testing.TB
	base string
	http *http.Client
}

func (r *rig) browser(t testing.TB) *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t, r.url, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// signedIn returns a browser with a session of the given role.
func (r *rig) signedIn(t testing.TB, role string) *browser {
	t.Helper()
	b := r.browser(t)
	if status, _, body := b.post("/sign-in", url.Values{"link": {r.link(t, role)}}); status != http.StatusSeeOther {
		t.Fatalf("sign in as %s: %d %s", role, status, body)
	}
	return b
}

func (r *rig) link(t testing.TB, role string) string {
	t.Helper()
	link, err := r.admin.ConsoleLink(t.Context(), role)
	if err != nil {
		t.Fatal(err)
	}
	return link.URL
}

func (b *browser) get(path string) (status int, header http.Header, body string) {
	b.t.Helper()
	return b.do(http.MethodGet, path, nil, nil)
}

func (b *browser) post(path string, form url.Values) (status int, header http.Header, body string) {
	b.t.Helper()
	return b.do(http.MethodPost, path, form, nil)
}

// do sends a request with additional headers. The header Host sets the request's host.
func (b *browser) do(method, path string, form url.Values,
	headers map[string]string) (status int, header http.Header, body string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range headers {
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}
