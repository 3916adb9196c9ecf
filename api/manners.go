package api

import (
	"fmt"
	"math"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// strictTransport makes browsers use only HTTPS for a year (RFC 6797). It excludes subdomains, which attestd does not
// control.
const strictTransport = "max-age=31536000"

// greet sets the headers that every answer has.
func (h *httpServer) greet(rctx *fasthttp.RequestCtx, requestID string) {
	header := &rctx.Response.Header
	header.Set(fiber.HeaderXRequestID, requestID)
	header.Set(fiber.HeaderXContentTypeOptions, "nosniff")
	if c := connOf(rctx); c != nil && c.secure { // RFC 6797, section 7.2: never in plain HTTP
		header.Set(fiber.HeaderStrictTransportSecurity, strictTransport)
	}
}

// setRateLimit sets the rate limit headers of draft-ietf-httpapi-ratelimit-headers-11. A request without a charge, or
// with an unlimited rate, gets neither header.
func setRateLimit(h *fasthttp.ResponseHeader, x *exchange, now time.Time) {
	if x.charge.account == nil || x.charge.rate == appliance.Unlimited {
		return
	}
	policy := "address"
	if x.key.ID != "" {
		policy = "api-key"
	}
	quota, window := x.charge.quota()
	left, until := x.charge.account.left(now, x.charge.rate)
	if x.code == appliance.CodeRateLimited {
		left, until = 0, x.wait
	}
	h.Set("RateLimit-Policy", fmt.Sprintf(`"%s";q=%d;w=%d`, policy, quota, window))
	h.Set("RateLimit", fmt.Sprintf(`"%s";r=%d;t=%d`, policy, left, wholeSeconds(until)))
}

// wholeSeconds rounds up, to at least one.
func wholeSeconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// quota returns the rate as a number of requests per number of seconds.
func (b charge) quota() (requests, seconds int) {
	if saves := b.account.saves; saves > 0 {
		return max(1, int(b.rate.PerSecond*saves.Seconds())), wholeSeconds(saves)
	}
	return max(1, int(b.rate.PerSecond)), wholeSeconds(priceOf(b.rate))
}

// left returns the number of requests left in the bucket and the time until it is full. If no request is left, it
// returns the time until the next one.
func (a *account) left(now time.Time, r appliance.Rate) (requests int, until time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	price, owed := priceOf(r), max(0, later(a.paid, now).Sub(now))
	if requests = int((a.most(price) - owed) / price); requests > 0 {
		return requests, owed
	}
	return 0, a.lacks(now, r)
}
