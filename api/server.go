// Package api serves attestations over HTTP: the public API, the log for auditors, and the operator's admin socket. It
// implements HTTP (RFC 9110, RFC 9112), problems with stable codes (RFC 9457), a C2SP tlog-tiles log, and
// Idempotency-Key (draft-ietf-httpapi-idempotency-key-header).
package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// Options configure a Server. Rates, sizes and timeouts have no defaults here; New refuses zero values.
type Options struct {
	Attestor    *attest.Attestor
	LogVerifier string // the log's verifier key (C2SP signed-note vkey), published at /functions/v1/attestor
	Version     string // of attestd, for the other members of a quorum

	// Coordinators has the name of each other member of the quorum, by the origin of its log. Only an API key of that
	// name may name that origin.
	Coordinators map[string]string

	DefaultRate   appliance.Rate // of an API key without a rate of its own
	AnonymousRate appliance.Rate // of requests without a valid API key, from one client address (IPv6: one /64)
	LogRate       appliance.Rate // of reading checkpoints and tiles, from one client address, in a separate bucket
	ErrorRate     appliance.Rate // of one client's 4xx answers; while a client exceeds it, its rates are a tenth

	// SharedRates shares the rates of API keys among several appliances. Nil means that this appliance is alone.
	SharedRates appliance.SharedRates

	// Saturated reports overload in addition to the Attestor's own report. While either reports it, DefaultRate,
	// AnonymousRate and the rates of Routes shrink every second, and grow back afterwards. Saturated must be quick. Nil
	// means never saturated.
	Saturated func() bool

	AttestBodyLimit int64 // largest body of an attestation request, in bytes
	// RequestTimeout bounds an attestation, including all waits for the HSM and the disk, and a read of the log.
	RequestTimeout time.Duration
	ReadTimeout    time.Duration // from the first byte of a request to its last
	WriteTimeout   time.Duration // of one answer
	IdleTimeout    time.Duration // between two requests on a connection

	MaxConnections           int // open at once, from all clients
	MaxConnectionsPerAddress int // from one client address (IPv6: one /64)
	// AnonymousIdleTimeout replaces IdleTimeout until the client shows a valid API key. It also applies before the
	// first request.
	AnonymousIdleTimeout time.Duration

	// Origins are the origins whose pages may request and read attestations (CORS), or AnyOrigin. Empty means no page.
	Origins []string

	// TrustedProxies are the networks whose X-Forwarded-For is believed. If it is empty, the header is ignored. Trusted
	// proxies, and clients on this machine, may open MaxConnections, and have IdleTimeout.
	TrustedProxies []netip.Prefix
	TLS            *tls.Config // nil means plain HTTP; see Certificates

	// Routes are served in addition to the server's own routes, under the same rules.
	Routes []Route

	// ReplicaReady returns an *appliance.Error while reads are unreliable. /readyz then fails. Nil means that /readyz
	// does not depend on the replica.
	ReplicaReady func() error
	// ChainReady returns an *appliance.Error while a contract refuses this appliance's attestations. /readyz then
	// fails. Nil means that no contract is watched.
	ChainReady func() error
	Witnesses  Witnesses // nil means no witnesses: the newest checkpoint is published

	Events *Events // streams of events; nil means none

	// Console returns the console's URL for browsers, or "" if it has none. Nil means no console.
	Console func() string

	// Trace begins the trace of an attestation request. The function that it returns ends the trace with the request's
	// error. Nil disables tracing.
	Trace func(ctx context.Context, r Traced) (context.Context, func(err error))

	Logger    *slog.Logger         // nil means slog.Default
	AccessLog *slog.Logger         // for requests with a status below 500; nil means Logger
	Registry  *prometheus.Registry // nil means no metrics, and no Activity
	HSM       func() HSMUse        // for Activity; nil if unknown
	Now       func() time.Time     // nil means time.Now
}

// check returns an error that names all missing options.
func (o Options) check() error {
	var missing []string
	for _, option := range []struct {
		name string
		set  bool
	}{
		{"Attestor", o.Attestor != nil},
		{"DefaultRate", o.DefaultRate != appliance.Rate{}},
		{"AnonymousRate", o.AnonymousRate != appliance.Rate{}},
		{"LogRate", o.LogRate != appliance.Rate{}},
		{"ErrorRate", o.ErrorRate != appliance.Rate{}},
		{"AttestBodyLimit", o.AttestBodyLimit > 0},
		{"RequestTimeout", o.RequestTimeout > 0},
		{"ReadTimeout", o.ReadTimeout > 0},
		{"WriteTimeout", o.WriteTimeout > 0},
		{"IdleTimeout", o.IdleTimeout > 0},
		{"MaxConnections", o.MaxConnections > 0},
		{"MaxConnectionsPerAddress", o.MaxConnectionsPerAddress > 0},
		{"AnonymousIdleTimeout", o.AnonymousIdleTimeout > 0},
	} {
		if !option.set {
			missing = append(missing, option.name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("api.Options: %s must be set", strings.Join(missing, ", "))
	}
	if _, err := note.NewVerifier(o.LogVerifier); err != nil && o.LogVerifier != "" {
		return fmt.Errorf("api.Options: LogVerifier %q: %w", o.LogVerifier, err)
	}
	return nil
}

func orDefaults(logger *slog.Logger, now func() time.Time) (*slog.Logger, func() time.Time) {
	if logger == nil {
		logger = slog.Default()
	}
	if now == nil {
		now = time.Now
	}
	return logger, now
}

// Route is a method and a path, with its access rules and handler. The server checks the API key, its scope and the
// rate, then the type and size of the body, and then calls Handler.
type Route struct {
	Method string // GET serves HEAD too
	Path   string // fiber's pattern
	// Scope is the scope that the caller's API key must have. If it is empty, API keys are optional, and any valid key
	// is accepted.
	Scope appliance.Scope
	// Open makes the route available without an API key. Scope then only decides whether a key is accepted.
	Open bool
	// AnyScope makes an API key of any scope necessary. Scope must then be empty.
	AnyScope bool
	// Rate is how often one client address may use the route if it uses no other route. A client has one bucket for all
	// routes. Zero means Options.AnonymousRate.
	Rate appliance.Rate
	// ReadsLog routes are charged to the client address at Options.LogRate, in a separate bucket that holds ten
	// minutes' requests.
	ReadsLog bool
	// Probe routes have no rate limit, so that they answer even while the server is flooded.
	Probe bool
	// BodyLimit is the largest JSON body, in bytes. Handler gets the body from Body. Zero means that a body is ignored.
	BodyLimit int64
	// ReadsBody means that Handler reads the body itself. If Handler stops before the end, it must close the
	// connection.
	ReadsBody bool
	// Origins are the origins whose pages may read answers, or AnyOrigin. Empty means no page. All methods of a path
	// must have the same origins.
	Origins []string
	// Read counts the route's requests as reads in an Activity.
	Read bool
	// EndsWithClient makes c.UserContext() end soon after the client closes the connection.
	EndsWithClient bool
	// Handler answers a request. An *appliance.Error that it returns becomes a problem. Handler must copy any parts of
	// c that it keeps.
	Handler fiber.Handler
}

// Server is the server of the public API.
type Server struct {
	*httpServer
	opts     Options
	attestor *attest.Attestor
	origin   string
	logHash  string // hash of the log's key: 8 hex digits
	routes   []Route

	ready           *readiness
	sampler         *sampler  // nil without metrics
	deadlines       deadlines // of requests
	front           front
	rates           atomic.Pointer[rates]
	pressure        pressure
	keyAccounts     accounts[string]     // by API key id
	addressAccounts accounts[netip.Addr] // by network
	logAccounts     accounts[netip.Addr] // by network
	streams         *streams             // nil if the server offers none
}

// rates holds Options.DefaultRate and AnonymousRate, or their replacements from SetRates.
type rates struct{ key, anonymous appliance.Rate }

// SetRates changes Options.DefaultRate and AnonymousRate while the server runs. Earlier requests still count. A zero
// rate leaves the current one unchanged.
func (s *Server) SetRates(key, anonymous appliance.Rate) {
	now := *s.rates.Load()
	if key != (appliance.Rate{}) {
		now.key = key
	}
	if anonymous != (appliance.Rate{}) {
		now.anonymous = anonymous
	}
	s.rates.Store(&now)
}

// New returns a server that is ready to Serve. Its error names the missing options.
func New(opts Options) (*Server, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	opts.Logger, opts.Now = orDefaults(opts.Logger, opts.Now)
	s := &Server{
		opts: opts, attestor: opts.Attestor,
		keyAccounts: newAccounts(openAccount[string]), addressAccounts: newAccounts(openAccount[netip.Addr]),
		logAccounts: newAccounts(openLogAccount),
	}
	s.rates.Store(&rates{key: opts.DefaultRate, anonymous: opts.AnonymousRate})
	if v, err := note.NewVerifier(opts.LogVerifier); err == nil {
		s.origin, s.logHash = v.Name(), fmt.Sprintf("%08x", v.KeyHash())
	}
	s.routes = append(s.ownRoutes(), opts.Routes...)
	s.offer(opts.Events)
	s.pressure = pressure{part: 1, at: opts.Now(), saturated: func() bool {
		return opts.Attestor.Saturated() || opts.Saturated != nil && opts.Saturated()
	}}
	var m *metrics
	if opts.Registry != nil {
		m = newMetrics(opts.Registry, s.routes)
		m.measure(opts.Registry, func() float64 { return s.pressure.factor(opts.Now()) }, s.streams.count)
	}
	s.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger, AccessLog: opts.AccessLog, Now: opts.Now, Metrics: m, TrustedProxies: opts.TrustedProxies,
		TLS:         opts.TLS,
		ReadTimeout: opts.ReadTimeout, WriteTimeout: opts.WriteTimeout, IdleTimeout: opts.IdleTimeout,
		Connections: connectionLimits{
			Most: opts.MaxConnections, MostPerAddress: opts.MaxConnectionsPerAddress,
			MostPerKey:           (opts.MaxConnections + keyShare - 1) / keyShare,
			AnonymousIdleTimeout: opts.AnonymousIdleTimeout, Trusted: slices.Concat(thisMachine, opts.TrustedProxies),
		},
	})
	s.deadlines = deadlines{parent: s.base, timeout: opts.RequestTimeout}
	s.pages = newPages(s.routes)
	s.unmatched = func(c *fiber.Ctx, x *exchange) error { return s.admit(c, x, Route{}) }
	s.onAnswer = s.answered
	s.ready = &readiness{base: s.base, clock: opts.Now, logger: opts.Logger,
		check: func(ctx context.Context) map[string]error {
			return failing(ctx, s.attestor,
				map[string]func() error{"replica": opts.ReplicaReady, "chain": opts.ChainReady})
		}}
	if opts.SharedRates != nil {
		shared := newLeases(opts.SharedRates, opts.Logger)
		s.keyAccounts = newAccounts(shared.of)
		go shared.run(s.base)
	}
	if m != nil {
		s.sampler = newSampler(m, s.routes, s.keyAccounts, opts.HSM, opts.Now)
		go s.sampler.run(s.base, opts.Now)
	}
	for _, r := range s.routes {
		s.mount(r)
	}
	s.start()
	return s, nil
}

// Activity returns the server's samples per second, or nil without a Registry.
func (s *Server) Activity() *Activity {
	if s.sampler == nil {
		return nil
	}
	return s.sampler.activity
}

// keyShare is the divisor of MaxConnections that gives one API key's limit: a quarter.
const keyShare = 4

const (
	attestPath = "/functions/v1/attest"
	cosignPath = "/functions/v1/cosign"
)

func (s *Server) ownRoutes() []Route {
	own, anyone := s.opts.Origins, []string{AnyOrigin}
	return []Route{
		{Method: fiber.MethodPost, Path: attestPath, Scope: appliance.ScopeAttest, BodyLimit: s.opts.AttestBodyLimit,
			Origins: own, Handler: s.attest},
		{Method: fiber.MethodGet, Path: attestPath + "/:id", Scope: appliance.ScopeAttest, Origins: own,
			Handler: s.readBack},
		{Method: fiber.MethodPost, Path: cosignPath, Scope: appliance.ScopeCosign, BodyLimit: s.opts.AttestBodyLimit,
			Handler: s.cosign},
		{Method: fiber.MethodGet, Path: cosignPath, Scope: appliance.ScopeCosign, Handler: s.cosigner},
		{Method: fiber.MethodGet, Path: cosignPath + "/:hash", Scope: appliance.ScopeCosign, Handler: s.proveToMember},
		{Method: fiber.MethodGet, Path: "/functions/v1/attestor", Origins: anyone, Handler: s.describe},
		{Method: fiber.MethodGet, Path: landingPath, Origins: anyone, Handler: s.landing},
		{Method: fiber.MethodGet, Path: "/favicon.svg", Handler: s.favicon},
		{Method: fiber.MethodGet, Path: "/favicon.ico", Handler: s.favicon},
		{Method: fiber.MethodGet, Path: referencePath, Handler: s.reference},
		{Method: fiber.MethodGet, Path: proofPath, Origins: anyone, Handler: s.lastProof},
		{Method: fiber.MethodGet, Path: "/log/checkpoint", ReadsLog: true, Origins: anyone, Handler: s.checkpoint},
		{Method: fiber.MethodGet, Path: "/log/tile/*", ReadsLog: true, Origins: anyone, Handler: s.tile},
		{Method: fiber.MethodGet, Path: "/log/:key/checkpoint", ReadsLog: true, Origins: anyone, Handler: s.checkpoint},
		{Method: fiber.MethodGet, Path: "/log/:key/tile/*", ReadsLog: true, Origins: anyone, Handler: s.tile},
		{Method: fiber.MethodGet, Path: "/openapi.yaml", Origins: anyone, Handler: s.openAPI},
		{Method: fiber.MethodGet, Path: "/healthz", Probe: true, Origins: anyone, Handler: s.healthz},
		{Method: fiber.MethodGet, Path: "/readyz", Probe: true, Origins: anyone, Handler: s.readyz},
	}
}

// Serve serves on the listener until Shutdown and then returns nil. It may be called for several listeners.
func (s *Server) Serve(ln net.Listener) error { return s.serve(ln) }

// Responds returns nil once each listener is waiting for a client or has accepted one since the call. It returns an
// error if ctx ends first; a restart may then help.
func (s *Server) Responds(ctx context.Context) error { return s.responds(ctx) }

// Shutdown makes /readyz fail, stops accepting connections and waits for accepted requests. If ctx ends first, Shutdown
// cuts the requests off and returns the error of ctx. During shutdown, new requests on open connections are answered
// with CodeShuttingDown.
//
// Streams of events end at once: their clients resume at another appliance, or after a restart.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.streams != nil {
		s.streams.end()
	}
	return s.shutdown(ctx)
}

func (s *Server) mount(r Route) {
	handler := func(c *fiber.Ctx) error {
		x := exchangeOf(c.Context())
		x.route = r.Path
		if err := s.admit(c, x, r); err != nil {
			return err
		}
		if err := checkEncoding(&c.Context().Request.Header); err != nil {
			return err
		}
		x.read = r.ReadsBody
		if r.BodyLimit > 0 {
			if err := receiveJSON(c, x, r.BodyLimit); err != nil {
				return err
			}
		}
		if r.EndsWithClient {
			defer s.whileThere(c)()
		}
		return r.Handler(c)
	}
	if r.Method == fiber.MethodGet {
		s.app.Get(r.Path, handler)
		return
	}
	s.app.Add(r.Method, r.Path, handler)
}
