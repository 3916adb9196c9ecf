package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

const (
	// maxHeaderBytes bounds a request's line and headers. Longer headers are answered with 431.
	maxHeaderBytes = 16 << 10
	// prefetched is how many bytes of a body fasthttp reads before it calls the handler. A body up to this size has
	// then been read from the connection.
	prefetched = 8 << 10
	// maxWorkers exceeds any possible number of connections. fasthttp must never reach its own limit: it would refuse a
	// connection inside its accept loop, and wait there for the client.
	maxWorkers = 1 << 24
)

// httpServer is the common part of the public server and the admin socket: connections, request ids, panics, problems,
// the access log, metrics and graceful shutdown. fasthttp reads requests, fiber routes them.
type httpServer struct {
	logger  *slog.Logger
	access  *slog.Logger // for requests with a status below 500
	now     func() time.Time
	metrics *metrics // nil records no metrics
	proxies []netip.Prefix
	tls     *tls.Config
	// showCauses adds the cause of an error to its problem. Only operators may see causes.
	showCauses bool

	pages *pages // that may read answers; nil for none

	// unmatched admits a request that no route matches. onAnswer is called after each answer. Both may be nil.
	unmatched func(c *fiber.Ctx, x *exchange) error
	onAnswer  func(x *exchange, status int)

	app         *fiber.App
	route       fasthttp.RequestHandler // fiber's handler
	connections *connections

	base     context.Context // parent of every request's context; ends when shutdown cuts requests off
	cancel   context.CancelFunc
	stopping atomic.Bool

	mu        sync.Mutex
	listeners []*listener
}

type httpOptions struct {
	Logger         *slog.Logger
	AccessLog      *slog.Logger // nil means Logger
	Now            func() time.Time
	Metrics        *metrics
	TrustedProxies []netip.Prefix
	TLS            *tls.Config
	ShowCauses     bool

	ReadTimeout, IdleTimeout time.Duration
	WriteTimeout             time.Duration // of a whole answer; zero means only EachWriteTimeout applies
	EachWriteTimeout         time.Duration // of one write; zero means only WriteTimeout applies

	Connections connectionLimits
}

func newHTTPServer(opts httpOptions) *httpServer {
	h := &httpServer{
		logger: opts.Logger, access: cmp.Or(opts.AccessLog, opts.Logger), now: opts.Now, metrics: opts.Metrics,
		proxies: opts.TrustedProxies, tls: opts.TLS, showCauses: opts.ShowCauses,
		connections: newConnections(opts.Connections, opts.EachWriteTimeout, opts.Metrics, opts.Logger, opts.Now),
	}
	h.base, h.cancel = context.WithCancel(context.Background())
	h.app = fiber.New(fiber.Config{
		StrictRouting: true, CaseSensitive: true,
		DisableStartupMessage: true, DisableDefaultContentType: true,
		ReadTimeout: opts.ReadTimeout, WriteTimeout: opts.WriteTimeout, IdleTimeout: opts.IdleTimeout,
		ReadBufferSize: maxHeaderBytes, Concurrency: maxWorkers,
		// Bodies are streamed, so that the API key is checked before a body is read. Each route has its own limit.
		// BodyLimit only keeps fasthttp from reading past the end of a body, as it does with longer bodies.
		StreamRequestBody: true, BodyLimit: 1 << 30,
		DisableDefaultDate: true, // see setDate
		// Otherwise fasthttp would read a whole form into files before it calls the handler.
		DisablePreParseMultipartForm: true,
		ErrorHandler: func(c *fiber.Ctx, err error) error {
			x := exchangeOf(c.Context())
			if x.route == routeUnmatched && h.unmatched != nil {
				if refused := h.unmatched(c, x); refused != nil {
					err = refused
				}
			}
			h.fail(c.Context(), x, err)
			return nil
		},
	})
	return h
}

// start must be called after the last route is added.
func (h *httpServer) start() {
	h.route = h.app.Handler()
	server := h.app.Server()
	server.Handler = h.handle
	server.ErrorHandler = h.unreadable
	server.CloseOnShutdown = true
}

func (h *httpServer) handle(rctx *fasthttp.RequestCtx) {
	x := h.begin(rctx)
	defer h.end(rctx, x)
	defer h.recover(rctx, x)
	if c := connOf(rctx); c != nil {
		if err := c.next(); err != nil {
			rctx.SetConnectionClose()
			h.fail(rctx, x, err)
			return
		}
	}
	if h.pages.preflight(rctx, x) { // before refusals, so that the page can read them
		return
	}
	if h.stopping.Load() && !isProbe(rctx.Path()) {
		rctx.SetConnectionClose()
		h.fail(rctx, x, appliance.Errorf(appliance.CodeShuttingDown, "the server is shutting down"))
		return
	}
	h.route(rctx)
}

func isProbe(path []byte) bool { return string(path) == "/healthz" || string(path) == "/readyz" }

func (h *httpServer) recover(rctx *fasthttp.RequestCtx, x *exchange) {
	p := recover()
	if p == nil {
		return
	}
	h.logger.Error("panic", "panic", fmt.Sprint(p), "request_id", x.id, "stack", string(debug.Stack()))
	wipe(&rctx.Response)
	h.greet(rctx, x.id)
	h.pages.allow(rctx)
	h.fail(rctx, x, appliance.Errorf(appliance.CodeInternal, "internal error"))
}

// fail answers with the problem for err. OPTIONS on an existing path succeeds instead. A framing error takes precedence
// over any other error.
func (h *httpServer) fail(rctx *fasthttp.RequestCtx, x *exchange, err error) {
	if c := connOf(rctx); c != nil && c.refusal != nil {
		err = c.refusal
	}
	e := asError(err)
	if e.Code == CodeMethodNotAllowed && x.method == fiber.MethodOptions {
		header := &rctx.Response.Header
		header.Set(fiber.HeaderAllow, string(header.Peek(fiber.HeaderAllow))+", "+fiber.MethodOptions)
		rctx.Response.SetStatusCode(fiber.StatusNoContent)
		return
	}
	x.code, x.cause = e.Code, e.Cause
	if h.showCauses && e.Cause != nil {
		shown := *e
		shown.Detail += ": " + e.Cause.Error()
		e = &shown
	}
	writeProblem(rctx, e, x.id)
}

// unreadable answers a request that fasthttp could not read. fasthttp's errors quote the request, so they are neither
// shown nor logged.
func (h *httpServer) unreadable(rctx *fasthttp.RequestCtx, err error) {
	e := readError(err)
	x := &exchange{start: h.now(), route: routeUnreadable, method: "OTHER", id: uuid.NewString(),
		ip: clientIP(rctx, nil)}
	wipe(&rctx.Response)
	h.greet(rctx, x.id)
	if h.pages != nil {
		allowAny(&rctx.Response.Header) // the path is unknown, and the problem only describes the request's fault
	}
	h.fail(rctx, x, e)
	now := h.now()
	setDate(&rctx.Response.Header, now)
	c := connOf(rctx)
	if c != nil && (c.raw.gone.Load() || !c.raw.active.Load()) {
		return // displaced, or never sent a byte: not a request
	}
	if c != nil && x.code != CodeRequestTimeout {
		c.raw.linger.Store(true)
	}
	h.metrics.begin()
	h.logRequest(rctx, x, now)
}

// serve accepts connections until shutdown and then returns nil.
func (h *httpServer) serve(ln net.Listener) error {
	l := newListener(ln, h.connections, h.tls)
	h.mu.Lock()
	h.listeners = append(h.listeners, l)
	h.mu.Unlock()
	if h.stopping.Load() {
		return l.Close()
	}
	return h.app.Server().Serve(l)
}

// responds returns an error if a listener does not accept connections until ctx ends.
func (h *httpServer) responds(ctx context.Context) error {
	h.mu.Lock()
	listeners := slices.Clone(h.listeners)
	h.mu.Unlock()
	for _, l := range listeners {
		if err := l.responds(ctx); err != nil {
			return err
		}
	}
	return nil
}

// shutdown stops accepting connections and waits for accepted requests. If ctx ends first, shutdown cuts the requests
// off and returns the error of ctx.
func (h *httpServer) shutdown(ctx context.Context) error {
	h.stopping.Store(true)
	h.mu.Lock()
	for _, l := range h.listeners {
		_ = l.Close()
	}
	h.mu.Unlock()
	h.connections.abort(false)
	err := h.app.Server().ShutdownWithContext(ctx)
	h.cancel()
	if err != nil {
		h.connections.abort(true)
	}
	return err
}
