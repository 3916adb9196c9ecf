package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemon"
)

// configure adds values to the daemon's environment.
func (d *daemonProcess) configure(values ...string) { d.environ = append(d.environ, values...) }

// ask sends a request to the daemon and returns status and body.
func (d *daemonProcess) ask(t *testing.T, method, path, key string, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

const countsQuery = `{"query":"{ v2_stats_count { name value } }"}`

func TestReadsAreOpenUnlessAKeyIsRequired(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.start(t)
	if resp, body := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(
		countsQuery)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") {
		t.Errorf("without a key: %s %s", resp.Status, body)
	}
	d.kill(t)

	d.configure("ATTESTD_GRAPHQL_REQUIRE_KEY=true")
	d.start(t)
	defer d.kill(t)
	attestOnly := strings.TrimSpace(d.run(t, "key", "create", "--name", "a", "--scope", "attest"))
	for name, c := range map[string]struct {
		method, key string
		want        int
	}{
		"no key":          {http.MethodPost, "", http.StatusUnauthorized},
		"another's scope": {http.MethodPost, attestOnly, http.StatusForbidden},
		"the key":         {http.MethodPost, d.token, http.StatusOK},
		"preflight":       {http.MethodOptions, "", http.StatusNoContent},
	} {
		if resp, body := d.ask(t, c.method, daemon.GraphQLPath, c.key,
			strings.NewReader(countsQuery)); resp.StatusCode != c.want {
			t.Errorf("%s: %s %s, want %d", name, resp.Status, body, c.want)
		}
	}
}

func TestReadsCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.configure("ATTESTD_GRAPHQL_SOURCE=off")
	d.start(t)
	defer d.kill(t)
	for _, path := range []string{daemon.GraphQLPath + "?query={__typename}", "/graphiql", "/api/rest/health"} {
		if resp, body := d.ask(t, http.MethodGet, path, "", nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if _, err := os.Stat(filepath.Join(d.dir, "data", daemon.ReplicaFile)); err == nil {
		cmd := d.command("replica", "status")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "graphql.source") {
			t.Errorf("replica status without a replica: %v %s", err, out)
		}
	}
}

func TestRefusedLargeQueriesAreAnsweredToPlainClients(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.start(t)
	defer d.kill(t)
	for name, body := range map[string]io.Reader{
		"1 MB":          bytes.NewReader(make([]byte, 1<<20)),
		"7 MB":          bytes.NewReader(make([]byte, 7<<20)),
		"1 MB, chunked": io.LimitReader(endless{}, 1<<20), // without a Content-Length
	} {
		resp, text := d.ask(t, http.MethodPost, daemon.GraphQLPath, "", body)
		var answer struct {
			Errors []struct {
				Extensions struct{ Code string }
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil ||
			resp.StatusCode != http.StatusRequestEntityTooLarge || len(answer.Errors) != 1 {
			t.Errorf("%s: %s %v %s", name, resp.Status, err, text)
		}
	}
}

// endless is an infinite sequence of spaces.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestTheHealthOfChainsIsShownAsTheHostedServiceDoes(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.run(t, "replica", "generate", "--transfers", "10")
	d.start(t)
	defer d.kill(t)
	resp, body := d.ask(t, http.MethodGet, "/api/rest/health", "", nil)
	var answer struct {
		Checks []struct {
			Status, Environment string
		} `json:"v2_health_check"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || resp.StatusCode != http.StatusOK ||
		len(answer.Checks) == 0 {
		t.Errorf("%s %v %s", resp.Status, err, body)
	}
}
