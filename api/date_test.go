package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestEachAnswerHasTheDateOfTheClock(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.clock.move(-365 * 24 * time.Hour) // differs from every other clock
	want := r.clock.Now().Format(http.TimeFormat)
	for name, request := range map[string]string{
		"200":      "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"204":      "OPTIONS /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"401":      strings.Replace(r.head(length(len(good))), "X-Api-Key", "X-Nothing", 1) + good,
		"404":      "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"no HTTP":  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n",
		"attested": r.head(length(len(good))) + good,
	} {
		w := r.dial()
		for range 2 { // an answer must not repeat the previous Date
			w.send(request)
			a := w.receive()
			if dates := a.header.Values("Date"); len(dates) != 1 || dates[0] != want {
				t.Errorf("%s: %s: Date %q, want %s", name, a, dates, want)
			}
			if a.last {
				break
			}
		}
	}
	if dates := r.do("HEAD", "/healthz", "").header.Values("Date"); len(dates) != 1 || dates[0] != want {
		t.Errorf("HEAD: Date %q, want %s", dates, want)
	}
}

func TestAnAnswerAfterAPanicHasNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.signer.fail(func() error { panic("the roof is on fire") })
	a := r.attest()
	if dates := a.header.Values("Date"); a.status != 500 || len(dates) != 1 ||
		a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%s %v", a, a.header)
	}
}

func TestProbesAreNotLoggedWhileTheyAreWell(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	level := func(path string) string {
		t.Helper()
		before := len(r.logs.String())
		r.do("GET", path, "")
		for _, l := range []string{"DEBUG", "INFO", "WARN"} {
			if strings.Contains(r.logs.String()[before:], `"level":"`+l+`","msg":"request"`) {
				return l
			}
		}
		return ""
	}
	for path, want := range map[string]string{"/healthz": "DEBUG", "/readyz": "DEBUG",
		"/functions/v1/attestor": "INFO"} {
		if got := level(path); got != want {
			t.Errorf("%s is logged at %q, want %s", path, got, want)
		}
	}
}
