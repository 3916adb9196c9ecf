package console_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// theKey returns the API key with a name, which must be unique.
func (r *rig) theKey(t testing.TB, name string) appliance.APIKey {
	t.Helper()
	keys, err := r.admin.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []appliance.APIKey
	for _, k := range keys {
		if k.Name == name {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d API keys are named %s", len(found), name)
	}
	return found[0]
}

// newKeyForm is a valid form for a new key.
func newKeyForm(name string) url.Values {
	return url.Values{"name": {name}, "rate": {"10/s"}, "scope": {"attest"}, "expires": {"2999-01-31"},
		"allowFrom": {"127.0.0.0/8, ::1"}}
}

var checkedScopes = regexp.MustCompile(`name="scope" value="([a-z]+)" checked`)

// The form for a new key has the scopes that a key gets which the command creates without any.
func TestTheFormHasTheScopesOfTheCommand(t *testing.T) {
	t.Parallel()
	r := start(t)
	key, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: newName("by default")})
	if err != nil {
		t.Fatal(err)
	}
	_, _, page := r.signedIn(t, "operator").get("/keys")
	var checked []appliance.Scope
	for _, found := range checkedScopes.FindAllStringSubmatch(page, -1) {
		checked = append(checked, appliance.Scope(found[1]))
	}
	if !slices.Equal(checked, key.Scopes) {
		t.Errorf("the form has %v, the command %v", checked, key.Scopes)
	}
}

var tokenPattern = regexp.MustCompile(`attestd_[a-z2-7]{16}_[0-9a-f]{64}`)

func TestAKeyIsMadeUsedAndRevoked(t *testing.T) {
	t.Parallel()
	r := start(t)
	name := newName("made & used")
	b := r.signedIn(t, "operator")
	status, header, body := b.post("/keys", newKeyForm(name))
	token := tokenPattern.FindString(body)
	if status != http.StatusOK || token == "" || header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d, %s: %s", status, header.Get("Cache-Control"), body)
	}
	key := r.theKey(t, name)
	if key.Rate.String() != "10/s" || len(key.Scopes) != 1 || key.Scopes[0] != appliance.ScopeAttest ||
		len(key.AllowFrom) != 2 ||
		!key.Expires.Equal(time.Date(2999, 1, 31, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", key)
	}
	c, err := client.New(r.api, token, client.Options{Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Attest(t.Context(), newPair(), client.AttestOptions{}); err != nil {
		t.Errorf("the token that was shown: %v", err)
	}
	_, _, body = b.get("/keys")
	for _, want := range []string{strings.ReplaceAll(name, "&", "&amp;"), key.ID, "10/s", "2999-01-31", "127.0.0.0/8",
		"1 attestations in the past day", "<path d=\"M95.5 24v-24.0\"/>"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page does not hold %q", want)
		}
	}
	if strings.Contains(body, token) {
		t.Error("the token is shown again")
	}
	if _, _, body := b.post("/keys/"+key.ID+"/revoke", url.Values{"name": {"made & use"}}); !strings.Contains(body,
		"Not revoked") {
		t.Errorf("another name: %s", body)
	}
	if key := r.theKey(t, name); !key.Revoked.IsZero() {
		t.Error("a name that is not the key's has revoked it")
	}
	if status, _, body := b.post("/keys/"+key.ID+"/revoke", url.Values{"name": {name}}); status != http.StatusSeeOther {
		t.Errorf("revoked: %d %s", status, body)
	}
	if _, err := c.Attest(t.Context(), newPair(),
		client.AttestOptions{}); client.CodeOf(err) != appliance.CodeAPIKeyRevoked {
		t.Errorf("after it was revoked: %v", err)
	}
	if status, _, _ := b.post("/keys/aaaaaaaaaaaaaaaa/revoke",
		url.Values{"name": {""}}); status != http.StatusNotFound {
		t.Errorf("a key that there is not: %d", status)
	}
}

// The journal names the console user that made a change.
func TestTheJournalSaysWhoMadeAKeyInTheConsole(t *testing.T) {
	t.Parallel()
	r := start(t)
	name := newName("of the journal")
	if status, _, body := r.signedIn(t, "operator").post("/keys", newKeyForm(name)); status != http.StatusOK {
		t.Fatal(status, body)
	}
	id := r.theKey(t, name).ID
	events, err := r.admin.Records(t.Context(), journal.Query{EventsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Event.Kind == journal.EventKeyCreated && e.Event.Details["id"] == id {
			if !strings.HasPrefix(e.Event.By, "console: ") {
				t.Errorf("by %q", e.Event.By)
			}
			return
		}
	}
	t.Errorf("no event tells of %s", id)
}

func TestAFormThatIsWrongMakesNoKeyAndIsKept(t *testing.T) {
	t.Parallel()
	r := start(t)
	b := r.signedIn(t, "operator")
	for name, c := range map[string]struct{ field, value, want string }{
		"rate":       {"rate", "fast", "must be like 10/s"},
		"no scope":   {"scope", "", "no scope"},
		"a past day": {"expires", "2020-01-01", "must be in the future"},
		"no day":     {"expires", "tomorrow", "must be in the future"},
		"no network": {"allowFrom", "10.0.0.0/33", "is not a network"},
		"no name":    {"name", " ", "name must be 1 to 128 bytes"},
		"attestor":   {"attestor", "nobody", "attestor"},
	} {
		form := newKeyForm("refused for " + name)
		form.Set(c.field, c.value)
		_, _, body := b.post("/keys", form)
		if !strings.Contains(body, c.want) || !strings.Contains(body, `role="alert"`) ||
			tokenPattern.MatchString(body) {
			t.Errorf("%s: %s", name, body)
		}
		if c.field != "name" && !strings.Contains(body, `value="refused for `+name+`"`) {
			t.Errorf("%s: what was typed is lost", name)
		}
	}
	form := newKeyForm("refused for all")
	form.Del("scope")
	if _, _, body := b.post("/keys", form); !strings.Contains(body, "at least one scope") {
		t.Errorf("without scopes: %s", body)
	}
	keys, err := r.admin.ListKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if strings.HasPrefix(k.Name, "refused for") {
			t.Errorf("%s was made", k.Name)
		}
	}
}

func TestAKeyIsNotMadeByWhoSignedInLongAgo(t *testing.T) {
	t.Parallel()
	a := newAlone(t, "")
	a.signIn()
	a.ahead.Store(6 * 60)
	status, _, body := a.post("/keys", newKeyForm("late"))
	if status != http.StatusForbidden || !strings.Contains(body, "sign in again") ||
		!strings.Contains(body, "The change was not made") {
		t.Errorf("%d: %s", status, body)
	}
}

func TestOnlyOperatorsMakeAndRevokeKeys(t *testing.T) {
	t.Parallel()
	r := start(t)
	name := newName("stays")
	key, _, err := r.admin.CreateKey(t.Context(), appliance.KeyRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"viewer", "auditor"} {
		b := r.signedIn(t, role)
		status, _, body := b.get("/keys")
		if status != http.StatusOK || !strings.Contains(body, key.ID) || strings.Contains(body, `method="post" action="/keys`) {
			t.Errorf("what a %s sees: %d %s", role, status, body)
		}
		if status, _, _ := b.post("/keys", newKeyForm("by a "+role)); status != http.StatusForbidden {
			t.Errorf("a %s makes a key: %d", role, status)
		}
		if status, _, _ := b.post("/keys/"+key.ID+"/revoke",
			url.Values{"name": {name}}); status != http.StatusForbidden {
			t.Errorf("a %s revokes a key: %d", role, status)
		}
	}
	if key := r.theKey(t, name); !key.Revoked.IsZero() {
		t.Error("it is revoked")
	}
}
