package api

import (
	"net/netip"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// exchange is the state of one request and its answer. It lives as long as the request's handler.
type exchange struct {
	id     string
	start  time.Time
	ip     netip.Addr
	route  string // the pattern, or routeUnmatched
	method string
	keyID  string           // for the log; also set for a key that is not valid for the route
	key    appliance.APIKey // zero without a key that is valid for the route
	charge charge
	wait   time.Duration  // until the client may retry after a refusal for its rate
	body   []byte         // on routes with a BodyLimit
	probe  bool           // on the admin socket: a status poll, which is logged at debug level only
	read   bool           // the body was read to its end
	code   appliance.Code // of the answered problem
	cause  error          // of the answered problem; for the log
}

type exchangeKey struct{}

func exchangeOf(rctx *fasthttp.RequestCtx) *exchange {
	return rctx.UserValue(exchangeKey{}).(*exchange)
}

func (h *httpServer) begin(rctx *fasthttp.RequestCtx) *exchange {
	header := &rctx.Request.Header
	x := &exchange{start: h.now(), route: routeUnmatched, method: string(header.Method())}
	if !isMethod(x.method) {
		// fiber answers unknown methods with a text of its own. It knows TRACE, and no route accepts it.
		x.method = "OTHER"
		header.SetMethod(fiber.MethodTrace)
	}
	x.id = requestID(header.Peek(fiber.HeaderXRequestID))
	x.ip = clientIP(rctx, h.proxies)
	rctx.SetUserValue(exchangeKey{}, x)
	if c := connOf(rctx); c != nil {
		c.raw.working.Store(true)
	}
	h.greet(rctx, x.id)
	h.pages.allow(rctx)
	h.metrics.begin()
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

// requestID returns the caller's X-Request-Id if it is a short token, so that a request can be followed through logs.
// Otherwise it returns a new UUID.
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

// end finishes the answer's headers and logs the exchange. If the body was not fully read or came in chunks, it closes
// the connection after the answer: the bytes that follow cannot safely be taken for a request.
func (h *httpServer) end(rctx *fasthttp.RequestCtx, x *exchange) {
	c := connOf(rctx)
	if !x.read && unread(&rctx.Request.Header) || c != nil && c.closing() {
		rctx.SetConnectionClose()
	}
	if c != nil {
		if h.connections.answered(c.raw, x.key.ID) {
			rctx.SetConnectionClose()
		}
		if rctx.Response.ConnectionClose() || rctx.Request.Header.ConnectionClose() {
			c.raw.linger.Store(true)
		}
	}
	now := h.now()
	setRateLimit(&rctx.Response.Header, x, now)
	setDate(&rctx.Response.Header, now)
	h.logRequest(rctx, x, now)
}
