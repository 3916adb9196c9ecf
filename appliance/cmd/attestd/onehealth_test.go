package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/health"
)

// willing is a witness that cosigns every checkpoint, and answers 500 while it is away.
type willing struct {
	key  ed25519.PrivateKey
	away atomic.Bool
	url  string
}

func newWilling(t *testing.T) *willing {
	t.Helper()
	seed := sha256.Sum256([]byte("willing"))
	w := &willing{key: ed25519.NewKeyFromSeed(seed[:])}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

func (w *willing) hash() []byte {
	sum := sha256.Sum256(append([]byte("willing\n"), w.public()...))
	return sum[:4]
}

// public is the key after the type byte of a cosigner (C2SP tlog-cosignature).
func (w *willing) public() []byte { return append([]byte{4}, w.key.Public().(ed25519.PublicKey)...) }

// policy demands its cosignature.
func (w *willing) policy() string {
	return fmt.Sprintf("witness w willing+%x+%s %s\nquorum w\n", w.hash(),
		base64.StdEncoding.EncodeToString(w.public()), w.url)
}

func (w *willing) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, signed, found := strings.Cut(string(body), "\n\n")
	if w.away.Load() || err != nil || !found {
		out.WriteHeader(http.StatusInternalServerError)
		return
	}
	text, _, _ := strings.Cut(signed, "\n\n")
	at := time.Now().Unix()
	signature := ed25519.Sign(w.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s\n", at, text))
	raw := append(binary.BigEndian.AppendUint64(w.hash(), uint64(at)), signature...)
	fmt.Fprintf(out, "— willing %s\n", base64.StdEncoding.EncodeToString(raw))
}

// overviewOf returns a function that reads the console's Overview as a signed-in viewer.
func overviewOf(t *testing.T, d *daemontest.Daemon, console string) func() string {
	t.Helper()
	link := strings.Fields(d.Run(t, "console", "--role", "viewer"))[0]
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	signedIn, err := browser.PostForm("http://"+console+"/sign-in", url.Values{"link": {link}, "next": {"/"}})
	if err != nil {
		t.Fatal(err)
	}
	signedIn.Body.Close()
	return func() string {
		page, err := browser.Get("http://" + console + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer page.Body.Close()
		body, err := io.ReadAll(page.Body)
		if err != nil || page.StatusCode != http.StatusOK {
			t.Fatalf("the overview: %s %v", page.Status, err)
		}
		head, _, _ := strings.Cut(string(body), `<ul class="answers">`)
		return html.UnescapeString(head)
	}
}

// A sink, an RPC and a witness fail. Each place that shows the health of the appliance shows each of them with its cause
// and its remedy, and none of them after it works again.
func TestAFailingPartIsSeenInEachPlaceUntilItWorks(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	console, metrics, sink := daemontest.FreeAddress(t), daemontest.FreeAddress(t), daemontest.FreeAddress(t)
	node := chaintest.New(t)
	rpc := chaintest.NewProxy(t, node.URL)
	witness := newWilling(t)
	witness.away.Store(true)
	rpc.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: http.StatusBadGateway} })
	policy := filepath.Join(d.Dir, "policy")
	if err := os.WriteFile(policy, []byte(witness.policy()), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Configure("ATTESTD_CONSOLE_LISTEN="+console, "ATTESTD_METRICS_LISTEN="+metrics,
		fmt.Sprintf(`ATTESTD_AUDIT_SINKS=[{"name": "siem", "type": "syslog", "url": "tcp://%s", "interval": "100ms"}]`,
			sink),
		fmt.Sprintf(`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": [%q], "address": %q, "confirmations": 0}]`,
			rpc.URL, chaintest.Contract),
		"ATTESTD_CHAIN_POLL_INTERVAL=100ms", "ATTESTD_JOURNAL_WITNESSES="+policy, "ATTESTD_JOURNAL_WITNESS_INTERVAL=1s")
	d.Start(t)
	defer d.Kill(t)
	overview := overviewOf(t, d, console)

	parts := []struct {
		check, object string
		mend          func()
	}{
		{"sinks", sink, func() { listenSyslog(t, sink) }},
		{"chain", rpc.URL, func() {
			signer, err := appliance.ParseAddress(d.Address(t))
			if err != nil {
				t.Fatal(err)
			}
			node.SetAttestor(t, signer)
			rpc.Answer(nil)
		}},
		{"witnesses", witness.url, func() { witness.away.Store(false) }},
	}
	seen := func(check, object string) (places map[string]bool, all string) {
		status, doctor := output(t, d, "status"), output(t, d, "doctor")
		page := overview()
		_, scraped := (&daemontest.Daemon{URL: "http://" + metrics}).Ask(t, http.MethodGet, "/metrics", "", nil)
		var s wire.Status
		if err := json.Unmarshal([]byte(output(t, d, "status", "--output", "json")), &s); err != nil {
			t.Fatal(err)
		}
		faults := health.Faults(health.Of(s.Checks, check))
		remedies := true
		for _, f := range faults {
			remedies = remedies && strings.Contains(page, f.Remedy)
		}
		return map[string]bool{
			"status": strings.Contains(strings.Join(strings.Fields(status), ""), object),
			"doctor": hasFault(doctor, check), "overview": strings.Contains(page, object) && remedies,
			"metrics": !strings.Contains(scraped, fmt.Sprintf("\nattestd_check_state{check=%q} 0", check)),
			"JSON":    len(faults) > 0,
		}, status + doctor + page
	}
	agree := func(check, object string, failing bool) {
		t.Helper()
		daemontest.Await(t, fmt.Sprintf("%s failing: %t", check, failing), func() (bool, string) {
			places, all := seen(check, object)
			for _, is := range places {
				if is != failing {
					return false, fmt.Sprint(places, all)
				}
			}
			return true, ""
		})
	}
	for _, p := range parts {
		agree(p.check, p.object, true)
	}
	for _, p := range parts {
		p.mend()
		agree(p.check, p.object, false)
	}
}

// hasFault reports whether doctor's output has a failure or a warning of that check.
func hasFault(doctor, check string) bool {
	return strings.Contains(doctor, "FAIL  "+check+" ") || strings.Contains(doctor, "fail  "+check+" ") ||
		strings.Contains(doctor, "warn  "+check+" ")
}

// listenSyslog accepts syslog messages at an address until the test ends.
func listenSyslog(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
}

// output runs a command that may fail, and returns its standard output.
func output(t *testing.T, d *daemontest.Daemon, args ...string) string {
	t.Helper()
	out, _ := d.Command(args...).Output()
	return string(out)
}
