// Package api serves attestations over HTTP: the public API, the log for auditors, and the operator's admin socket.
// Errors are problems (RFC 9457) with stable codes, the log is a C2SP tlog-tiles log, Idempotency-Key is that of
// draft-ietf-httpapi-idempotency-key-header, and HTTP is RFC 9110 and 9112.
package api

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
)

// Options are what a Server needs. Only Attestor is required; zero durations, sizes and rates mean the default that
// stands beside them.
type Options struct {
	Attestor    *appliance.Attestor
	LogVerifier string // the log's verifier key (C2SP signed-note vkey), published at /functions/v1/attestor

	DefaultRate   appliance.Rate // 50/s; of keys that have no rate of their own
	AnonymousRate appliance.Rate // 10/s; of requests without a valid key, for each client address (IPv6: each /64)

	AttestBodyLimit int64         // 16 KiB
	RequestTimeout  time.Duration // 10 s; for all of an attestation: HSM, disk, waiting for either
	ReadTimeout     time.Duration // 10 s; from a request's first byte to its last
	WriteTimeout    time.Duration // 10 s; for an answer
	IdleTimeout     time.Duration // 60 s; between requests of a connection

	// TrustedProxies are those whose X-Forwarded-For is believed. None means that the header is ignored.
	TrustedProxies []netip.Prefix
	TLS            *tls.Config // nil means plain HTTP; see Certificates

	// Routes are served beside the server's own, under the same rules.
	Routes []Route

	// ReplicaReady says why reads are not to be relied on, as an *appliance.Error, for /readyz. Nil leaves them out of it.
	ReplicaReady func() error

	Logger   *slog.Logger         // slog.Default
	Registry *prometheus.Registry // nil measures nothing
	Now      func() time.Time     // time.Now
}

func (o Options) withDefaults() Options {
	setDefault(&o.DefaultRate, appliance.Rate{PerSecond: 50})
	setDefault(&o.AnonymousRate, appliance.Rate{PerSecond: 10})
	setDefault(&o.AttestBodyLimit, 16<<10)
	setDefault(&o.RequestTimeout, 10*time.Second)
	setDefault(&o.ReadTimeout, 10*time.Second)
	setDefault(&o.WriteTimeout, 10*time.Second)
	setDefault(&o.IdleTimeout, time.Minute)
	setDefault(&o.Logger, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Route is a path that is served, and the rules for it. They are applied in this order: key, scope and rate; then the
// body's type and size; then Handler.
type Route struct {
	Method string // GET serves HEAD too
	Path   string // fiber's pattern
	// Scope is what the caller's API key must allow. Empty means anyone, within the anonymous rate.
	Scope appliance.Scope
	// Rate is how often one client address may use a route that needs no key. Zero is within Options.AnonymousRate,
	// which all such routes and all refused keys share.
	Rate appliance.Rate
	// Probe routes have no rate: they tell whether the server is well, even when it is flooded.
	Probe bool
	// BodyLimit is the most bytes of a JSON body, which Handler finds in c.Body(). Zero means that a body is ignored.
	BodyLimit int64
	// ReadsBody routes read their body themselves, to its end or as far as they want; then they close the connection.
	ReadsBody bool
	// Handler answers. An *appliance.Error becomes its problem; what it keeps of c it must copy.
	Handler fiber.Handler
}

// Server is the public server.
type Server struct {
	*httpServer
	opts     Options
	attestor *appliance.Attestor
	origin   string
	routes   []Route

	rates          atomic.Pointer[rates]
	keyRates       limiter[string]     // by the key's id
	anonymousRates limiter[netip.Addr] // by network
}

// rates are what Options.DefaultRate and AnonymousRate say, until SetRates.
type rates struct{ key, anonymous appliance.Rate }

// SetRates changes Options.DefaultRate and AnonymousRate while the server serves. What was drawn before counts. A zero
// rate means the default.
func (s *Server) SetRates(key, anonymous appliance.Rate) {
	o := Options{DefaultRate: key, AnonymousRate: anonymous}.withDefaults()
	s.rates.Store(&rates{key: o.DefaultRate, anonymous: o.AnonymousRate})
}

// New returns a server that is ready to Serve.
func New(opts Options) *Server {
	opts = opts.withDefaults()
	s := &Server{
		opts: opts, attestor: opts.Attestor,
		keyRates: newLimiter[string](), anonymousRates: newLimiter[netip.Addr](),
	}
	s.SetRates(opts.DefaultRate, opts.AnonymousRate)
	if v, err := note.NewVerifier(opts.LogVerifier); err == nil {
		s.origin = v.Name()
	}
	var m *metrics
	if opts.Registry != nil {
		m = newMetrics(opts.Registry)
	}
	s.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger, Now: opts.Now, Metrics: m, TrustedProxies: opts.TrustedProxies, TLS: opts.TLS,
		ReadTimeout: opts.ReadTimeout, WriteTimeout: opts.WriteTimeout, IdleTimeout: opts.IdleTimeout,
	})
	s.routes = append(s.ownRoutes(), opts.Routes...)
	for _, r := range s.routes {
		s.mount(r)
	}
	s.start()
	return s
}

func (s *Server) ownRoutes() []Route {
	const attest = "/functions/v1/attest"
	return []Route{
		{Method: fiber.MethodPost, Path: attest, Scope: appliance.ScopeAttest, BodyLimit: s.opts.AttestBodyLimit, Handler: s.attest},
		{Method: fiber.MethodGet, Path: attest + "/:id", Scope: appliance.ScopeAttest, Handler: s.readBack},
		{Method: fiber.MethodGet, Path: "/functions/v1/attestor", Handler: s.describe},
		{Method: fiber.MethodGet, Path: "/log/checkpoint", Handler: s.checkpoint},
		{Method: fiber.MethodGet, Path: "/log/tile/*", Handler: s.tile},
		{Method: fiber.MethodGet, Path: "/openapi.yaml", Handler: s.openAPI},
		{Method: fiber.MethodGet, Path: "/healthz", Probe: true, Handler: s.healthz},
		{Method: fiber.MethodGet, Path: "/readyz", Probe: true, Handler: s.readyz},
	}
}

// Serve answers on the listener until Shutdown, and then returns nil. It may be called for several listeners.
func (s *Server) Serve(ln net.Listener) error { return s.serve(ln) }

// Shutdown makes /readyz fail, stops accepting, lets accepted requests finish and returns. When ctx ends first, they are
// cut off and ctx's error is returned. A request that comes in meanwhile on an open connection is answered with
// CodeShuttingDown.
func (s *Server) Shutdown(ctx context.Context) error { return s.shutdown(ctx) }

func (s *Server) mount(r Route) {
	own := newLimiter[netip.Addr]()
	handler := func(c *fiber.Ctx) error {
		x := exchangeOf(c.Context())
		x.route = r.Path
		if err := s.admit(c, x, r, own); err != nil {
			return err
		}
		x.read = r.ReadsBody
		if r.BodyLimit > 0 {
			if err := receiveJSON(c, x, r.BodyLimit); err != nil {
				return err
			}
		}
		return r.Handler(c)
	}
	if r.Method == fiber.MethodGet {
		s.app.Get(r.Path, handler)
		return
	}
	s.app.Add(r.Method, r.Path, handler)
}
