package api

import (
	"net/netip"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// exchange is one request and its answer, as the access log and the metrics see them. It lives as long as its handler.
type exchange struct {
	id     string
	start  time.Time
	ip     netip.Addr
	route  string // the pattern, or routeUnmatched
	method string
	keyID  string           // of the API key, also of one that may not be used here; for the log
	key    appliance.APIKey // zero without one that may be used here
	bill   bill
	wait   time.Duration  // until the client may ask again, where it was refused for its rate
	body   []byte         // of a route with a BodyLimit
	probe  bool           // of the admin socket: it is asked again and again, and says nothing that is to be kept
	read   bool           // the body was read to its end
	code   appliance.Code // of the problem that was answered
	cause  error          // of that problem; for the log
}

type exchangeKey struct{}

func exchangeOf(rctx *fasthttp.RequestCtx) *exchange {
	return rctx.UserValue(exchangeKey{}).(*exchange)
}

func (h *httpServer) begin(rctx *fasthttp.RequestCtx) *exchange {
	header := &rctx.Request.Header
	x := &exchange{start: h.now(), route: routeUnmatched, method: string(header.Method())}
	if !isMethod(x.method) {
		// fiber answers unknown methods with a text of its own. It knows TRACE, which no route has.
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

// requestID returns the caller's X-Request-Id if it is a short token, so that a request can be followed through logs. If
// not, it makes a new id.
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

// end logs the exchange. If the body may not have been read to its end, or came in chunks, it closes the connection after the
// answer: what follows cannot be taken for a request then.
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
