package api

import (
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
)

// Traced is a request that is traced.
type Traced struct {
	Method, Route    string
	Begin            time.Time
	RequestID, KeyID string
	Parent, State    string // headers traceparent and tracestate (W3C Trace Context)
}

func tracedOf(c *fiber.Ctx) Traced {
	x := exchangeOf(c.Context())
	return Traced{
		Method: x.method, Route: x.route, Begin: x.start, RequestID: x.id, KeyID: x.keyID,
		Parent: strings.Clone(c.Get("Traceparent")), State: strings.Clone(c.Get("Tracestate")),
	}
}
