package bench

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// line is a slow network line to a server, which counts bytes. It models the cost of a lost TCP segment: all later
// segments wait for a retransmission, one round trip later. tc-netem(8) would lose real segments, but needs a kernel
// module.
type line struct {
	url         string
	bitsASecond float64       // 0 means unlimited
	delay       time.Duration // each way
	loss        float64       // share of segments
	bytes       atomic.Int64  // TCP payload, both ways
	connections atomic.Int64
}

// slowLine is the line of a remote branch office.
func slowLine() *line { return &line{bitsASecond: 1e6, delay: 100 * time.Millisecond, loss: 0.01} }

// plug connects the line to the server at a URL, until the test ends.
func (l *line) plug(tb testing.TB, target string) *line {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l.url = "http://" + listener.Addr().String()
	var ends sync.WaitGroup
	tb.Cleanup(func() { listener.Close(); ends.Wait() })
	ends.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(target, "http://"))
			if err != nil {
				near.Close()
				continue
			}
			l.connections.Add(1)
			tb.Cleanup(func() { near.Close(); far.Close() })
			ends.Go(func() { l.carry(far, near, 1) })
			ends.Go(func() { l.carry(near, far, 2) })
		}
	})
	return l
}

// segment is a segment in transit.
type segment struct {
	bytes   []byte
	arrives time.Time
}

// carry transfers bytes one way, until either end closes.
func (l *line) carry(to, from net.Conn, way uint64) {
	defer to.Close()
	const window = 128 // segments in transit
	ahead := make(chan segment, window)
	go func() {
		defer close(ahead)
		l.send(ahead, from, rand.New(rand.NewPCG(1, way)))
	}()
	broken := false
	for s := range ahead {
		if broken {
			continue
		}
		time.Sleep(time.Until(s.arrives)) // delay of the line
		_, err := to.Write(s.bytes)
		broken = err != nil
	}
}

// send puts segments on the line at its rate.
func (l *line) send(ahead chan<- segment, from io.Reader, random *rand.Rand) {
	const size = 1460
	var free, last time.Time // when the line takes the next segment; when the last arrives
	for {
		buf := make([]byte, size)
		n, err := from.Read(buf)
		if n > 0 {
			l.bytes.Add(int64(n))
			if now := time.Now(); free.Before(now) {
				free = now
			}
			if l.bitsASecond > 0 {
				free = free.Add(time.Duration(float64(n*8) / l.bitsASecond * float64(time.Second)))
			}
			arrives := free.Add(l.delay)
			if random.Float64() < l.loss {
				arrives = arrives.Add(2 * l.delay)
			}
			if arrives.Before(last) {
				arrives = last
			}
			last = arrives
			ahead <- segment{buf[:n], arrives}
		}
		if err != nil {
			return
		}
	}
}

// newLongAgo prepares an appliance whose generated transfers are always the same, and almost all complete.
func newLongAgo(tb testing.TB, transfers int) (*daemontest.Daemon, *dataset.World) {
	tb.Helper()
	up := daemontest.New(tb)
	up.Configure("ATTESTD_LIMITS_GRAPHQL_RATE=unlimited")
	world := newWorld(tb, up,
		dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)})
	return up, world
}

// mostBytesEach is the bytes for a transfer to another appliance, both ways, with zstd. It includes the packet and a
// share of all other rows. mostBytesASecond is added for polling, with or without new rows, since a loaded machine
// takes long.
const (
	mostBytesEach    = 1200
	mostBytesASecond = 4 << 10
)

func TestDrillAnApplianceIsFollowedInFewBytes(t *testing.T) {
	t.Parallel()
	const transfers = 5000
	up, _ := newLongAgo(t, transfers)
	up.Program = daemontest.Program(t)
	up.Start(t)
	defer up.Kill(t)
	l := (&line{bitsASecond: 10e6}).plug(t, up.URL)
	d := daemontest.NewReplica(t, l.url)
	d.Program = up.Program
	began := time.Now()
	out := d.Run(t, "replica", "sync")
	took, carried := time.Since(began), l.bytes.Load()
	if _, difference := daemontest.Compare(t, up, d); difference != "" {
		t.Fatal(difference)
	}
	t.Logf("%d bytes for each transfer, on %d connections: %s", carried/transfers, l.connections.Load(), out)
	if most := mostBytesEach*transfers + int64(mostBytesASecond*took.Seconds()); carried > most ||
		l.connections.Load() > 2 {
		t.Errorf("%d bytes in %s, at most %d are wanted; %d connections", carried, took, most, l.connections.Load())
	}
}

// All rows arrive over a slow line, although each page takes several requests: neither side gives up.
func TestDrillAnApplianceIsFollowedOverASlowLine(t *testing.T) {
	t.Parallel()
	const transfers = 200
	up, _ := newLongAgo(t, transfers)
	up.Program = daemontest.Program(t)
	up.Start(t)
	defer up.Kill(t)
	l := slowLine().plug(t, up.URL)
	d := daemontest.NewReplica(t, l.url)
	d.Program = up.Program
	out := d.Run(t, "replica", "sync")
	if _, difference := daemontest.Compare(t, up, d); difference != "" {
		t.Fatal(difference)
	}
	t.Logf("%d bytes: %s", l.bytes.Load(), out)
}

// BenchmarkSlowLine measures a follower over a line of 1 Mbit/s with a round trip of 200 ms and 1 % of loss: catching
// up with 5,000 transfers, and 20 new ones per second.
func BenchmarkSlowLine(b *testing.B) {
	const transfers = 5000
	up, world := newLongAgo(b, transfers)
	up.Start(b)
	defer up.Kill(b)
	for b.Loop() {
		l := slowLine().plug(b, up.URL)
		d := daemontest.New(b)
		d.Configure("ATTESTD_GRAPHQL_UPSTREAM=" + l.url + "/v1/graphql")
		began := time.Now()
		d.Run(b, "replica", "sync")
		caught, took := l.bytes.Load(), time.Since(began)
		d.Start(b)
		live := followLive{perSecond: 20, lasts: time.Minute}
		lags := live.measure(b.Context(), b, up, d, world)
		followed := l.bytes.Load() - caught
		d.Kill(b)
		fmt.Printf("\ncatching up: %d bytes for each of %d transfers, %.0f a second\n", caught/transfers, transfers,
			transfers/took.Seconds())
		fmt.Printf("%d new ones a second: %d bytes for each of %d, with all look-ups; lag p50 %s, p99 %s\n\n",
			live.perSecond, followed/int64(len(lags)), len(lags),
			lags[len(lags)/2].Round(time.Millisecond), lags[len(lags)*99/100].Round(time.Millisecond))
		b.ReportMetric(float64(caught)/transfers, "B/caught-up")
		b.ReportMetric(float64(followed)/float64(len(lags)), "B/followed")
	}
}
