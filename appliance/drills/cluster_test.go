package drills

import (
	"flag"
	"math/rand/v2"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// `make test-cluster` runs all drills, `make test` a short form.
var allDrills = flag.Bool("drills", false, "run every drill of a cluster's failures, and each for longer")

// Bounds that docs/cluster.md promises.
const (
	afterPromotion = 20 * time.Second // until all attest again, without a restart
	heldUp         = 10 * time.Second // delay by an appliance that hangs
)

// drill makes a part of the cluster fail. It returns the time from the repair, or from the failover, until all members
// attest again.
type drill struct {
	name  string
	short bool // make test runs it, too
	run   func(*cluster) time.Duration
}

var drills = []drill{
	{"connections are cut around COMMIT", true, (*cluster).cutCommits},
	{"appliances are killed", true, (*cluster).killAppliances},
	{"the primary is killed, and the standby promoted", true, (*cluster).killPrimary},
	{"an appliance hangs inside its transaction", false, (*cluster).hangInTransaction},
	{"an appliance hangs inside its COMMIT", false, (*cluster).hangInCommit},
	{"the network to one appliance is silent", false, func(c *cluster) time.Duration {
		return c.cutNetwork(postgrestest.Faults{Silent: true})
	}},
	{"the network to one appliance is refused", false, func(c *cluster) time.Duration {
		return c.cutNetwork(postgrestest.Faults{Refuse: true})
	}},
	{"the network to all is silent", false, (*cluster).silence},
	{"each COMMIT takes two seconds", false, (*cluster).slowCommits},
	{"the role has no connections left", false, (*cluster).takeConnections},
	{"the primary hangs", false, (*cluster).freezePrimary},
	{"the synchronous standby hangs, and takes over", false, (*cluster).freezeStandby},
	{"the primary is killed again", false, (*cluster).killPrimary},
}

// Three appliances run under load on a primary and its synchronous standby. After each drill, every answered
// attestation is in the journal exactly once. The journal is consistent with every checkpoint that any appliance ever
// served.
func TestDrillCluster(t *testing.T) {
	c := startCluster(t, postgrestest.NewServer(t, nil))
	for _, d := range drills {
		if d.short || *allDrills {
			c.drill(d)
		}
	}
}

func (c *cluster) drill(d drill) {
	t := c.T
	defer func() { c.T = t }()
	passed := t.Run(d.name, func(t *testing.T) {
		c.T = t
		back := d.run(c)
		t.Logf("%s: all attest again after %s", d.name, back.Round(time.Millisecond))
		c.check(c.members[rand.N(len(c.members))])
	})
	if !passed {
		t.Fatal("what a drill has left behind is none of the next one's")
	}
}

// longer returns long if all drills run, and short otherwise.
func longer[T int | time.Duration](short, long T) T {
	if *allDrills {
		return long
	}
	return short
}

func (c *cluster) cutCommits() time.Duration {
	for _, cut := range []postgrestest.Cut{postgrestest.BeforeCommit, postgrestest.InCommit, postgrestest.AfterCommit} {
		c.network(postgrestest.Faults{Cut: cut, CutsLeft: longer(2, 10)}, c.members...)
		c.backWithin(time.Now(), afterPromotion, c.members...)
	}
	c.network(postgrestest.Faults{}, c.members...)
	return c.backWithin(time.Now(), afterPromotion, c.members...)
}

func (c *cluster) killAppliances() (longest time.Duration) {
	for range longer(2, 6) {
		m := c.members[rand.N(len(c.members))]
		time.Sleep(rand.N(500 * time.Millisecond)) // at any moment
		m.take()
		m.Kill(c)
		longest = max(longest, c.backWithin(time.Now(), heldUp, c.others(m)...))
		m.Start(c)
		m.give()
		longest = max(longest, c.backWithin(time.Now(), afterPromotion, m))
	}
	return longest
}

func (c *cluster) killPrimary() time.Duration {
	time.Sleep(rand.N(500 * time.Millisecond)) // at any moment
	c.primary.Kill(c)
	return c.failOver()
}

// failOver promotes the standby, and turns the former primary into a standby.
func (c *cluster) failOver() time.Duration {
	c.standby.Promote(c)
	back := c.backWithin(time.Now(), afterPromotion, c.members...)
	c.primary, c.standby = c.standby, c.primary
	c.standby.Follow(c, c.primary)
	c.primary.Synchronous(c, c.standby.Name)
	return back
}

// hangInTransaction stops an appliance while it holds the lock on the head of the log and is sending no statement to
// the database.
func (c *cluster) hangInTransaction() time.Duration {
	return c.hang(func(m *member) {
		c.network(postgrestest.Faults{HoldDelay: time.Hour}, m)
		daemontest.Await(c.T, "others wait for "+m.name, func() (bool, string) { return c.idles(), "they do not" })
		m.Signal(c, syscall.SIGSTOP)
	})
}

// idles reports whether others wait for an appliance that is idle in its transaction.
func (c *cluster) idles() bool {
	return c.primary.Query(c, clusterDatabase,
		"SELECT count(*) FROM pg_stat_activity AS waits JOIN pg_stat_activity AS holds ON holds.pid = ANY (pg_blocking_pids(waits.pid)) "+
			"WHERE holds.state = 'idle in transaction' AND holds.state_change < clock_timestamp() - interval '200 ms'") != "0"
}

// hangInCommit stops an appliance when a part of its COMMIT has reached the database.
func (c *cluster) hangInCommit() time.Duration {
	return c.hang(func(m *member) {
		p := m.proxies[0]
		if c.primary != p.Server() {
			p = m.proxies[1]
		}
		p.Fail(postgrestest.Faults{CommitDelay: time.Hour})
		for held := p.Commits(); p.Commits() == held; {
			time.Sleep(time.Millisecond) // between two polls
		}
		m.Signal(c, syscall.SIGSTOP)
	})
}

// hang stops an appliance while it holds the lock on the head, for longer than the deadline.
func (c *cluster) hang(stop func(*member)) time.Duration {
	m := c.members[rand.N(len(c.members))]
	stop(m)
	m.take()
	longest := c.backWithin(time.Now(), heldUp, c.others(m)...)
	c.network(postgrestest.Faults{}, m)
	m.Signal(c, syscall.SIGCONT)
	m.give()
	return max(longest, c.backWithin(time.Now(), afterPromotion, m))
}

// cutNetwork cuts one appliance off the database. The others continue to attest.
func (c *cluster) cutNetwork(f postgrestest.Faults) time.Duration {
	m := c.members[rand.N(len(c.members))]
	c.network(f, m)
	cut := time.Now()
	others := c.backWithin(cut, heldUp, c.others(m)...)
	c.refuses(m)
	for time.Since(cut) < 15*time.Second { // longer than all of its deadlines
		c.backWithin(time.Now(), time.Second, c.others(m)...)
		time.Sleep(100 * time.Millisecond) // between two polls
	}
	c.network(postgrestest.Faults{}, m)
	return max(others, c.backWithin(time.Now(), afterPromotion, m))
}

func (c *cluster) silence() time.Duration {
	c.network(postgrestest.Faults{Silent: true}, c.members...)
	c.refuses(c.members...)
	c.network(postgrestest.Faults{}, c.members...)
	return c.backWithin(time.Now(), afterPromotion, c.members...)
}

// slowCommits makes the database slow. The appliances take turns, so some requests miss their deadline, but not all.
func (c *cluster) slowCommits() time.Duration {
	c.network(postgrestest.Faults{CommitDelay: 2 * time.Second}, c.members...)
	for range 3 {
		c.anyWithin(time.Now(), 2*clusterDeadline) // a request that arrives during a turn waits for two
	}
	c.network(postgrestest.Faults{}, c.members...)
	return c.backWithin(time.Now(), afterPromotion, c.members...)
}

// takeConnections lets another client take all connections of the role, after the appliances have lost theirs.
func (c *cluster) takeConnections() time.Duration {
	c.primary.Exec(c, postgrestest.Owner, "ALTER ROLE "+daemontest.Role+" CONNECTION LIMIT 1")
	c.network(postgrestest.Faults{Refuse: true}, c.members...)
	stranger := c.connect()
	c.network(postgrestest.Faults{}, c.members...)
	c.refuses(c.members...)
	time.Sleep(3 * time.Second) // the appliances have no connection for that long
	if err := stranger.Close(c.Context()); err != nil {
		c.Error(err)
	}
	c.primary.Exec(c, postgrestest.Owner, "ALTER ROLE "+daemontest.Role+" CONNECTION LIMIT -1")
	return c.backWithin(time.Now(), afterPromotion, c.members...)
}

// connect opens a connection of the appliances' role as soon as one is free.
func (c *cluster) connect() (conn *pgx.Conn) {
	c.Helper()
	daemontest.Await(c.T, "a connection is free", func() (bool, string) {
		var err error
		if conn, err = pgx.Connect(c.Context(), c.primary.RoleURL(url.UserPassword(daemontest.Role, daemontest.Password), clusterDatabase)); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	return conn
}

// freezePrimary stops the primary for longer than all deadlines, and lets it continue. The standby is not promoted.
func (c *cluster) freezePrimary() time.Duration {
	c.primary.Freeze(c)
	c.refuses(c.members...)
	time.Sleep(clusterDeadline) // earlier requests have ended after that
	c.primary.Thaw(c)
	return c.backWithin(time.Now(), afterPromotion, c.members...)
}

// freezeStandby stops the standby for longer than all deadlines, while commits wait for it. Then it promotes the
// standby: records committed on the primary alone must not have been answered.
func (c *cluster) freezeStandby() time.Duration {
	c.standby.Freeze(c)
	c.refuses(c.members...)
	time.Sleep(clusterDeadline + 5*time.Second) // until all requests have failed
	c.primary.Kill(c)
	c.standby.Thaw(c)
	return c.failOver()
}

// The database's disk is full for a while.
func TestDrillClusterWithADatabaseThatIsFull(t *testing.T) {
	if !*allDrills {
		t.Skip("asks for -drills")
	}
	c := startCluster(t, postgrestest.NewSmallServer(t, 400<<20, postgrestest.Settings{"max_wal_size": "64MB"}))
	c.drill(drill{name: "the database is full", run: func(c *cluster) time.Duration {
		free := c.primary.Fill(c)
		c.refuses(c.members...)
		free()
		if c.primary.PID() == 0 { // it exits if its log has no space
			c.primary.Start(c)
		}
		return c.backWithin(time.Now(), afterPromotion, c.members...)
	}})
}
