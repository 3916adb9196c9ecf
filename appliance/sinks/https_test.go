package sinks_test

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/sinks"
)

// collector accepts batches over HTTPS, unless answer responds first.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	lines    []string
	requests []*http.Request
	answer   func(w http.ResponseWriter, r *http.Request, lines []string) (answered bool) // may be nil
}

func newCollector(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, lines []string) bool) *collector {
	t.Helper()
	c := &collector{answer: answer}
	c.Server = httptest.NewUnstartedServer(c)
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	var lines []string
	for s := bufio.NewScanner(body); s.Scan(); {
		lines = append(lines, s.Text())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, r)
	if c.answer == nil || !c.answer(w, r, lines) {
		c.lines = append(c.lines, lines...)
		w.WriteHeader(http.StatusAccepted)
	}
}

func (c *collector) taken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// to returns a destination that trusts the collector.
func (c *collector) to(t testing.TB) *sinks.HTTPS {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	check(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw}), 0o600))
	return &sinks.HTTPS{URL: c.URL + "/services/collector/raw?channel=s3cret", Security: sinks.Security{CA: ca},
		Version: "1.2.3"}
}

func TestHTTPSPostsLinesOfJSON(t *testing.T) {
	t.Parallel()
	for _, compressed := range []bool{false, true} {
		c, j := newCollector(t, nil), newJournal(t)
		to := c.to(t)
		to.Gzip = compressed
		to.Headers = func() (http.Header, error) { return http.Header{"Authorization": {"Bearer s3cret"}}, nil }
		j.attest(t, 25)
		s := j.ship(t, t.TempDir(), sink("siem", to))
		until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 25 })
		if got := indexesOf(t, c.taken()); !slices.Equal(got, from(0, 25)) {
			t.Errorf("%v", got)
		}
		names := make(map[string]bool)
		for _, r := range c.requests {
			names[r.Header.Get("Idempotency-Key")] = true
			for name, want := range map[string]string{
				"Content-Type": "application/x-ndjson", "User-Agent": "attestd/1.2.3", "Authorization": "Bearer s3cret",
			} {
				if got := r.Header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		}
		if len(names) != len(c.requests) {
			t.Errorf("%d requests have %d names", len(c.requests), len(names))
		}
	}
}

// After each kind of refusal, the collector still gets all entries in order.
func TestHTTPSGoesOnAfterRefusals(t *testing.T) {
	t.Parallel()
	refused := 0
	once := func(code int, header ...string) func(http.ResponseWriter, *http.Request, []string) bool {
		done := false
		return func(w http.ResponseWriter, _ *http.Request, _ []string) bool {
			if done {
				return false
			}
			done = true
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(code)
			return true
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request, []string) bool{
		"too large": func(w http.ResponseWriter, _ *http.Request, lines []string) bool {
			if len(lines) > 3 {
				refused++
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
			return len(lines) > 3
		},
		"an error":        once(http.StatusInternalServerError),
		"no right":        once(http.StatusForbidden),
		"not in its time": once(http.StatusServiceUnavailable, "Retry-After", "0"),
		"too many":        once(http.StatusTooManyRequests, "Retry-After", "Thu, 01 Jan 1970 00:00:00 GMT"),
		"a redirect":      once(http.StatusTemporaryRedirect, "Location", "/elsewhere"),
		"cut off": func() func(http.ResponseWriter, *http.Request, []string) bool {
			first := once(0)
			return func(w http.ResponseWriter, r *http.Request, lines []string) (answered bool) {
				defer func() {
					if recover() != nil { // WriteHeader(0) panics
						panic(http.ErrAbortHandler)
					}
				}()
				return first(w, r, lines)
			}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, j := newCollector(t, answer), newJournal(t)
			j.attest(t, 20)
			s := j.ship(t, t.TempDir(), sink("siem", c.to(t)))
			until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 20 })
			if got := indexesOf(t, c.taken()); !slices.Equal(got, from(0, 20)) {
				t.Errorf("%v", got)
			}
			for _, r := range c.requests {
				if r.URL.Path != "/services/collector/raw" {
					t.Errorf("a redirect was followed to %s", r.URL.Path)
				}
			}
		})
	}
}

// Each error describes the failure without revealing the key in the URL or in a header.
func TestHTTPSErrors(t *testing.T) {
	t.Parallel()
	answer := http.StatusForbidden
	c := newCollector(t, func(w http.ResponseWriter, _ *http.Request, _ []string) bool {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "Invalid\x1b[31m token", answer)
		return true
	})
	for name, test := range map[string]struct {
		code   int
		change func(*sinks.HTTPS)
		want   string
		after  time.Duration
	}{
		"no right": {code: 403, want: `answers 403 Forbidden: "Invalid\x1b[31m token"`},
		"redirect": {code: 302, want: "redirects are not followed"},
		"later":    {code: 503, want: "answers 503", after: 7 * time.Second},
		"not trusted": {change: func(h *sinks.HTTPS) {
			h.Security.CA = ""
		}, want: "certificate signed by unknown authority"},
		"another name": {change: func(h *sinks.HTTPS) {
			h.Security.ServerName = "other.example.org"
		}, want: "not other.example.org"},
		"no CA": {change: func(h *sinks.HTTPS) { h.Security.CA = "/nowhere" }, want: "ca: open /nowhere"},
		"no key": {change: func(h *sinks.HTTPS) {
			h.Security.Cert, h.Security.Key = "/nowhere", "/nowhere"
		}, want: "cert and key: open /nowhere"},
		"no header": {change: func(h *sinks.HTTPS) {
			h.Headers = func() (http.Header, error) { return nil, errAway }
		}, want: "headers: away"},
		"nobody there": {change: func(h *sinks.HTTPS) {
			h.URL = "https://127.0.0.1:1/raw?channel=s3cret"
		}, want: "connection refused"},
	} {
		answer = test.code
		to := c.to(t)
		if test.change != nil {
			test.change(to)
		}
		err := to.Send(t.Context(), messages(0, 1))
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		later, _ := errors.AsType[*sinks.Later](err)
		if test.after > 0 && (later == nil || later.After != test.after) {
			t.Errorf("%s: %+v, want after %s", name, later, test.after)
		}
		check(t, to.Close())
	}
}

func TestHTTPSShowsItsCertificate(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t)
	c := newCollector(t, nil)
	c.TLS.ClientAuth, c.TLS.ClientCAs, c.TLS.MinVersion = tls.RequireAndVerifyClientCert, authority.pool(t),
		tls.VersionTLS13
	to := c.to(t)
	if err := to.Send(t.Context(), messages(0, 1)); err == nil {
		t.Error("without a certificate it is taken")
	}
	to.Security.Cert, to.Security.Key = authority.issue(t, "attestd.example.com")
	check(t, to.Send(t.Context(), messages(0, 1)))
}
