package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

const (
	// maxHeaderBytes bounds a request's line and headers; more is 431.
	maxHeaderBytes = 16 << 10
	// prefetched is how much of a body fasthttp reads before it calls the handler. A body up to this size is off
	// the wire by then.
	prefetched = 8 << 10
	// maxConnections bounds what idle clients can hold: some 30 KiB each.
	maxConnections = 16384
)

// frame is what the public server and the admin socket have in common: connections, request ids, panics, problems,
// the access log, metrics and the graceful end. fasthttp reads the requests, fiber routes them.
type frame struct {
	logger  *slog.Logger
	now     func() time.Time
	metrics *metrics // nil measures nothing
	proxies []netip.Prefix
	tls     *tls.Config
	// candid frames show causes in problems: whoever may ask is the operator.
	candid bool

	app          *fiber.App
	route        fasthttp.RequestHandler // fiber's
	writeTimeout time.Duration           // per write, see listener

	base     context.Context // of every request; ends when accepted requests are given up
	giveUp   context.CancelFunc
	stopping atomic.Bool

	mu        sync.Mutex
	listeners []*listener
}

type frameOptions struct {
	Logger                                              *slog.Logger
	Now                                                 func() time.Time
	Metrics                                             *metrics
	TrustedProxies                                      []netip.Prefix
	TLS                                                 *tls.Config
	Candid                                              bool
	ReadTimeout, WriteTimeout, IdleTimeout, EachWriting time.Duration
}

func newFrame(opts frameOptions) *frame {
	f := &frame{
		logger: opts.Logger, now: opts.Now, metrics: opts.Metrics,
		proxies: opts.TrustedProxies, tls: opts.TLS, candid: opts.Candid, writeTimeout: opts.EachWriting,
	}
	f.base, f.giveUp = context.WithCancel(context.Background())
	f.app = fiber.New(fiber.Config{
		StrictRouting: true, CaseSensitive: true,
		DisableStartupMessage: true, DisableDefaultContentType: true,
		ReadTimeout: opts.ReadTimeout, WriteTimeout: opts.WriteTimeout, IdleTimeout: opts.IdleTimeout,
		ReadBufferSize: maxHeaderBytes, Concurrency: maxConnections,
		// Bodies are streamed, so that a key is checked before its holder may make us read; each route has its own
		// limit. BodyLimit only keeps fasthttp from reading past the end of a body, which it does above the limit.
		StreamRequestBody: true, BodyLimit: 1 << 30,
		// Else fasthttp would read a whole form, into files, before the handler sees it.
		DisablePreParseMultipartForm: true,
		ErrorHandler: func(c *fiber.Ctx, err error) error {
			f.fail(c.Context(), exchangeOf(c.Context()), err)
			return nil
		},
	})
	return f
}

// start is called when all routes are known.
func (f *frame) start() {
	f.route = f.app.Handler()
	server := f.app.Server()
	server.Handler = f.handle
	server.ErrorHandler = f.unreadable
	server.CloseOnShutdown = true
}

// exchange is what is known of one request and its answer. It lives as long as its handler.
type exchange struct {
	id     string
	start  time.Time
	ip     netip.Addr
	route  string // the pattern, or "unmatched"
	method string
	key    appliance.APIKey // zero without a valid key
	read   bool             // the body was read to its end
	code   appliance.Code   // of the problem that was answered
	cause  error            // for the log
}

type exchangeKey struct{}

func exchangeOf(rctx *fasthttp.RequestCtx) *exchange {
	return rctx.UserValue(exchangeKey{}).(*exchange)
}

func (f *frame) handle(rctx *fasthttp.RequestCtx) {
	x := f.begin(rctx)
	defer f.end(rctx, x)
	defer f.recover(rctx, x)
	if f.stopping.Load() && !isProbe(rctx.Path()) {
		rctx.SetConnectionClose()
		f.fail(rctx, x, appliance.Errorf(appliance.CodeShuttingDown, "the server is shutting down"))
		return
	}
	if err := checkFraming(&rctx.Request.Header); err != nil {
		rctx.SetConnectionClose()
		f.fail(rctx, x, err)
		return
	}
	f.route(rctx)
}

func isProbe(path []byte) bool { return string(path) == "/healthz" || string(path) == "/readyz" }

func (f *frame) begin(rctx *fasthttp.RequestCtx) *exchange {
	header := &rctx.Request.Header
	x := &exchange{start: f.now(), route: "unmatched", method: string(header.Method())}
	if !isMethod(x.method) {
		// fiber answers other methods with a text of its own; TRACE is one that it knows and no route has.
		x.method = "OTHER"
		header.SetMethod(fiber.MethodTrace)
	}
	x.id = requestID(header.Peek(fiber.HeaderXRequestID))
	x.ip = clientIP(rctx, f.proxies)
	rctx.SetUserValue(exchangeKey{}, x)
	rctx.Response.Header.Set(fiber.HeaderXRequestID, x.id)
	f.metrics.begin()
	return x
}

func isMethod(m string) bool {
	switch m {
	case fiber.MethodGet, fiber.MethodHead, fiber.MethodPost, fiber.MethodPut, fiber.MethodDelete,
		fiber.MethodConnect, fiber.MethodOptions, fiber.MethodTrace, fiber.MethodPatch:
		return true
	}
	return false
}

// requestID accepts a caller's id that is a short token, so that it can be followed through logs, and else makes one.
func requestID(given []byte) string {
	if len(given) == 0 || len(given) > 64 {
		return uuid.NewString()
	}
	for _, b := range given {
		letter := b|0x20 >= 'a' && b|0x20 <= 'z'
		if !letter && (b < '0' || b > '9') && b != '-' && b != '_' && b != '.' {
			return uuid.NewString()
		}
	}
	return string(given)
}

func (f *frame) recover(rctx *fasthttp.RequestCtx, x *exchange) {
	p := recover()
	if p == nil {
		return
	}
	f.logger.Error("panic", "panic", fmt.Sprint(p), "request_id", x.id, "stack", string(debug.Stack()))
	rctx.Response.Reset()
	rctx.Response.Header.Set(fiber.HeaderXRequestID, x.id)
	f.fail(rctx, x, appliance.Errorf(appliance.CodeInternal, "internal error"))
}

// fail answers with err's problem. OPTIONS on a path that exists is no failure.
func (f *frame) fail(rctx *fasthttp.RequestCtx, x *exchange, err error) {
	e := asError(err)
	if e.Code == CodeMethodNotAllowed && x.method == fiber.MethodOptions {
		rctx.Response.Header.Add(fiber.HeaderAllow, fiber.MethodOptions)
		rctx.Response.SetStatusCode(fiber.StatusNoContent)
		return
	}
	x.code, x.cause = e.Code, e.Cause
	if f.candid && e.Cause != nil {
		shown := *e
		shown.Detail += ": " + e.Cause.Error()
		e = &shown
	}
	writeProblem(rctx, e, x.id)
}

// unreadable answers a request that fasthttp could not read. Its errors quote the request, so none is shown or logged.
func (f *frame) unreadable(rctx *fasthttp.RequestCtx, err error) {
	e := readError(err)
	x := &exchange{start: f.now(), route: "unreadable", method: "OTHER", id: uuid.NewString(), ip: clientIP(rctx, nil)}
	rctx.Response.Reset()
	rctx.Response.Header.Set(fiber.HeaderXRequestID, x.id)
	f.metrics.begin()
	f.fail(rctx, x, e)
	if c := unwrap(rctx.Conn()); c != nil && e.Code != CodeRequestTimeout {
		c.linger.Store(true)
	}
	f.note(rctx, x)
}

func (f *frame) end(rctx *fasthttp.RequestCtx, x *exchange) {
	if !x.read && unread(&rctx.Request.Header) {
		rctx.SetConnectionClose()
		if c := unwrap(rctx.Conn()); c != nil {
			c.linger.Store(true)
		}
	}
	f.note(rctx, x)
}

// note writes the access log and the metrics. It never sees the key's secret, the query string or the body.
func (f *frame) note(rctx *fasthttp.RequestCtx, x *exchange) {
	status, took := rctx.Response.StatusCode(), f.now().Sub(x.start)
	f.metrics.end(x, status, took)
	level := slog.LevelInfo
	switch {
	case status == fiber.StatusInternalServerError:
		level = slog.LevelError
	case status > fiber.StatusInternalServerError:
		level = slog.LevelWarn
	}
	if !f.logger.Enabled(f.base, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs,
		slog.String("method", x.method), slog.String("route", x.route), slog.Int("status", status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000), slog.Int("bytes", answered(rctx)),
		slog.String("request_id", x.id))
	if x.ip.IsValid() { // not on a Unix socket
		attrs = append(attrs, slog.String("client_ip", x.ip.String()))
	}
	if x.key.ID != "" {
		attrs = append(attrs, slog.String("key_id", x.key.ID))
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", string(x.code)))
	}
	if x.cause != nil {
		attrs = append(attrs, slog.String("cause", x.cause.Error()))
	}
	f.logger.LogAttrs(f.base, level, "request", attrs...)
}

// answered is the size of the answer's body, -1 for a stream.
func answered(rctx *fasthttp.RequestCtx) int {
	if rctx.Response.IsBodyStream() {
		return -1
	}
	return len(rctx.Response.Body())
}

// serve accepts connections until shutdown, and then returns nil.
func (f *frame) serve(ln net.Listener) error {
	inner := newListener(ln, f.writeTimeout)
	f.mu.Lock()
	f.listeners = append(f.listeners, inner)
	f.mu.Unlock()
	if f.stopping.Load() {
		return inner.Close()
	}
	var outer net.Listener = inner
	if f.tls != nil {
		outer = tls.NewListener(inner, f.tls)
	}
	return f.app.Server().Serve(outer)
}

// shutdown stops accepting, lets what was accepted finish, and gives that up when ctx ends, which is then the error.
func (f *frame) shutdown(ctx context.Context) error {
	f.stopping.Store(true)
	f.eachListener(func(l *listener) { _ = l.Close(); l.abort(false) })
	err := f.app.Server().ShutdownWithContext(ctx)
	f.giveUp()
	if err != nil {
		f.eachListener(func(l *listener) { l.abort(true) })
	}
	return err
}

func (f *frame) eachListener(do func(*listener)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listeners {
		do(l)
	}
}
