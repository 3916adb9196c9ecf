package api_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// head returns the request line and headers of an attestation request. The extra headers describe the body.
func (r *rig) head(extra ...string) string {
	lines := append([]string{
		"POST " + attestPath + " HTTP/1.1", "Host: x", "X-Api-Key: " + r.token, "Content-Type: application/json",
	}, extra...)
	return strings.Join(lines, "\r\n") + "\r\n\r\n"
}

func length(n int) string { return fmt.Sprintf("Content-Length: %d", n) }

const chunkedHeader = "Transfer-Encoding: chunked"

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

func TestABodyOf100MBIsAnsweredAndNotReset(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	body := bytes.Repeat([]byte("a"), 100<<20)
	for _, streamed := range []bool{false, true} {
		var reader io.Reader = bytes.NewReader(body)
		if streamed {
			reader = io.MultiReader(reader) // of unknown length, so it is chunked
		}
		a, err := r.try(http.DefaultClient, "POST", "http://"+r.address+attestPath, reader, "x-api-key", r.token,
			"Content-Type", "application/json")
		if err != nil || a.status != 413 || a.problem().Code != api.CodeBodyTooLarge || !a.last {
			t.Errorf("chunked %v: %s, %v", streamed, a, err)
		}
	}
}

func TestAClientThatWritesEverythingBeforeItReadsIsAnswered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	large := strings.Repeat("a", 20<<20)
	for name, request := range map[string]string{
		"sized":      r.head(length(len(large))) + large,
		"chunked":    r.head(chunkedHeader) + chunked(large),
		"one chunk":  r.head(chunkedHeader) + fmt.Sprintf("%x\r\n", len(large)) + large,
		"no key":     strings.Replace(r.head(length(len(large))), "X-Api-Key", "X-Nothing", 1) + large,
		"headers":    "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: " + large + "\r\n\r\n",
		"first line": "GET /" + large + " HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		w := r.dial()
		w.send(request)
		want := map[string]int{"no key": 401, "headers": 431, "first line": 414}[name]
		if want == 0 {
			want = 413
		}
		if a := w.receive(); a.status != want || a.problem().Status != want || !a.last {
			t.Errorf("%s: %s", name, a)
		}
		w.receiveEnd()
	}
	if r.size() != 0 {
		t.Error("something was signed")
	}
}

func TestCurlReadsThe413(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	r := newRig(t)
	for _, extra := range [][]string{nil, {"-H", "Expect:"}, {"-H", "Transfer-Encoding: chunked"}} {
		args := append([]string{
			"-sS", "-m", "30", "-w", "%{http_code}", "-o", "/dev/null", "--data-binary", "@-",
			"-H", "Content-Type: application/json", "-H", "x-api-key: " + r.token, "http://" + r.address + attestPath,
		}, extra...)
		command := exec.Command(curl, args...)
		command.Stdin = bytes.NewReader(bytes.Repeat([]byte("a"), 8<<20))
		if out, err := command.CombinedOutput(); err != nil || string(out) != "413" {
			t.Errorf("curl %v: %s, %v", extra, out, err)
		}
	}
}

func TestBodiesThatAreNotWhatTheirHeadersSay(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.ReadTimeout = shortTimeout })
	cases := []struct {
		name, request string
		half          bool // the client closes its sending side
		status        int
		code          appliance.Code
	}{
		{"longer than sent", r.head(length(len(good)+10)) + good, true, 400, api.CodeInvalidRequest},
		{"much longer than sent", r.head(length(12<<10)) + good + strings.Repeat(" ", 9<<10), true, 400,
			api.CodeInvalidRequest},
		{"longer, and waiting", r.head(length(len(good)+10)) + good, false, 408, api.CodeRequestTimeout},
		{"much longer, and waiting", r.head(length(12<<10)) + good + strings.Repeat(" ", 9<<10), false, 408,
			api.CodeRequestTimeout},
		{"chunks without their end", r.head(chunkedHeader) + fmt.Sprintf("%x\r\n%s\r\n", len(good), good), true, 400,
			api.CodeInvalidRequest},
		{"half a chunk", r.head(chunkedHeader) + fmt.Sprintf("%x\r\n%s", len(good)+10, good), true, 400,
			api.CodeInvalidRequest},
		{"chunks, and waiting", r.head(chunkedHeader) + fmt.Sprintf("%x\r\n%s\r\n", len(good), good), false, 408,
			api.CodeRequestTimeout},
		{"no chunks", r.head(chunkedHeader) + good, false, 400, api.CodeInvalidRequest},
		{"both", r.head(chunkedHeader, length(len(good))) + chunked(good), false, 400, api.CodeInvalidRequest},
		{"two lengths", r.head(length(len(good)), length(3)) + good, false, 400, api.CodeInvalidRequest},
		{"the same length twice", r.head(length(len(good)), length(len(good))) + good, false, 400,
			api.CodeInvalidRequest},
		{"another encoding", r.head("Transfer-Encoding: gzip, chunked") + chunked(good), false, 400,
			api.CodeInvalidRequest},
		{"no number", r.head("Content-Length: many") + good, false, 400, api.CodeInvalidRequest},
		{"negative", r.head("Content-Length: -1") + good, false, 400, api.CodeInvalidRequest},
		{"a length that overflows", r.head("Content-Length: 25000000000000000000") + good, false, 413,
			api.CodeBodyTooLarge},
		{"half a request line", "POST /func", false, 408, api.CodeRequestTimeout},
		{"half the headers", "POST / HTTP/1.1\r\nHost: x\r\nX-", false, 408, api.CodeRequestTimeout},
		{"a space in a header's name", "GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", false, 400, api.CodeInvalidRequest},
		{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n\n", false, 400, api.CodeInvalidRequest},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, 400, api.CodeInvalidRequest},
	}
	conns := make([]*rawConn, len(cases))
	for i, c := range cases {
		conns[i] = r.dial()
		conns[i].send(c.request)
		if c.half {
			r.must(conns[i].Conn.(*net.TCPConn).CloseWrite())
		}
	}
	for i, c := range cases { // all timeouts run at the same time
		w := conns[i]
		if a := w.receive(); a.status != c.status || a.problem().Code != c.code || !a.last {
			t.Errorf("%s: %s, want %d %s", c.name, a, c.status, c.code)
		}
		w.receiveEnd()
	}
	if r.size() != 0 {
		t.Error("something was signed")
	}
	if strings.Contains(r.logs.String(), r.token) {
		t.Error("a token was logged")
	}
}

func TestGoodBodiesHoweverTheyCome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := good + strings.Repeat(" ", 10<<10)
	var pieces strings.Builder
	for _, b := range []byte(good) {
		fmt.Fprintf(&pieces, "1;extension\r\n%c\r\n", b)
	}
	w := r.dial() // shared by all cases except chunked ones, which close it
	for name, request := range map[string]string{
		"sized":             r.head(length(len(good))) + good,
		"longer than fetch": r.head(length(len(long))) + long,
		"chunked":           r.head(chunkedHeader) + chunked(good),
		"long chunk":        r.head(chunkedHeader) + chunked(long),
		"byte by byte":      r.head(chunkedHeader) + pieces.String() + "0\r\n\r\n",
		"with a trailer": r.head(chunkedHeader, "Trailer: X-T") + strings.TrimSuffix(chunked(good), "\r\n") +
			"X-T: 1\r\n\r\n",
	} {
		w := w
		chunked := strings.Contains(request, chunkedHeader)
		if chunked {
			w = r.dial()
		}
		w.send(request)
		if a := w.receive(); a.status != 200 || a.last != chunked {
			t.Errorf("%s: %s", name, a)
		}
	}
	if n := r.size(); n != 6 {
		t.Errorf("%d records, want 6", n)
	}
}

func TestExpect100Continue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct {
		body   string
		status int
	}{{good, 200}, {strings.Repeat("a", 1<<20), 413}} {
		w := r.dial()
		w.send(r.head(length(len(c.body)), "Expect: 100-continue"))
		if line, err := w.in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("%q, %v", line, err)
		}
		_, err := w.in.ReadString('\n')
		r.must(err)
		w.send(c.body)
		if a := w.receive(); a.status != c.status {
			t.Errorf("%s, want %d", a, c.status)
		}
	}
}

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.dial()
	var all strings.Builder
	for i := range 5 {
		all.WriteString(r.head(length(len(good)), fmt.Sprintf("X-Request-Id: r%d", i)) + good)
	}
	w.send(all.String())
	for i := range 5 {
		if a := w.receive(); a.status != 200 || a.header.Get("X-Request-Id") != fmt.Sprintf("r%d", i) {
			t.Errorf("answer %d: %s %v", i, a, a.header)
		}
	}
	if r.size() != 5 {
		t.Errorf("%d records", r.size())
	}
}

// The rest of a refused body must never be taken for the next request, because an attacker may have written it.
func TestTheRestOfARefusedBodyIsNotTheNextRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	smuggled := r.head(length(len(good))) + good
	anonymous := strings.Replace(r.head("%s"), "X-Api-Key", "X-Nothing", 1)
	padded := strings.Repeat(" ", 8<<10) + smuggled
	for name, request := range map[string]string{
		"chunked": fmt.Sprintf(anonymous, chunkedHeader) + chunked(smuggled),
		"sized":   fmt.Sprintf(anonymous, length(len(padded))) + padded,
		"short":   fmt.Sprintf(anonymous, length(len(smuggled))) + smuggled,
	} {
		w := r.dial()
		w.send(request)
		a := w.receive()
		if a.status != 401 {
			t.Errorf("%s: %s", name, a)
		}
		if name == "short" { // was read whole, so the connection stays open
			w.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			if next := w.receive(); a.last || next.status != 200 || len(next.body) > 20 {
				t.Errorf("%s: and then %s", name, next)
			}
			continue
		}
		w.receiveEnd()
	}
	if r.size() != 0 {
		t.Error("a smuggled request was signed")
	}
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.IdleTimeout = 50 * time.Millisecond })
	w := r.dial()
	w.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if a := w.receive(); a.status != 200 {
		t.Error(a)
	}
	w.receiveEnd()
}

func TestRequestIDsAreShortTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for given, kept := range map[string]bool{
		"a": true, "018f4e3a-0000-7000-8000-000000000000": true, "A.b_c-9": true, strings.Repeat("x", 64): true,
		strings.Repeat("x", 65): false, "a b": false, `a"b`: false, "é": false, "a,b": false,
	} {
		a := r.do("GET", "/healthz", "", "X-Request-Id", given)
		if id := a.header.Get("X-Request-Id"); (id == given) != kept || id == "" {
			t.Errorf("%q became %q", given, id)
		}
	}
}
