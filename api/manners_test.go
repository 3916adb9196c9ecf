package api_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

func TestAnswersSayWhatIsLeftOfTheRate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.AnonymousRate, o.DefaultRate, o.Routes = perSecond(4), perSecond(8), readsRoutes()
	})
	usual, _ := r.newKey(appliance.KeyRequest{})
	rare, _ := r.newKey(appliance.KeyRequest{Rate: perSecond(1.0 / 30)})
	for _, step := range []struct {
		name, path, token string
		status            int
		policy, limit     string
	}{
		{"no key, the first", "/reads", "", 200, `"address";q=4;w=1`, `"address";r=3;t=1`},
		{"no key, the second", "/nowhere", "", 404, `"address";q=4;w=1`, `"address";r=2;t=1`},
		{"no key, and refused for that", "/functions/v1/attest/x", "", 401, `"address";q=4;w=1`, `"address";r=1;t=1`},
		{"no key, the last", "/reads", "", 200, `"address";q=4;w=1`, `"address";r=0;t=1`},
		{"no key, one too many", "/reads", "", 429, `"address";q=4;w=1`, `"address";r=0;t=1`},
		{"a key", "/reads", usual, 200, `"api-key";q=8;w=1`, `"api-key";r=7;t=1`},
		{"a costly request", "/costly", usual, 200, `"api-key";q=8;w=1`, `"api-key";r=3;t=1`},
		{"a rare key", "/reads", rare, 200, `"api-key";q=1;w=30`, `"api-key";r=0;t=30`},
		{"a rare key, too soon", "/reads", rare, 429, `"api-key";q=1;w=30`, `"api-key";r=0;t=30`},
		{"a waived key", "/reads", r.token, 200, "", ""},
		{"a probe", "/healthz", "", 200, "", ""},
	} {
		a := r.do("GET", step.path, "", "x-api-key", step.token)
		if policy, limit := a.header.Get("RateLimit-Policy"), a.header.Get("RateLimit"); a.status != step.status ||
			policy != step.policy || limit != step.limit {
			t.Errorf("%s: %d, RateLimit-Policy %s, RateLimit %s; want %d, %s, %s", step.name, a.status, policy, limit,
				step.status, step.policy, step.limit)
		}
		if a.status == 429 && !strings.HasSuffix(step.limit, ";t="+a.header.Get("Retry-After")) {
			t.Errorf("%s: Retry-After %s, RateLimit %s", step.name, a.header.Get("Retry-After"), step.limit)
		}
	}
}

func TestEachAnswerForbidsSniffing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, request := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /log/checkpoint HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "?\r\n\r\n",
		"BREW /coffee HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		w := r.dial()
		w.send(request)
		a := w.receive()
		if got := a.header.Values("X-Content-Type-Options"); len(got) != 1 || got[0] != "nosniff" ||
			a.header.Get("Strict-Transport-Security") != "" {
			t.Errorf("%q: %s %v", request, a, a.header)
		}
	}
}

func TestThereIsOneAllowHeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, c := range []struct{ method, path, want string }{
		{"OPTIONS", attestPath, "POST, OPTIONS"},
		{"OPTIONS", "/healthz", "GET, HEAD, OPTIONS"},
		{"PUT", "/healthz", "GET, HEAD"},
		{"GET", attestPath, "POST"},
	} {
		if a := r.do(c.method, c.path, ""); len(a.header.Values("Allow")) != 1 || a.header.Get("Allow") != c.want {
			t.Errorf("%s %s: Allow is %q, want %s", c.method, c.path, a.header.Values("Allow"), c.want)
		}
	}
}

func TestAProblemHasItsTextAsMessageToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var body struct{ Detail, Message, Code string }
	r.must(json.Unmarshal(r.do("POST", attestPath, good).body, &body))
	if body.Message == "" || body.Message != body.Detail {
		t.Errorf("detail %q, message %q", body.Detail, body.Message)
	}
	for code := range api.Statuses() {
		if string(code) != strings.ToLower(string(code)) {
			t.Errorf("code %s is not in lower case", code)
		}
	}
}

// tlsRig is a rig that serves HTTPS.
func tlsRig(t *testing.T) *rig {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	newAuthority(t).issue("x", cert, key)
	loaded, err := api.LoadCertificates(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, func(o *api.Options) { o.TLS = loaded.Config() })
}

func TestPlainHTTPToTheTLSPortIsToldSo(t *testing.T) {
	t.Parallel()
	r := tlsRig(t)
	for name, request := range map[string]string{
		"GET":              "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"an attestation":   r.head(length(len(good))) + good,
		"a large body":     r.head(length(1<<20)) + strings.Repeat("a", 1<<20),
		"only a few bytes": "GE",
	} {
		w := r.dial()
		w.send(request)
		a := w.receive()
		if a.status != 400 || a.problem().Code != api.CodeInvalidRequest ||
			!strings.Contains(a.problem().Detail, "https://") || !a.last {
			t.Errorf("%s: %s", name, a)
		}
		if a.header.Get("Strict-Transport-Security") != "" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", name, a.header)
		}
		w.receiveEnd()
	}
	if r.size() != 0 {
		t.Error("something was signed")
	}
}

func TestHTTPSIsAnsweredWithHSTS(t *testing.T) {
	t.Parallel()
	r := tlsRig(t)
	for name, request := range map[string]string{
		"an answer":     "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"a problem":     "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"not even HTTP": "?\r\n\r\n",
	} {
		raw, err := net.Dial("tcp", r.address)
		r.must(err)
		r.must(raw.SetDeadline(time.Now().Add(patience)))
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // the test's own certificate
		_, err = c.Write([]byte(request))
		r.must(err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		r.must(err)
		if got := resp.Header.Values("Strict-Transport-Security"); len(got) != 1 || got[0] != "max-age=31536000" {
			t.Errorf("%s: Strict-Transport-Security is %q", name, got)
		}
		resp.Body.Close()
		c.Close()
	}
}

func TestMistakesOfClientsNameTheRemedy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	snake := strings.Replace(good, "unspendableAddress", "unspendable_address", 1)
	for name, mistake := range map[string]struct {
		body, header, value, says string
	}{
		"another spelling": {snake, "x-api-key", r.token,
			`unknown field "unspendable_address"; did you mean unspendableAddress?`},
		"a bearer token": {good, "Authorization", "Bearer " + r.token,
			"x-api-key header: send it there instead of in Authorization"},
	} {
		a := r.do("POST", attestPath, mistake.body, mistake.header, mistake.value, "Content-Type", "application/json")
		if p := a.problem(); !strings.Contains(p.Detail, mistake.says) {
			t.Errorf("%s: %s, want %q", name, a, mistake.says)
		}
	}
}
