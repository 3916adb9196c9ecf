package api

import (
	"encoding/json"
	"mime"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

// checkJSON returns CodeUnsupportedMediaType unless the Content-Type is JSON. JSON has no charset parameter (RFC 8259,
// section 11), but many clients send charset=utf-8.
func checkJSON(h *fasthttp.RequestHeader) error {
	given := string(h.ContentType())
	if given == "application/json" {
		return nil
	}
	kind, parameters, err := mime.ParseMediaType(given)
	charset, has := parameters["charset"]
	if err != nil || kind != "application/json" || has && !strings.EqualFold(charset, "utf-8") {
		return appliance.Errorf(CodeUnsupportedMediaType, "the body must be application/json in UTF-8")
	}
	return nil
}

// checkEncoding refuses any Content-Encoding header, even an empty one. Decompression could turn a small body into a
// large one.
func checkEncoding(h *fasthttp.RequestHeader) error {
	if len(h.PeekAll(fiber.HeaderContentEncoding)) > 0 {
		return appliance.Errorf(CodeUnsupportedMediaType,
			"the body must not be compressed: send it without Content-Encoding")
	}
	return nil
}

// Body returns the body of a request as it was sent, for the handlers of routes with a BodyLimit. fiber's Ctx.Body
// would decompress it.
func Body(c *fiber.Ctx) []byte { return exchangeOf(c.Context()).body }

// receiveJSON reads the body, so that Body returns it.
func receiveJSON(c *fiber.Ctx, x *exchange, limit int64) error {
	rctx := c.Context()
	if err := checkJSON(&rctx.Request.Header); err != nil {
		return err
	}
	body, err := readBody(rctx, x, limit)
	x.body = body
	return err
}

// sendJSON answers with v as JSON.
func sendJSON(c *fiber.Ctx, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return sendBytes(c, status, body)
}

// sendBytes answers with encoded JSON. Caches must not store it: it is for one caller, or soon out of date.
func sendBytes(c *fiber.Ctx, status int, body []byte) error {
	c.Context().Response.Header.SetContentType("application/json")
	c.Set(fiber.HeaderCacheControl, "no-store")
	c.Context().Response.SetBodyRaw(body)
	c.Status(status)
	return nil
}
