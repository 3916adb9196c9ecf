package followertest

import (
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/graphqltest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// Upstream is the endpoint that a follower follows: the replica of a generated world behind its GraphQL endpoint. Its
// methods are safe for concurrent use.
type Upstream struct {
	URL   string // of the GraphQL endpoint
	Index index.Index

	tb    testing.TB
	mu    sync.Mutex
	world *dataset.World
	held  []index.Row // the first rows of an empty upstream
}

// NewUpstream serves a generated world until the test ends. Without transfers it has no rows at all until it grows.
func NewUpstream(tb testing.TB, o dataset.GenerateOptions) *Upstream {
	tb.Helper()
	idx := OpenReplica(tb, filepath.Join(tb.TempDir(), "upstream.db"), replica.Options{})
	u := &Upstream{URL: Serve(tb, graphql.Options{Index: idx}), Index: idx, tb: tb}
	sink := dataset.Sink(tb.Context(), idx)
	if o.Transfers == 0 {
		sink = func(rows []index.Row) error { u.held = append(u.held, rows...); return nil }
	}
	world, err := dataset.NewWorld(tb.Context(), o, sink)
	if err != nil {
		tb.Fatal(err)
	}
	u.world = world
	return u
}

// Grow moves the world's clock and sends about this many transfers in that time. Packets in progress advance.
func (u *Upstream) Grow(transfers int, later time.Duration) {
	u.tb.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	rows, err := u.world.Advance(u.world.Now().Add(later), transfers)
	rows = append(u.held, rows...)
	u.held = nil
	if err == nil {
		err = dataset.Sink(u.tb.Context(), u.Index)(rows)
	}
	if err != nil && u.tb.Context().Err() == nil {
		u.tb.Errorf("grow: %v", err)
	}
}

// Late withholds the next packets, as dataset.World.Late does.
func (u *Upstream) Late(packets int, by time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.world.Late(packets, by)
}

// Now returns the time of the world's clock.
func (u *Upstream) Now() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.world.Now()
}

// Live grows by this many transfers at each tick, until stop or the end of the test. stop waits for the last tick. The
// world's clock runs speed times as fast as this machine's.
func (u *Upstream) Live(tick time.Duration, transfers int, speed float64) (stop func()) {
	ticker, done, ended := time.NewTicker(tick), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last := time.Now()
		for {
			select {
			case now := <-ticker.C:
				u.Grow(transfers, time.Duration(speed*float64(now.Sub(last))))
				last = now
			case <-done:
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		ticker.Stop()
		close(done)
		<-ended
	})
	u.tb.Cleanup(stop)
	return stop
}

// OpenReplica opens the replica at path and closes it when the test ends. The test may close it earlier.
func OpenReplica(tb testing.TB, path string, o replica.Options) *replica.Store {
	tb.Helper()
	opened, err := replica.Open(path, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := opened.Close(); err != nil {
			tb.Errorf("close %s: %v", path, err)
		}
	})
	return opened
}

// Serve answers GraphQL on a local socket until the test ends, and returns the endpoint's URL.
func Serve(tb testing.TB, o graphql.Options) string {
	tb.Helper()
	endpoint := graphqltest.New(tb, o)
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true, BodyLimit: 64 << 10})
	app.All(path, endpoint.Handle)
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener) }()
	tb.Cleanup(func() {
		_ = app.ShutdownWithTimeout(100 * time.Millisecond) // clients may keep their connections open
		if err := <-served; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	return "http://" + listener.Addr().String() + path
}

const path = "/v1/graphql"
