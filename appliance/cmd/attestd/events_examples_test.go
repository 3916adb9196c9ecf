package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/attestd/attestd/api/client"
)

// listener is a running example of docs/events.md. It prints a line "WAY TYPE ID" for each event.
type listener struct {
	command []string
	environ []string
	secret  string
	url     string // of its webhook

	cmd *exec.Cmd
	mu  sync.Mutex
	got map[string][]string // ids by way, each once, in the order of arrival
}

func (l *listener) start(t *testing.T) {
	t.Helper()
	l.cmd = exec.Command(l.command[0], l.command[1:]...)
	l.cmd.Env = append(os.Environ(), l.environ...)
	var complaint bytes.Buffer
	l.cmd.Stderr = &complaint
	out, err := l.cmd.StdoutPipe()
	if err == nil {
		err = l.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			words := strings.Fields(lines.Text())
			l.mu.Lock()
			if len(words) == 3 && words[1] == "attestation.issued" && !slices.Contains(l.got[words[0]], words[2]) {
				l.got[words[0]] = append(l.got[words[0]], words[2])
			}
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		l.end()
		if t.Failed() {
			t.Logf("%s", complaint.String())
		}
	})
}

func (l *listener) end() {
	_ = l.cmd.Process.Kill()
	_ = l.cmd.Wait()
}

// has waits until the example has the events of these attestations: by the stream in their order, by the webhook in any.
func (l *listener) has(t *testing.T, ids ...string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(daemontest.Patience); ; <-tick.C {
		l.mu.Lock()
		stream, webhook := slices.Clone(l.got["stream"]), slices.Clone(l.got["webhook"])
		l.mu.Unlock()
		slices.Sort(webhook) // UUIDv7: the order of the attestations
		if slices.Equal(stream, ids) && slices.Equal(webhook, ids) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("by the stream it has %q, by the webhook %q, want %q", stream, webhook, ids)
		}
	}
}

// refuses posts a delivery that must be refused.
func (l *listener) refuses(t *testing.T, what, signature string, at time.Time) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url, strings.NewReader(forged))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Webhook-Id", "a")
	request.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	request.Header.Set("Webhook-Signature", signature)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusBadRequest {
		t.Errorf("%s is answered with %s (%v)", what, answer.Status, err)
	}
}

const forged = `{"id":"00000000-0000-0000-0000-000000000000","type":"attestation.issued"}`

// newListener prepares an example, with a webhook for it and the stream's present position.
func newListener(t *testing.T, d *daemontest.Daemon, language string, position []byte) *listener {
	t.Helper()
	dir, address := t.TempDir(), daemontest.FreeAddress(t)
	modules, err := filepath.Abs("../../../api/graphql/clienttest/node_modules")
	if err == nil {
		err = os.Symlink(modules, filepath.Join(dir, "node_modules"))
	}
	file := filepath.Join(dir, "position")
	if err == nil {
		err = os.WriteFile(file, position, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{command: examples[language](t, dir, exampleIn(t, "events.md", "## Examples", language)),
		url: "http://" + address, got: make(map[string][]string)}
	l.secret = strings.TrimSpace(d.Run(t, "webhook", "create", language, "--url", l.url, "--types", "attestation.issued"))
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	l.environ = []string{"ATTESTD_URL=" + d.URL, "ATTESTD_API_KEY=" + d.Token, "POSITION_FILE=" + file,
		"WEBHOOK_SECRET=" + l.secret, "WEBHOOK_PORT=" + port}
	return l
}

// The examples of docs/events.md work unchanged: no event is lost when the daemon or the program is killed, and each
// verifies the deliveries of its webhook.
func TestTheExamplesOfEventsWork(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Configure("ATTESTD_WEBHOOKS_ALLOW_PLAIN_HTTP=true", "ATTESTD_WEBHOOKS_ALLOW_NETWORKS=127.0.0.0/8")
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	position := d.StreamPosition(t)
	var all []*listener
	for language := range examples {
		all = append(all, newListener(t, d, language, position))
	}
	for _, l := range all {
		l.start(t)
	}
	ids := []string{attestNow(t, d), attestNow(t, d)}
	for _, l := range all {
		l.has(t, ids...)
	}
	d.Kill(t)
	d.Start(t)
	ids = append(ids, attestNow(t, d))
	for _, l := range all {
		l.has(t, ids...)
		l.end()
	}
	ids = append(ids, attestNow(t, d))
	for _, l := range all {
		l.start(t)
		l.has(t, ids...)
		library, err := standardwebhooks.NewWebhook(l.secret)
		if err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-10 * time.Minute)
		old, err := library.Sign("a", then, []byte(forged))
		if err != nil {
			t.Fatal(err)
		}
		l.refuses(t, "a forged signature", "v1,"+strings.Repeat("A", 43)+"=", time.Now())
		l.refuses(t, "an old delivery", old, then)
		l.has(t, ids...)
	}
}

// attestNow attests and returns the id.
func attestNow(t *testing.T, d *daemontest.Daemon) string {
	t.Helper()
	c, err := client.New(d.URL, d.Token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a.ID.String()
}
