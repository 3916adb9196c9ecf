package main

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// newMembers prepares appliances that share a database, each with a token of its own, without starting them.
func newMembers(t *testing.T, n int) []*daemonProcess {
	t.Helper()
	d := postgrestest.NewDatabase(t)
	if err := postgres.Init(t.Context(), d.URL(), databaseRole, databasePassword); err != nil {
		t.Fatal(err)
	}
	members := make([]*daemonProcess, n)
	for i := range members {
		m := newDaemonFolder(t)
		m.environ = []string{"ATTESTD_STORE_URL=" + d.RoleURL(url.UserPassword(databaseRole, databasePassword), d.Database), "ATTESTD_CLUSTER_NAME=" + string(rune('a'+i))}
		members[i] = m
		key, err := os.ReadFile(filepath.Join(members[0].dir, "data", "log.key"))
		if err == nil {
			err = files.Write(filepath.Join(m.dir, "data", "log.key"), key, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return members
}

// Two appliances, one API key of 50 a second, and more asked of each than that: together they let through what one would.
func TestARateHoldsForTwoAppliancesTogether(t *testing.T) {
	t.Parallel()
	const rate, window = 50, 5 * time.Second
	members := newMembers(t, 2)
	token := strings.TrimSpace(members[0].run(t, "key", "create", "--name", "a", "--rate", "50/s"))
	for _, m := range members {
		m.start(t)
		defer m.kill(t)
	}
	var passed, limited atomic.Int64
	var workers sync.WaitGroup
	began := time.Now()
	for i := range 8 {
		workers.Go(func() {
			for time.Since(began) < window {
				switch status := askOnce(t, members[i%2].url, token); status {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					limited.Add(1)
				default:
					t.Errorf("status %d", status)
				}
			}
		})
	}
	workers.Wait()
	seconds := time.Since(began).Seconds()
	allowed, block := rate*(seconds+1), rate/10.0 // with what a second allows at once
	t.Logf("%d passed in %.1f s, %d were refused; allowed are %.0f", passed.Load(), seconds, limited.Load(), allowed)
	if n := float64(passed.Load()); n > 1.1*allowed+block || n < 0.9*rate*seconds-block {
		t.Errorf("%.0f requests passed in %.1f s, want %.0f, give or take a tenth and %.0f", n, seconds, allowed, block)
	}
	if limited.Load() == 0 {
		t.Error("nothing was refused: it was not asked for more than the rate")
	}
}

// askOnce asks for an attestation and returns the status.
func askOnce(t *testing.T, base, token string) int {
	r := randomRequest()
	body := `{"unspendableAddress":"` + r.UnspendableAddress.String() + `","beneficiary":"` + r.Beneficiary.String() + `"}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/functions/v1/attest", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
