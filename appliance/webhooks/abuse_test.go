package webhooks_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/webhooks"
)

func TestPrivateAddressesAreRefusedAfterTheNameIsResolved(t *testing.T) {
	rig := newRig(t)
	var reached atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	check(t, err)
	h := rig.start(t, "")
	for name, url := range map[string]string{
		"by-name": "http://localhost:" + port, // a name that DNS resolves to a loopback address
		"v4":      "http://127.0.0.1:" + port, "mapped": "http://[::ffff:127.0.0.1]:" + port, "zero": "http://0.0.0.0:" + port,
		"decimal": "http://2130706433:" + port, "v6": "http://[::1]:" + port,
		"private": "http://10.0.0.1", "metadata": "http://169.254.169.254", "cgnat": "http://100.64.0.1",
		"local-v6": "http://[fd00::1]", "link-v6": "http://[fe80::1]", "nat64": "http://[64:ff9b::7f00:1]",
	} {
		create(t, h, webhooks.Request{Name: name, URL: url})
		d, err := h.Test(t.Context(), name)
		check(t, err)
		if d.Outcome == webhooks.Delivered || name != "decimal" && !strings.Contains(d.Error, "not public") {
			t.Errorf("%s: %+v", url, d)
		}
	}
	if reached.Load() != 0 {
		t.Error("the receiver was reached")
	}
}

func TestOtherURLsAreRefused(t *testing.T) {
	rig := newRig(t)
	h := rig.start(t)
	for _, url := range []string{"", "example.com", "ftp://example.com", "https://", "https://user:secret@example.com",
		"https://example.com/#part", "file:///etc/passwd", "https://example.com/" + strings.Repeat("a", 3000)} {
		if _, err := h.New(t.Context(), webhooks.Request{Name: "siem", URL: url}, ""); appliance.CodeOf(err) !=
			appliance.CodeInvalidField {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	rig, target := newRig(t), newReceiver(t)
	server := httptest.NewServer(http.RedirectHandler(target.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: server.URL})
	d, err := h.Test(t.Context(), "siem")
	check(t, err)
	if d.Status != http.StatusTemporaryRedirect || d.Outcome != webhooks.Failed || len(target.got) > 0 {
		t.Errorf("%+v, %d followed", d, len(target.got))
	}
}

// An endless body is cut off, and so is an answer that never comes. Neither delays another webhook.
func TestAnEndlessResponseEnds(t *testing.T) {
	rig, well := newRig(t), newReceiver(t)
	var written atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees the end of the connection
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
			return
		}
		for r.Context().Err() == nil {
			n, err := w.Write(make([]byte, 1<<20))
			if written.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "endless", URL: server.URL})
	create(t, h, webhooks.Request{Name: "hangs", URL: server.URL + "/hang"})
	create(t, h, webhooks.Request{Name: "well", URL: well.URL})
	well.has(t, rig.event(t, "a"))
	until(t, "cut off", func() bool {
		return statusOf(t, h, "endless").Delivered == 1 && statusOf(t, h, "hangs").Failures == 1
	})
	if n := written.Load(); n > 64<<20 { // the buffers of a connection are smaller
		t.Errorf("%d bytes of the endless response were read", n)
	}
	if s := statusOf(t, h, "hangs"); s.LastError != "the receiver did not answer in time" {
		t.Errorf("%+v", s)
	}
}

func TestARetryWaitsAsLongAsTheReceiverAsks(t *testing.T) {
	rig := newRig(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: server.URL})
	rig.event(t, "a")
	until(t, "failing", func() bool { return statusOf(t, h, "siem").Failures == 1 })
	all, err := h.Deliveries(t.Context(), "siem")
	check(t, err)
	if wait := all[0].Next.Sub(all[0].Time); wait < 10*time.Minute {
		t.Errorf("%v", wait)
	}
}

// The reason phrase of a response is the receiver's text. It may be long, so no delivery keeps it.
func TestTheReasonPhraseOfAResponseIsNotKept(t *testing.T) {
	rig := newRig(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 503 "+strings.Repeat("x", 32<<10)+"\r\nContent-Length: 0\r\n\r\n")
	}))
	defer server.Close()
	h := rig.start(t)
	create(t, h, webhooks.Request{Name: "siem", URL: server.URL})
	d, err := h.Test(t.Context(), "siem")
	check(t, err)
	if d.Status != 503 || d.Error != "the receiver answers 503 Service Unavailable" {
		t.Errorf("status %d, an error of %d bytes: %.100s", d.Status, len(d.Error), d.Error)
	}
}
