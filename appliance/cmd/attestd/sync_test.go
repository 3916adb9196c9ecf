package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemon"
)

// newSyncFolder prepares a folder that suffices for 'attestd replica sync'. It has no HSM.
func newSyncFolder(t *testing.T, upstream string) *daemonProcess {
	t.Helper()
	d := &daemonProcess{dir: t.TempDir()}
	configuration := fmt.Sprintf("data_dir: %q\nadmin: { socket: %q }\ngraphql: { upstream: %q }\n",
		filepath.Join(d.dir, "data"), filepath.Join(d.dir, "admin.sock"), upstream+daemon.GraphQLPath)
	if err := os.WriteFile(filepath.Join(d.dir, "attestd.yaml"), []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

// The follower is killed a hundred times while it reads. In the end it has the rows of the upstream, without gaps or
// repeats. If it completes early, it starts again with an empty replica.
func TestDrillASyncThatIsKilledAtAnyMomentGoesOnWhereItWas(t *testing.T) {
	const kills, transfers = 100, "20000"
	program := withoutDetector(t)
	up := newUpstream(t, transfers, program)
	d := newSyncFolder(t, up.url)
	d.program = program
	random := rand.New(rand.NewPCG(1, 2))
	records, completed := 0, 0
	complete := func() {
		t.Helper()
		var difference string
		if records, difference = compare(t, up, d); difference != "" {
			t.Fatal(difference)
		}
		completed++
	}
	for killed := 0; killed < kills; {
		if d.syncUntilKilled(t, 20*time.Millisecond+time.Duration(random.Int64N(int64(380*time.Millisecond)))) {
			killed++
			continue
		}
		complete()
		if err := os.Remove(d.replica()); err != nil {
			t.Fatal(err)
		}
	}
	out := d.run(t, "replica", "sync")
	complete()
	t.Logf("%d kills, %d times to the end with %d records; at last: %s", kills, completed, records, out)
}

// syncUntilKilled returns false if the sync completed before the kill.
func (d *daemonProcess) syncUntilKilled(t *testing.T, after time.Duration) (killed bool) {
	t.Helper()
	cmd := d.command("replica", "sync")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if err != nil && cmd.ProcessState.ExitCode() >= 0 {
		t.Fatalf("it ended by itself: %v\n%s", err, stderr.String())
	}
	return err != nil
}

// headersServer answers each request with 503, and sends a header of each request to values.
func headersServer(t *testing.T, name string) (address string, values <-chan string) {
	t.Helper()
	seen := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get(name)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	return server.URL, seen
}

func TestHeadersGoToTheConfiguredUpstreamOnlyAndCtrlCEndsASync(t *testing.T) {
	t.Parallel()
	address, values := headersServer(t, "X-Api-Key")
	other, otherValues := headersServer(t, "X-Api-Key")
	d := newSyncFolder(t, address)
	secret := filepath.Join(d.dir, "key")
	if err := os.WriteFile(secret, []byte("swordfish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.configure("ATTESTD_GRAPHQL_UPSTREAM_HEADERS=X-Api-Key: file:" + secret)
	for _, c := range []struct {
		args   []string
		values <-chan string
		want   string
	}{
		{[]string{"replica", "sync"}, values, "swordfish"},
		{[]string{"replica", "sync", "--upstream", other + daemon.GraphQLPath}, otherValues, ""},
	} {
		cmd := d.command(c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-c.values:
			if got != c.want {
				t.Errorf("%v: the header is %q, want %q", c.args, got, c.want)
			}
		case <-time.After(patience):
			t.Error("nothing was asked")
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		exit, failed := errors.AsType[*exec.ExitError](err)
		if !failed || exit.ExitCode() != exitInterrupted || !strings.Contains(stderr.String(),
			"interrupted; 0 rows are written; run the same command again to continue\n") {
			t.Errorf("%v %s", err, stderr.String())
		}
	}
}
