package api

import (
	"bytes"
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
	if len(h.Peek("Content-Encoding")) > 0 {
		return appliance.Errorf(CodeUnsupportedMediaType, "the body must not be compressed")
	}
	given := string(h.ContentType())
	if given == "application/json" {
		return nil
	}
	kind, parameters, err := mime.ParseMediaType(given)
	charset, has := parameters["charset"]
	if err != nil || kind != "application/json" || has && !strings.EqualFold(charset, "utf-8") {
		return appliance.Errorf(CodeUnsupportedMediaType, "the body must be application/json, in UTF-8")
	}
	return nil
}

// receiveJSON reads the body, so that c.Body() returns it.
func receiveJSON(c *fiber.Ctx, x *exchange, limit int64) error {
	rctx := c.Context()
	if err := checkJSON(&rctx.Request.Header); err != nil {
		return err
	}
	body, err := readBody(rctx, x, limit)
	if err != nil {
		return err
	}
	rctx.Request.SetBodyRaw(body)
	return nil
}

// unmarshalStrict reads one JSON value without unknown members.
func unmarshalStrict(body []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil {
		return appliance.Errorf(appliance.CodeInvalidJSON, "%s", err)
	}
	if decoder.More() {
		return appliance.Errorf(appliance.CodeInvalidJSON, "there is more after the JSON object")
	}
	return nil
}

// sendJSON answers with v as JSON.
func sendJSON(c *fiber.Ctx, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return sendBytes(c, status, body)
}

// sendBytes answers with JSON that is encoded already. Caches must not store it: it is for one caller, or soon out of date.
func sendBytes(c *fiber.Ctx, status int, body []byte) error {
	c.Context().Response.Header.SetContentType("application/json")
	c.Set(fiber.HeaderCacheControl, "no-store")
	c.Context().Response.SetBodyRaw(body)
	c.Status(status)
	return nil
}
