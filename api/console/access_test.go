package console_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/console"
)

// alone is a console without a daemon, with a clock that tests can advance.
type alone struct {
	*console.Console
	*browser
	ahead atomic.Int64 // seconds that the clock is ahead
}

func newAlone(t *testing.T, address string) *alone {
	t.Helper()
	a := &alone{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	named := &url.URL{Scheme: "http", Host: l.Addr().String()}
	if address != "" {
		if named, err = url.Parse(address); err != nil {
			t.Fatal(err)
		}
	}
	a.Console, err = console.New(console.Options{
		Dial: func(context.Context) (net.Conn, error) { return nil, errors.New("no daemon") },
		URL:  named, Hosts: []string{"127.0.0.1"}, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Now().Add(time.Duration(a.ahead.Load()) * time.Second) },
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = a.Serve(l) }()
	t.Cleanup(func() { _ = a.Shutdown(context.Background()) })
	a.browser = (&rig{url: "http://" + l.Addr().String()}).browser(t)
	return a
}

// signIn signs in with a new link.
func (a *alone) signIn() http.Header {
	a.t.Helper()
	link, err := a.Link("operator", "alice (uid 1000)")
	if err != nil {
		a.t.Fatal(err)
	}
	status, header, body := a.post("/sign-in", url.Values{"link": {link.URL}, "next": {"/settings"}})
	if status != http.StatusSeeOther || header.Get("Location") != "/settings" {
		a.t.Fatalf("%d to %q: %s", status, header.Get("Location"), body)
	}
	return header
}

func TestNobodySeesAPageWithoutSigningIn(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	for _, path := range []string{"/", "/settings", "/overview/live"} {
		if status, header, _ := a.get(path); status != http.StatusSeeOther ||
			!strings.HasPrefix(header.Get("Location"), "/sign-in?next=") {
			t.Errorf("%s: %d to %q", path, status, header.Get("Location"))
		}
		if status, _, _ := a.do(http.MethodGet, path, nil,
			map[string]string{"Sec-Fetch-Dest": "empty"}); status != http.StatusUnauthorized {
			t.Errorf("%s for a script: %d", path, status)
		}
	}
	if status, _, _ := a.post("/overview/doctor", nil); status != http.StatusUnauthorized {
		t.Errorf("a form: %d", status)
	}
}

func TestASessionLastsHalfAnHour(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	a.signIn()
	// The console has no daemon, so a valid session gets 500.
	for seconds, want := range map[int64]int{0: http.StatusInternalServerError,
		29*60 + 50: http.StatusInternalServerError} {
		a.ahead.Store(seconds)
		if status, _, _ := a.get("/settings"); status != want {
			t.Errorf("after %d s: %d", seconds, status)
		}
	}
	a.ahead.Store(30 * 60)
	if status, header, _ := a.get("/settings"); status != http.StatusSeeOther {
		t.Errorf("after half an hour: %d %v", status, header)
	}
}

func TestAChangeAsksToSignInAgainAfterFiveMinutes(t *testing.T) {
	t.Parallel()
	r := start(t)
	b, key := r.signedIn(t, "operator"),
		url.Values{"name": {"of a fresh sign-in"}, "rate": {"default"}, "scope": {"attest"}}
	if status, _, body := b.post("/keys", key); status >= http.StatusBadRequest {
		t.Errorf("at once: %d %s", status, body)
	}
	a := newAlone(t, "")
	a.signIn()
	a.ahead.Store(5*60 + 1)
	status, _, body := a.post("/keys", key)
	if status != http.StatusForbidden ||
		!strings.Contains(body, "your sign-in is older than five minutes. The change was not made.") ||
		!strings.Contains(body, "attestd console --role operator") {
		t.Errorf("later: %d %s", status, body)
	}
}

func TestSigningOutEndsTheSession(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	cookie, _, _ := strings.Cut(a.signIn().Get("Set-Cookie"), ";")
	if status, _, _ := a.post("/sign-out", nil); status != http.StatusSeeOther {
		t.Fatal(status)
	}
	if status, _, _ := a.do(http.MethodGet, "/settings", nil,
		map[string]string{"Cookie": cookie}); status != http.StatusSeeOther {
		t.Errorf("the cookie still opens the console: %d", status)
	}
}

func TestTheCookieOfAnHTTPSConsoleIsItsOwn(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "https://console.example.com")
	set := a.signIn().Get("Set-Cookie")
	for _, want := range []string{"__Host-attestd-console=", "; Path=/;", "; Secure", "; HttpOnly",
		"; SameSite=Strict"} {
		if !strings.Contains(set, want) {
			t.Errorf("%s lacks %q", set, want)
		}
	}
}

func TestOnlyItsOwnNamesAreAnswered(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "https://console.example.com:8443")
	for host, want := range map[string]int{
		"127.0.0.1": http.StatusOK, "127.0.0.1:1234": http.StatusOK, "console.example.com": http.StatusOK,
		"CONSOLE.example.com.:8443": http.StatusOK,
		"localhost":                 http.StatusMisdirectedRequest, "rebound.example": http.StatusMisdirectedRequest,
		"console.example.com.evil.example": http.StatusMisdirectedRequest,
		"127.0.0.1.evil.example:80":        http.StatusMisdirectedRequest, "[::1]:80": http.StatusMisdirectedRequest,
	} {
		if status, _, _ := a.do(http.MethodGet, "/sign-in", nil, map[string]string{"Host": host}); status != want {
			t.Errorf("%s: %d, want %d", host, status, want)
		}
	}
}

func TestOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	a.signIn()
	for _, headers := range []map[string]string{
		{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
		{"Origin": "null"},
	} {
		for _, path := range []string{"/sign-out", "/sign-in", "/overview/doctor"} {
			if status, _, _ := a.do(http.MethodPost, path, nil, headers); status != http.StatusForbidden {
				t.Errorf("%s with %v: %d", path, headers, status)
			}
		}
	}
	// signed in; the console has no daemon
	if status, _, _ := a.get("/settings"); status != http.StatusInternalServerError {
		t.Errorf("the session is gone: %d", status)
	}
}

func TestWrongLinksAreLimited(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	var last int
	for range 30 {
		var header http.Header
		if last, header, _ = a.post("/sign-in", url.Values{"link": {"nothing"}}); last == http.StatusTooManyRequests {
			if header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			return
		}
		if last != http.StatusForbidden {
			t.Fatalf("a wrong link: %d", last)
		}
	}
	t.Errorf("the thirtieth wrong link: %d", last)
}

func TestWrongLinksKeepNobodyOut(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	link, err := a.Link("viewer", "root")
	if err != nil {
		t.Fatal(err)
	}
	for status := 0; status != http.StatusTooManyRequests; {
		status, _, _ = a.get("/link/nothing")
	}
	if status, _, body := a.get(strings.TrimPrefix(link.URL, a.base)); status != http.StatusOK ||
		!strings.Contains(body, "Sign in as viewer") {
		t.Errorf("a good link is shown: %d %s", status, body)
	}
	if status, _, body := a.post("/sign-in", url.Values{"link": {link.URL}}); status != http.StatusSeeOther {
		t.Errorf("a good link is taken: %d %s", status, body)
	}
}

func TestASignInLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	for _, next := range []string{"https://evil.example/", "//evil.example/", "/\\evil.example", "/link/x",
		"settings", "", "/\n/evil.example",
		"/./link/x", "/settings/../link/x", "/%6cink/x", "/.//link/x", "/link", "/link/../link/x"} {
		link, err := a.Link("viewer", "root")
		if err != nil {
			t.Fatal(err)
		}
		if _, header, _ := a.post("/sign-in",
			url.Values{"link": {link.URL}, "next": {next}}); header.Get("Location") != "/" {
			t.Errorf("%q leads to %q", next, header.Get("Location"))
		}
	}
}

func TestLinksAreForRolesThatThereAre(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	for _, role := range []string{"", "root", "Operator"} {
		if link, err := a.Link(role, "root"); err == nil {
			t.Errorf("%q: %v", role, link)
		}
	}
}

func TestEveryAnswerForbidsWhatPagesDoNotNeed(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	for _, path := range []string{"/sign-in", "/", "/nothing", "/static/x/console.css", "/link/nothing"} {
		_, header, body := a.get(path)
		policy := header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
			header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, header)
		}
		if strings.Contains(body, " style=") || strings.Contains(body, " onclick=") ||
			strings.Contains(body, "<script>") {
			t.Errorf("%s has something inline: %s", path, body)
		}
	}
}

func TestAFormHasALimit(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	if status, _, _ := a.post("/sign-in",
		url.Values{"link": {strings.Repeat("x", 1<<20)}}); status != http.StatusForbidden {
		t.Errorf("%d", status)
	}
}

func TestOneSessionLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	r := start(t)
	b := r.signedIn(t, "viewer")
	follow := func(ctx context.Context) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+"/replica/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := b.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	ctx, leave := context.WithCancel(t.Context())
	for n := 1; n <= console.MostStreams; n++ {
		if resp := follow(ctx); resp.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: %d", n, resp.StatusCode)
		}
	}
	if resp := follow(t.Context()); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more: %d", resp.StatusCode)
	}
	if status, _, _ := b.get("/settings"); status != http.StatusOK {
		t.Errorf("a page beside them: %d", status)
	}
	leave()
	for status, deadline := 0, time.Now().Add(30*time.Second); status != http.StatusOK; {
		if status = follow(t.Context()).StatusCode; time.Now().After(deadline) {
			t.Fatalf("when they are closed: %d", status)
		}
	}
}
