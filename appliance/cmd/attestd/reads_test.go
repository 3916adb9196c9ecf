package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
)

func TestReadsAreOpenUnlessAKeyIsRequired(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Start(t)
	if resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(
		daemontest.CountsQuery)); resp.StatusCode != http.StatusOK || !strings.Contains(body, "total_transfers") {
		t.Errorf("without a key: %s %s", resp.Status, body)
	}
	d.Kill(t)

	d.Configure("ATTESTD_GRAPHQL_REQUIRE_KEY=true")
	d.Start(t)
	defer d.Kill(t)
	attestOnly := strings.TrimSpace(d.Run(t, "key", "create", "--name", "a", "--scope", "attest"))
	for name, c := range map[string]struct {
		method, key string
		want        int
	}{
		"no key":          {http.MethodPost, "", http.StatusUnauthorized},
		"another's scope": {http.MethodPost, attestOnly, http.StatusForbidden},
		"the key":         {http.MethodPost, d.Token, http.StatusOK},
		"preflight":       {http.MethodOptions, "", http.StatusNoContent},
	} {
		if resp, body := d.Ask(t, c.method, daemon.GraphQLPath, c.key,
			strings.NewReader(daemontest.CountsQuery)); resp.StatusCode != c.want {
			t.Errorf("%s: %s %s, want %d", name, resp.Status, body, c.want)
		}
	}
}

func TestReadsCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Configure("ATTESTD_GRAPHQL_SOURCE=off")
	d.Start(t)
	defer d.Kill(t)
	for _, path := range []string{daemon.GraphQLPath + "?query={__typename}", "/graphiql", "/api/rest/health"} {
		if resp, body := d.Ask(t, http.MethodGet, path, "", nil); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "data", daemon.ReplicaFile)); err == nil {
		cmd := d.Command("replica", "status")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "graphql.source") {
			t.Errorf("replica status without a replica: %v %s", err, out)
		}
	}
}

func TestRefusedLargeQueriesAreAnsweredToPlainClients(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Start(t)
	defer d.Kill(t)
	for name, body := range map[string]io.Reader{
		"1 MB":          bytes.NewReader(make([]byte, 1<<20)),
		"7 MB":          bytes.NewReader(make([]byte, 7<<20)),
		"1 MB, chunked": io.LimitReader(endless{}, 1<<20), // without a Content-Length
	} {
		resp, text := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", body)
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
	d := daemontest.New(t)
	d.Run(t, "replica", "generate", "--transfers", "10")
	d.Start(t)
	defer d.Kill(t)
	resp, body := d.Ask(t, http.MethodGet, "/api/rest/health", "", nil)
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

// A costly query is charged as many requests, and its client's next requests wait. Other clients are not affected.
func TestACostlyQueryCountsAsManyOfItsCallersRate(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Run(t, "replica", "generate", "--transfers", "200")
	const price = 10 // seconds between two usual requests
	d.Configure("ATTESTD_LIMITS_GRAPHQL_RATE=6/m")
	d.Start(t)
	defer d.Kill(t)
	const counts = `{"query":"{ v2_stats_count { name value } }"}`
	costly := `{"query":"{ a: v2_packets { data decoded traces { chain { display_name } } } b: v2_packets { c: data d: data e: data } }"}`
	if resp, text := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "",
		strings.NewReader(costly)); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %.300s", resp.Status, text)
	}
	resp, text := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(counts))
	if wait, err := strconv.Atoi(resp.Header.Get("Retry-After")); resp.StatusCode != http.StatusTooManyRequests ||
		err != nil || wait <= price {
		t.Errorf("after a costly query: %s, Retry-After %q %s", resp.Status, resp.Header.Get("Retry-After"), text)
	}
	if resp, text := d.Ask(t, http.MethodPost, daemon.GraphQLPath, d.Token,
		strings.NewReader(counts)); resp.StatusCode != http.StatusOK {
		t.Errorf("by an API key: %s %s", resp.Status, text)
	}
}
