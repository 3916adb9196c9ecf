// Package api serves attestations over HTTP: the public API, the log for auditors, and the operator's admin socket.
// Errors are problems (RFC 9457) with stable codes, the log is a C2SP tlog-tiles log, Idempotency-Key is that of
// draft-ietf-httpapi-idempotency-key-header, and HTTP is RFC 9110 and 9112.
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
)

// Options configure a Server. Rates, sizes and timeouts have no defaults here; New refuses those that are zero.
type Options struct {
	Attestor    *appliance.Attestor
	LogVerifier string // the log's verifier key (C2SP signed-note vkey), published at /functions/v1/attestor

	DefaultRate   appliance.Rate // of API keys without a rate of their own
	AnonymousRate appliance.Rate // of requests without a valid API key, from one client address (IPv6: one /64)
	LogRate       appliance.Rate // of reading checkpoints and tiles, from one client address, in a bucket of its own
	ErrorRate     appliance.Rate // of requests of one client that end in a 4xx; its rates are a tenth while it makes more

	// SharedRates makes the rates of API keys hold for all appliances that share them. Nil means that there are no others.
	SharedRates appliance.SharedRates

	// Saturated says that more is asked for than can be done, beside what the Attestor says of the signer: DefaultRate,
	// AnonymousRate and those of Routes are then tightened, more with each second, and loosened again after. It must be
	// quick. Nil means never.
	Saturated func() bool

	AttestBodyLimit int64         // the largest body of an attestation request, in bytes
	RequestTimeout  time.Duration // of an attestation, with every wait for the HSM and the disk; of reading the log
	ReadTimeout     time.Duration // from the first byte of a request to its last
	WriteTimeout    time.Duration // of an answer
	IdleTimeout     time.Duration // between two requests of a connection

	MaxConnections           int           // open at once, from all clients
	MaxConnectionsPerAddress int           // of one client address (IPv6: one /64)
	AnonymousIdleTimeout     time.Duration // instead of IdleTimeout, and before the first request, until a valid API key was shown

	// Origins are the origins whose pages may ask for attestations and read them (CORS), or AnyOrigin; none means no page.
	Origins []string

	// TrustedProxies are the networks whose X-Forwarded-For is believed. If it is empty, the header is ignored. They, and
	// clients on this machine, may open MaxConnections, and have IdleTimeout.
	TrustedProxies []netip.Prefix
	TLS            *tls.Config // nil means plain HTTP; see Certificates

	// Routes are served beside the server's own, under the same rules.
	Routes []Route

	// ReplicaReady returns an *appliance.Error while reads should not be relied on, which makes /readyz fail. Nil means
	// that /readyz does not depend on the replica.
	ReplicaReady func() error
	// ChainReady returns an *appliance.Error while a contract refuses what is signed here, which makes /readyz fail. Nil means that
	// no contract is watched.
	ChainReady func() error
	Witnesses  Witnesses // nil means none: the newest checkpoint is published

	// Console returns where browsers find the console, as a URL, "" for nowhere. Nil means nowhere.
	Console func() string

	// Trace begins the trace of a request for an attestation, and the function that it returns ends it with the error that is answered.
	// Nil means that nobody wants to know.
	Trace func(ctx context.Context, r Traced) (context.Context, func(err error))

	Logger    *slog.Logger         // nil means slog.Default
	AccessLog *slog.Logger         // has the lines of requests that went well; nil means Logger
	Registry  *prometheus.Registry // nil means no metrics, and no Activity
	InUse     func() int           // sessions of the HSM inside a call, for Activity; nil means that nobody knows
	Now       func() time.Time     // nil means time.Now
}

// check returns an error that names every option that must be set and is not.
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

// Route is a method and a path, who may use it, and what answers. The server checks the API key, its scope and the rate,
// then the type and size of the body, and then calls Handler.
type Route struct {
	Method string // GET serves HEAD too
	Path   string // fiber's pattern
	// Scope is what the caller's API key must allow. Empty means that anyone may use the route, and that any key which may be
	// used at all counts.
	Scope appliance.Scope
	// Open says that anyone may use the route, and that Scope is only what a key must allow to count.
	Open bool
	// Rate is how often one client address may use the route if nothing else. A client has one bucket for all routes. Zero
	// means Options.AnonymousRate.
	Rate appliance.Rate
	// ReadsLog routes are charged to the client address at Options.LogRate, in a bucket of their own that holds ten minutes.
	ReadsLog bool
	// Probe routes have no rate, so that they answer even while the server is flooded.
	Probe bool
	// BodyLimit is the largest JSON body in bytes. Handler gets the body from Body. Zero means that a body is ignored.
	BodyLimit int64
	// ReadsBody says that Handler reads the body itself. If it stops before the end, it must close the connection.
	ReadsBody bool
	// Origins are the origins whose pages may read answers, or AnyOrigin; none means no page. The methods of a path have the same.
	Origins []string
	// Read says that requests count among the reads of an Activity.
	Read bool
	// EndsWithClient says that c.UserContext() ends soon after the client has closed the connection.
	EndsWithClient bool
	// Handler answers. An *appliance.Error that it returns becomes a problem. It must copy what it keeps of c.
	Handler fiber.Handler
}

// Server is the server of the public API.
type Server struct {
	*httpServer
	opts     Options
	attestor *appliance.Attestor
	origin   string
	logHash  string // of the log's key: 8 hex digits
	routes   []Route

	ready           *readiness
	sampler         *sampler  // nil without metrics
	deadlines       deadlines // of what requests wait for
	front           front
	rates           atomic.Pointer[rates]
	pressure        pressure
	keyAccounts     accounts[string]     // by the id of the API key
	addressAccounts accounts[netip.Addr] // by network
	logAccounts     accounts[netip.Addr] // by network
}

// rates are Options.DefaultRate and AnonymousRate, or what SetRates put in their place.
type rates struct{ key, anonymous appliance.Rate }

// SetRates changes Options.DefaultRate and AnonymousRate while the server runs. Requests made before still count. A rate
// that is zero stays as it is.
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

// New returns a server that is ready to Serve. Its error names the options that are missing.
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
	s.pressure = pressure{part: 1, at: opts.Now(), saturated: func() bool {
		return opts.Attestor.Saturated() || opts.Saturated != nil && opts.Saturated()
	}}
	var m *metrics
	if opts.Registry != nil {
		m = newMetrics(opts.Registry, s.routes)
		m.measure(opts.Registry, func() float64 { return s.pressure.factor(opts.Now()) })
	}
	s.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger, AccessLog: opts.AccessLog, Now: opts.Now, Metrics: m, TrustedProxies: opts.TrustedProxies, TLS: opts.TLS,
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
	s.ready = &readiness{base: s.base, clock: opts.Now, logger: opts.Logger, look: func(ctx context.Context) map[string]error {
		return failing(ctx, s.attestor, map[string]func() error{"replica": opts.ReplicaReady, "chain": opts.ChainReady})
	}}
	if opts.SharedRates != nil {
		shared := newLeases(opts.SharedRates, opts.Logger)
		s.keyAccounts = newAccounts(shared.of)
		go shared.run(s.base)
	}
	if m != nil {
		s.sampler = newSampler(m, s.routes, s.keyAccounts, opts.InUse, opts.Now)
		go s.sampler.run(s.base, opts.Now)
	}
	for _, r := range s.routes {
		s.mount(r)
	}
	s.start()
	return s, nil
}

// Activity is what the server does in each second; nil without a Registry.
func (s *Server) Activity() *Activity {
	if s.sampler == nil {
		return nil
	}
	return s.sampler.activity
}

// keyShare is the part of MaxConnections that one API key may have: a quarter.
const keyShare = 4

const attestPath = "/functions/v1/attest"

func (s *Server) ownRoutes() []Route {
	own, anyone := s.opts.Origins, []string{AnyOrigin}
	return []Route{
		{Method: fiber.MethodPost, Path: attestPath, Scope: appliance.ScopeAttest, BodyLimit: s.opts.AttestBodyLimit, Origins: own, Handler: s.attest},
		{Method: fiber.MethodGet, Path: attestPath + "/:id", Scope: appliance.ScopeAttest, Origins: own, Handler: s.readBack},
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

// Responds returns nil once each listener has waited for a client since it was called. It returns an error where ctx ended before:
// a restart may help.
func (s *Server) Responds(ctx context.Context) error { return s.responds(ctx) }

// Shutdown makes /readyz fail, stops accepting connections and waits for accepted requests. If ctx ends first, it cuts them
// off and returns the error of ctx. Meanwhile, new requests on open connections are answered with CodeShuttingDown.
func (s *Server) Shutdown(ctx context.Context) error { return s.shutdown(ctx) }

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
