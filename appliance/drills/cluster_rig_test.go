package drills

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

const clusterDatabase = "attestd"

// cluster is several appliances on one PostgreSQL, under load. Each is a process with a copy of one token.
type cluster struct {
	*testing.T
	primary, standby *postgrestest.Server // at present
	members          []*member
	load             *clusterLoad
	watch            *checkpointWatch
}

// member is an appliance of a cluster.
type member struct {
	*daemontest.Daemon
	name    string
	proxies []*postgrestest.Proxy // the network to each server
	down    atomic.Bool           // a drill has killed or stopped it: it need not answer
	changes atomic.Int64          // of down
	newest  atomic.Int64          // start of the newest request that was answered with an attestation, Unix nanoseconds
}

// startCluster starts a synchronous standby of the primary, and three appliances. Each appliance reaches both servers
// through its own network.
func startCluster(t *testing.T, primary *postgrestest.Server) *cluster {
	t.Helper()
	c := &cluster{T: t, primary: primary}
	primary.Exec(t, postgrestest.Owner, "CREATE DATABASE "+clusterDatabase)
	c.standby = primary.Standby(t, "second")
	primary.Synchronous(t, c.standby.Name)
	first := daemontest.New(t)
	daemontest.InitStore(t, primary, clusterDatabase)
	for i := range 3 {
		d := first
		if i > 0 {
			d = first.Twin(t)
		}
		m := &member{Daemon: d, name: fmt.Sprintf("appliance %d", i+1)}
		m.proxies = []*postgrestest.Proxy{postgrestest.NewProxy(t, primary), postgrestest.NewProxy(t, c.standby)}
		m.Configure("ATTESTD_STORE_URL=" + c.urlThrough(m.proxies))
		m.Start(t)
		t.Cleanup(m.End)
		c.members = append(c.members, m)
	}
	c.watch = watchCheckpoints(c)
	c.load = startLoad(c, first.CreateKey(t))
	c.backWithin(time.Now(), daemontest.Patience, c.members...)
	return c
}

// urlThrough is the store.url of an appliance: the server that is the primary.
func (c *cluster) urlThrough(proxies []*postgrestest.Proxy) string {
	var hosts []string
	for _, p := range proxies {
		hosts = append(hosts, p.Address())
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(daemontest.Role, daemontest.Password), Host: strings.Join(hosts, ","), Path: "/" + clusterDatabase,
		RawQuery: "sslmode=disable&target_session_attrs=read-write&connect_timeout=3"}
	return u.String()
}

// take marks a member as down; give marks it as up.
func (m *member) take() { m.down.Store(true); m.changes.Add(1) }
func (m *member) give() { m.changes.Add(1); m.down.Store(false) }

// others are all members but one.
func (c *cluster) others(one *member) (others []*member) {
	for _, m := range c.members {
		if m != one {
			others = append(others, m)
		}
	}
	return others
}

// network makes the networks of members fail.
func (c *cluster) network(f postgrestest.Faults, members ...*member) {
	for _, m := range members {
		for _, p := range m.proxies {
			p.Fail(f)
		}
	}
}

// backWithin waits until each of the members has attested a request that began after since. It returns the time from
// since to the last of these answers. Only -drills enforces the bound: make test runs on slow and busy machines, where
// it waits longer.
func (c *cluster) backWithin(since time.Time, bound time.Duration, members ...*member) time.Duration {
	c.Helper()
	bound = longer(daemontest.Patience, bound)
	for _, m := range members {
		for m.newest.Load() <= since.UnixNano() {
			if time.Since(since) > bound+5*time.Second {
				c.Fatalf("%s does not attest %s after: %v\n%s", m.name, time.Since(since).Round(time.Millisecond),
					c.load.refusals(), m.Events())
			}
			time.Sleep(time.Millisecond) // between two polls
		}
	}
	took := time.Since(since)
	if took > bound {
		c.Errorf("attests again after %s, want at most %s", took.Round(time.Millisecond), bound)
	}
	return took
}

// anyWithin waits until some member has attested a request that began after since.
func (c *cluster) anyWithin(since time.Time, bound time.Duration) {
	c.Helper()
	for time.Since(since) < bound {
		for _, m := range c.members {
			if m.newest.Load() > since.UnixNano() {
				return
			}
		}
		time.Sleep(time.Millisecond) // between two polls
	}
	c.Errorf("none attests within %s: %v", bound, c.load.refusals())
}

// size is the number of records on a server.
func (c *cluster) size(s *postgrestest.Server) int64 {
	c.Helper()
	n, err := strconv.ParseInt(s.Query(c, clusterDatabase, "SELECT size FROM log_head"), 10, 64)
	if err != nil {
		c.Fatal(err)
	}
	return n
}

// verifierKey is the present verifier key of a member's log.
func (c *cluster) verifierKey(m *member) string {
	c.Helper()
	api, err := client.New(m.URL, "", client.Options{})
	if err != nil {
		c.Fatal(err)
	}
	attestor, err := api.Attestor(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	return attestor.Log.VerifierKey
}

// readiness is the status of a member's /readyz.
func (m *member) readiness(t *testing.T) int {
	t.Helper()
	h := http.Client{Timeout: daemontest.Patience}
	resp, err := h.Get(m.URL + "/readyz")
	if err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// refuses waits until these members are not ready.
func (c *cluster) refuses(members ...*member) {
	c.Helper()
	for _, m := range members {
		daemontest.Await(c.T, m.name+" is not ready", func() (bool, string) {
			status := m.readiness(c.T)
			return status == http.StatusServiceUnavailable, http.StatusText(status)
		})
	}
}
