package console

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/api"
)

// passed remembers the request that a gate let through.
type passed struct{ request *http.Request }

func (p *passed) RoundTrip(r *http.Request) (*http.Response, error) {
	p.request = r
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// ask sends a request of the admin socket as a principal. It fills in {id}.
func ask(t *testing.T, who Principal, now time.Time, verb string) (*http.Request, error) {
	t.Helper()
	method, path, _ := strings.Cut(strings.ReplaceAll(verb, "{id}", "k3x5wq7mzp2n4r6t"), " ")
	next := &passed{}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://attestd"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(api.ByHeader, "root")
	_, err = adminTransport{next: next, known: newKnown(), who: who, now: func() time.Time { return now }}.RoundTrip(r)
	return next.request, err
}

func TestEachVerbIsAskedOnlyByARoleThatMay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for pattern, v := range verbs {
		for role := Viewer; role <= Operator; role++ {
			r, err := ask(t, Principal{Name: "alice", Role: role, SignedIn: now}, now, pattern)
			if may := role >= v.least; may != (err == nil) || !may && !errors.Is(err, errRole) {
				t.Errorf("%s asks %s: %v", role, pattern, err)
			}
			if r != nil && r.Header.Get(api.ByHeader) != "console: alice" {
				t.Errorf("%s is asked in the name of %q", pattern, r.Header.Get(api.ByHeader))
			}
		}
	}
}

func TestWhatTheTableDoesNotNameIsAskedByNobody(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, verb := range []string{
		"POST /console/links", "POST /reload", "GET /log/entries",
		"POST /replica/batches", "GET /replica/records",
		"DELETE /keys", "GET /keys/", "GET /", "POST /status", "GET //keys", "GET /log/../keys",
	} {
		if r, err := ask(t, Principal{Role: Operator, SignedIn: now}, now, verb); err == nil {
			t.Errorf("%s passed as %s", verb, r.URL)
		}
	}
}

func TestWritesTakeASignInOfTheLastFiveMinutes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	writes := 0
	for pattern, v := range verbs {
		reads := strings.HasPrefix(pattern, "GET ") || pattern == "POST /log/verify" || pattern == "POST /log/report"
		if !v.writes && !reads {
			t.Errorf("%s writes, and the table does not say so", pattern)
		}
		if !v.writes {
			continue
		}
		writes++
		for age, want := range map[time.Duration]error{5 * time.Minute: nil, 5*time.Minute + time.Second: errStale} {
			if _, err := ask(t, Principal{Role: Operator, SignedIn: now.Add(-age)}, now, pattern); !errors.Is(err,
				want) {
				t.Errorf("%s %s after signing in: %v", pattern, age, err)
			}
		}
	}
	if writes == 0 {
		t.Error("nothing writes")
	}
}

func TestAViewerIsToldNoAddresses(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for role, want := range map[Role]string{Viewer: "addresses", Auditor: "", Operator: ""} {
		for _, verb := range []string{"GET /log/records", "GET /log/records?redact=none&limit=3",
			"GET /log/records/{id}"} {
			r, err := ask(t, Principal{Role: role, SignedIn: now}, now, verb)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.URL.Query()["redact"]; role == Viewer && (len(got) != 1 || got[0] != want) {
				t.Errorf("%s asks %s with redact=%q", role, verb, got)
			}
		}
		for _, by := range []string{"unspendable", "hash"} {
			_, err := ask(t, Principal{Role: role, SignedIn: now}, now, "GET /log/records?"+by+"=0x01")
			if (role == Viewer) != errors.Is(err, errRole) {
				t.Errorf("%s searches by %s: %v", role, by, err)
			}
		}
	}
}

func TestASessionEndsAndSoDoesWhatItFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(time.Now)
		cookie, begun := s.begin(Principal{Name: "alice", Role: Viewer, SignedIn: time.Now()})
		time.Sleep(sessionLife - time.Second)
		if s.of(cookie) != begun || begun.ended.Err() != nil {
			t.Error("the session ended early")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if begun.ended.Err() == nil {
			t.Error("what it follows goes on")
		}
		if s.of(cookie) != nil {
			t.Error("the session goes on")
		}
	})
}

func TestALinkIsTakenOnceWithinAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSessions(time.Now)
		token, _ := s.invite(Auditor, "root")
		if l, ok := s.peekLink(token); !ok || l.Role != Auditor {
			t.Error("it cannot be looked at")
		}
		if _, ok := s.takeLink(token); !ok {
			t.Error("it cannot be taken")
		}
		if _, ok := s.takeLink(token); ok {
			t.Error("it was taken twice")
		}
		late, _ := s.invite(Auditor, "root")
		time.Sleep(time.Minute)
		if _, ok := s.takeLink(late); ok {
			t.Error("it was taken after a minute")
		}
	})
}

func TestSessionsAndLinksAreBounded(t *testing.T) {
	t.Parallel()
	s := newSessions(time.Now)
	first, oldest := s.begin(Principal{SignedIn: time.Now()})
	link, _ := s.invite(Viewer, "root")
	for range mostSessions {
		s.begin(Principal{})
	}
	for range mostLinks {
		s.invite(Viewer, "root")
	}
	if len(s.signed) != mostSessions || s.of(first) != nil || oldest.ended.Err() == nil {
		t.Errorf("%d sessions, the oldest among them: %v", len(s.signed), s.of(first) != nil)
	}
	if _, ok := s.peekLink(link); ok && len(s.links) > mostLinks {
		t.Errorf("%d links", len(s.links))
	}
	s.finishAll()
	if len(s.signed) != 0 {
		t.Error("sessions are left")
	}
}

func TestCommandsAreFoundInRemedies(t *testing.T) {
	t.Parallel()
	for remedy, want := range map[string]string{
		"attestd reload":            "attestd reload",
		"systemctl restart attestd": "systemctl restart attestd",
		"set the clock, and synchronise it: systemctl enable --now systemd-timesyncd (or chrony)":       "systemctl enable --now systemd-timesyncd",
		"correct the cause; attestd recovers automatically":                                             "",
		"list all damage: attestd log verify. Stop attestd":                                             "attestd log verify",
		"write the PIN to a file, then run: attestd setup --yes --pin-file FILE; then: systemctl start": "attestd setup --yes --pin-file FILE",
		"chmod 0600 /var/lib/attestd/attestd.db":                                                        "chmod 0600 /var/lib/attestd/attestd.db",
		"chown attestd: /etc/attestd/pin":                                                               "chown attestd: /etc/attestd/pin",
		"run doctor as root: sudo attestd doctor":                                                       "attestd doctor",
	} {
		if got := commandIn(remedy); got != want {
			t.Errorf("%q: %q, want %q", remedy, got, want)
		}
	}
}
