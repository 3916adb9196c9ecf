package console

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql/clienttest"
)

// errRedirected stops a client at the console's own address.
var errRedirected = errors.New("back at the console")

// visitor is a browser at the provider.
type visitor struct {
	t     *testing.T
	http  *http.Client
	query url.Values // of the redirect back to the console
}

func newVisitor(t *testing.T) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{t: t}
	v.http = &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == "/oidc/callback" {
			v.query = r.URL.Query()
			return errRedirected
		}
		return nil
	}}
	return v
}

// get follows redirects. It returns "" if they lead back to the console.
func (v *visitor) get(address string) (page, at string) {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	resp, err := v.http.Do(req)
	if errors.Is(err, errRedirected) {
		return "", ""
	}
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		v.t.Fatalf("%s: %d %s %v", address, resp.StatusCode, text, err)
	}
	return string(text), resp.Request.URL.String()
}

// signIn enters an account, if the provider asks for one.
func (v *visitor) signIn(to, account string) {
	v.t.Helper()
	page, at := v.get(to)
	if strings.Contains(page, "Account") {
		_, _ = v.get(at + "?account=" + account)
	}
	if v.query == nil {
		v.t.Fatalf("%s was not led back", account)
	}
}

func testProvider(t *testing.T) *provider {
	t.Helper()
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, "./node_modules/oidc-provider", "run npm ci in api/console (make console)")
	issuer, err := Issuer()
	if err != nil {
		t.Fatal(err)
	}
	return newProvider(&OIDC{
		Issuer: issuer, ClientID: "attestd", Secret: func() (string, error) { return "the console's secret", nil },
		Scopes: []string{"openid", "email"}, Claim: "groups",
		Roles: map[string]Role{"staff": Viewer, "audit": Auditor, "ops": Operator},
	}, "http://127.0.0.1:9465/oidc/callback", time.Now)
}

// begun begins a sign-in and completes it at the provider.
func (v *visitor) begun(p *provider, account string, again bool) (code string, of pending) {
	v.t.Helper()
	v.query = nil
	to, cookie, err := p.begin(v.t.Context(), "/settings", again)
	if err != nil {
		v.t.Fatal(err)
	}
	v.signIn(to, account)
	of, ok := p.takePending(v.query.Get("state"), cookie)
	if !ok {
		v.t.Fatal("the sign-in is not known again")
	}
	return v.query.Get("code"), of
}

func TestGroupsOfTheProviderAreRoles(t *testing.T) {
	t.Parallel()
	p := testProvider(t)
	for account, want := range map[string]Role{"olga": Operator, "ada": Auditor, "vera": Viewer, "mallory": 0,
		"nobody": 0} {
		v := newVisitor(t)
		code, of := v.begun(p, account, false)
		who, err := p.finish(t.Context(), code, of)
		if who.Role != want || (want == 0) != errors.Is(err, errNoGroup) ||
			who.Name != account+" ("+account+"@example.com)" {
			t.Errorf("%s: %+v, %v", account, who, err)
		}
		if age := time.Since(who.SignedIn); want != 0 && (age > time.Minute || age < -time.Minute) {
			t.Errorf("%s signed in %s ago", account, age)
		}
		if of.next != "/settings" {
			t.Errorf("it leads to %s", of.next)
		}
	}
}

func TestWhoSignedInEarlierAtTheProviderIsNotFresh(t *testing.T) {
	t.Parallel()
	p := testProvider(t)
	v := newVisitor(t)
	code, of := v.begun(p, "late", false)
	who, err := p.finish(t.Context(), code, of)
	if age := time.Since(who.SignedIn); err != nil || age < 9*time.Minute || age > 11*time.Minute {
		t.Errorf("%+v, %v", who, err)
	}
	if age := time.Since(new(claims).signedIn()); age <= freshFor {
		t.Errorf("without auth_time, a sign-in is %s old", age)
	}
	// The provider asks for the account again only if the sign-in requests it.
	for again, asks := range map[bool]bool{false: false, true: true} {
		to, _, err := p.begin(t.Context(), "/", again)
		if err != nil {
			t.Fatal(err)
		}
		if page, _ := v.get(to); strings.Contains(page, "Account") != asks {
			t.Errorf("again %v: %s", again, page)
		}
	}
}

func TestASignInIsOfOneBrowserAndOnce(t *testing.T) {
	t.Parallel()
	p := offline(t)
	to, cookie, err := p.begin(t.Context(), "/", false)
	if err != nil {
		t.Fatal(err)
	}
	state := regexp.MustCompile(`[?&]state=([^&]+)`).FindStringSubmatch(to)[1]
	if _, ok := p.takePending(state, "another cookie"); ok {
		t.Error("another browser took it")
	}
	if _, ok := p.takePending(state, cookie); ok {
		t.Error("it was taken after another browser had tried")
	}
}

func TestACodeIsOfNoUseWithoutWhatBegan(t *testing.T) {
	t.Parallel()
	p := testProvider(t)
	for name, change := range map[string]func(*pending){
		"another verifier (PKCE)": func(b *pending) { b.verifier = strings.Repeat("x", 43) },
		"another nonce":           func(b *pending) { b.nonce = "another" },
	} {
		code, of := newVisitor(t).begun(p, "olga", false)
		change(&of)
		if who, err := p.finish(t.Context(), code, of); err == nil {
			t.Errorf("%s: %+v", name, who)
		}
	}
	code, of := newVisitor(t).begun(p, "olga", false)
	if _, err := p.finish(t.Context(), code, of); err != nil {
		t.Fatal(err)
	}
	if _, err := p.finish(t.Context(), code, of); err == nil {
		t.Error("a code was used twice")
	}
}

func TestAProviderThatIsAwayIsAnErrorAndAskedAgain(t *testing.T) {
	t.Parallel()
	p := testProvider(t)
	there, away := p.Issuer, errors.New("away")
	p.HTTP = roundTripper(func(*http.Request) (*http.Response, error) { return nil, away })
	if _, _, err := p.begin(t.Context(), "/", false); !errors.Is(err, away) {
		t.Error(err)
	}
	p.HTTP, p.Issuer = nil, there
	if _, _, err := p.begin(context.Background(), "/", false); err != nil {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
