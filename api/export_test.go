package api

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// Internals that tests outside the package use.
var (
	ParseRequest = parseRequest
	OpenAPI      = openAPI
	Network      = network
)

func Statuses() map[appliance.Code]int { return maps.Clone(statuses) }

func (s *Server) Routes() []Route { return slices.Clone(s.routes) }

func (a *Admin) Routes() []Route { return slices.Clone(a.routes) }

// OnState sets the callback for connection states. It must be called before Serve.
func (s *Server) OnState(f func(net.Conn, fasthttp.ConnState)) { s.app.Server().ConnState = f }

// TrustOnly trusts only these networks, and no longer this machine.
func (s *Server) TrustOnly(trusted ...netip.Prefix) {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	s.connections.limits.Trusted = trusted
}

// Resting returns the number of connections that wait for the next request.
func (s *Server) Resting() (n int) {
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	for c := range s.connections.open {
		if c.resting.Load() {
			n++
		}
	}
	return n
}

func ClientIP(peer net.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	rctx := &fasthttp.RequestCtx{}
	rctx.Init(&fasthttp.Request{}, peer, nil)
	for _, f := range forwarded {
		rctx.Request.Header.Add("X-Forwarded-For", f)
	}
	return clientIP(rctx, trusted)
}

// Framed is the result of framing one request.
type Framed struct {
	Passed []byte // bytes that passed before the end or the refusal
	Err    error
	Read   int // bytes received before the end or the refusal
	Held   int // maximum of received bytes that had not passed
	Steps  int // bytes examined
}

// Frame feeds a request to framing in pieces of the given size.
func Frame(request []byte, size int) (r Framed) {
	f, held := framing{}, []byte(nil)
	for piece := range slices.Chunk(request, size) {
		held = append(held, piece...)
		r.Read += len(piece)
		for used := 1; used > 0 && r.Err == nil; held = held[used:] {
			var out []byte
			out, used, r.Err = f.pass(held)
			r.Passed = append(r.Passed, out...)
		}
		if r.Held, r.Steps = max(r.Held, len(held)), f.steps; r.Err != nil || r.Steps > 100*r.Read {
			break // any test fails by now; the rest would take minutes
		}
	}
	return r
}

type AddressLimiter = accounts[netip.Addr]

func NewAddressLimiter() AddressLimiter { return newAccounts(openAccount[netip.Addr]) }

// SharedLimiter limits API keys together with other limiters, in simulated time. Calling Lease leases for all waiting
// accounts.
type SharedLimiter struct {
	leases   *leases
	accounts accounts[string]
	later    []func()
}

func NewSharedLimiter(from appliance.SharedRates) *SharedLimiter {
	l := &SharedLimiter{leases: newLeases(from, slog.New(slog.DiscardHandler))}
	l.leases.after = func(_ time.Duration, f func()) { l.later = append(l.later, f) }
	l.accounts = newAccounts(l.leases.of)
	return l
}

func (l *SharedLimiter) Take(keyID string, r appliance.Rate, now time.Time) (wait time.Duration) {
	return l.accounts.of(keyID).withdraw(now, r)
}

func (l *SharedLimiter) Lease(ctx context.Context) {
	again := l.later
	l.later = nil
	for _, f := range again {
		f()
	}
	l.leases.lease(ctx)
}

func Take(l AddressLimiter, client netip.Addr, r appliance.Rate, now time.Time) time.Duration {
	return l.of(client).withdraw(now, r)
}

func (a accounts[K]) Len() int {
	a.all.CleanUp()
	return a.all.EstimatedSize()
}

// MetricsConnections is metricsConnections.
const MetricsConnections = metricsConnections

// Sample adds a sample before the second ends.
func (s *Server) Sample() { s.sampler.sample(s.now()) }

// Quantiles returns the quantiles of the observations between two reads of a histogram. The last count of a read is the
// total.
func Quantiles(bounds []float64, before, after []uint64) (p50, p99 *float64) {
	histogram := func(counts []uint64) *dto.Histogram {
		h := &dto.Histogram{SampleCount: &counts[len(bounds)]}
		for i := range bounds {
			h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &bounds[i], CumulativeCount: &counts[i]})
		}
		return h
	}
	all := between(histogram(before), histogram(after))
	return quantile(all, .5), quantile(all, .99)
}
