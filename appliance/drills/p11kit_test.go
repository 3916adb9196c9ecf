package drills

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// `make test-restarts` sets 25 for each number of connections: a hundred.
var restarts = flag.Int("restarts", 2, "how often the server of the token is killed and started under each load")

// The token is behind a server, as with network HSMs, and the module is p11-kit's client. The server is killed and
// restarted repeatedly. Once it is back, every connection has an answered attestation within two seconds.
func TestDrillAttestsWithinTwoSecondsOfTheTokenServersReturn(t *testing.T) {
	t.Parallel()
	// In the longer outages, the server returns while attestd waits between two retries.
	away, bound := []time.Duration{0, 300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second}, 2*time.Second
	if *restarts <= 2 {
		away, bound = away[:2], daemontest.Patience // other tests run at the same time, so only the recovery counts
	}
	for _, connections := range []int{0, 1, 8, 64} {
		t.Run(fmt.Sprintf("%d connections", connections), func(t *testing.T) {
			t.Parallel()
			d, server := behindServer(t)
			d.Start(t)
			defer d.Kill(t)
			load := attestOn(t, d, connections)
			var took []time.Duration
			for i := range *restarts {
				server.Kill()
				time.Sleep(away[i%len(away)]) // time without a server
				server.Start()
				back := load.answeredOnAll(t, time.Now())
				if back > bound {
					t.Errorf("restart %d, after %s without a server: back after %s, want at most %s\n%s", i+1,
						away[i%len(away)], back, bound, d.Events())
				}
				took = append(took, back)
			}
			slices.Sort(took)
			t.Logf("%d restarts under %d connections: back after %s in the middle, %s at most", len(took), connections,
				took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
		})
	}
}

// behindServer is an appliance whose SoftHSM is behind a p11-kit server.
func behindServer(t *testing.T) (*daemontest.Daemon, *hsmtest.Server) {
	t.Helper()
	d := daemontest.New(t)
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	server := hsmtest.NewServer(t, module, softhsm.ConfVariable+"="+filepath.Join(d.Dir, softhsm.ConfName))
	d.UseModule(t, server.Module)
	d.Environ = append(d.Environ, server.Env...)
	return d, server
}

// attesting is clients that attest without a pause, each on its own connection.
type attesting struct {
	d     *daemontest.Daemon
	one   *client.Client   // used if connections is 0
	began []chan time.Time // by connection: when its newest answered request began
}

// attestOn attests on so many connections until the test ends.
func attestOn(t *testing.T, d *daemontest.Daemon, connections int) *attesting {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a := &attesting{d: d, one: oneConnection(t, d)}
	var all sync.WaitGroup
	for range connections {
		answered, c := make(chan time.Time, 1), oneConnection(t, d)
		a.began = append(a.began, answered)
		all.Go(func() { attestWithoutPause(ctx, c, answered) })
	}
	t.Cleanup(func() { stop(); all.Wait() })
	return a
}

// oneConnection is a client with its own connection. It does not retry.
func oneConnection(t testing.TB, d *daemontest.Daemon) *client.Client {
	t.Helper()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(d.URL, d.Token,
		client.Options{HTTP: &http.Client{Transport: transport, Timeout: 30 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// attestWithoutPause sends the start time of the newest attestation to answered.
func attestWithoutPause(ctx context.Context, c *client.Client, answered chan time.Time) {
	for ctx.Err() == nil {
		began := time.Now()
		if _, err := c.Attest(ctx, daemontest.RandomRequest(), client.AttestOptions{}); err != nil {
			time.Sleep(20 * time.Millisecond) // as a polite client does
			continue
		}
		select {
		case <-answered:
		default:
		}
		answered <- began
	}
}

// answeredOnAll returns the time until every connection had an answer to a request that began after since.
func (a *attesting) answeredOnAll(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	for len(a.began) == 0 {
		if _, err := a.one.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{}); err == nil ||
			time.Since(since) > daemontest.Patience {
			return time.Since(since)
		}
	}
	late := time.After(daemontest.Patience)
	for i, answered := range a.began {
		for began := (time.Time{}); !began.After(since); {
			select {
			case began = <-answered:
			case <-late:
				t.Fatalf("connection %d of %d has had no answer for %s\n%s", i+1, len(a.began), daemontest.Patience,
					a.d.Events())
			}
		}
	}
	return time.Since(since)
}
