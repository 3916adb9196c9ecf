package graphql

import (
	"crypto/sha256"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
)

// Media types of responses. With mediaGraphQL, the HTTP status shows whether the operation was executed. With mediaJSON
// it is 200 for every well-formed request, as older clients expect.
const (
	mediaGraphQL = "application/graphql-response+json"
	mediaJSON    = "application/json"

	typeGraphQL = mediaGraphQL + "; charset=utf-8"
	typeJSON    = mediaJSON + "; charset=utf-8"
)

const allowedMethods = "GET, HEAD, POST, OPTIONS"

// isGet reports whether a request is a GET or HEAD. HEAD is a GET without a response body (RFC 9110, section 9.3.2);
// the server omits the body.
func isGet(c *fiber.Ctx) bool {
	return c.Method() == fiber.MethodGet || c.Method() == fiber.MethodHead
}

// Handle is the handler of the GraphQL route, for all methods. It always returns nil. If it executes no operation, it
// sends {"errors": [{"message", "extensions": {"code"}}]}.
//
// The app should set StreamRequestBody, so that a body that is too large is refused before it is read.
func (e *Endpoint) Handle(c *fiber.Ctx) error {
	incoming := share{budget: e.bodies}
	defer incoming.release()
	if !incoming.grow(e.incomingBytes(c)) {
		drain(c, c.Context().RequestBodyStream())
		return refuseOverloaded(c)
	}
	body, err := e.readBody(c)
	switch {
	case err != nil && err.Code() == CodeBodyTooLarge:
		return refuse(c, http.StatusRequestEntityTooLarge, err)
	case err != nil:
		return refuse(c, http.StatusBadRequest, err)
	case c.Method() == fiber.MethodOptions:
		c.Set(fiber.HeaderAllow, allowedMethods)
		return c.SendStatus(http.StatusNoContent)
	case !isGet(c) && c.Method() != fiber.MethodPost:
		c.Set(fiber.HeaderAllow, allowedMethods)
		return refuse(c, http.StatusMethodNotAllowed,
			document.NewError(CodeMethodNotAllowed, "only GET, HEAD and POST are allowed"))
	}
	e.vary(c)
	contentType, ok := negotiate(list(c, fiber.HeaderAccept))
	if !ok && (e.subscribe == nil || !takesEvents(list(c, fiber.HeaderAccept))) {
		return refuse(c, http.StatusNotAcceptable, document.NewError(CodeNotAcceptable, "the supported response "+
			"types are "+mediaGraphQL+" or "+mediaJSON))
	}
	if ok {
		c.Response().Header.SetContentType(contentType)
	}
	if chosen, plain := codingOf(c); chosen == coding.Identity && !plain {
		return refuse(c, http.StatusNotAcceptable, notAcceptable())
	}
	return e.answerHTTP(c, body, !ok)
}

// answerHTTP answers a GET, HEAD or POST after content negotiation. streamed means that the client accepts only
// text/event-stream.
func (e *Endpoint) answerHTTP(c *fiber.Ctx, body []byte, streamed bool) error {
	get := isGet(c)
	raw := body
	if get {
		raw = c.Context().URI().QueryString()
	} else if err := checkContentType(c); err != nil {
		return refuse(c, http.StatusUnsupportedMediaType, err)
	}
	hash := cacheKey(sha256.Sum256(raw))
	if get {
		hash[0] ^= 0xff // the same bytes mean another request in a URL
	}
	if entry := e.cache.lookupRequest(hash); entry != nil && !streamed {
		return e.sendCached(c, entry)
	}
	var r request
	var err *document.Error
	if get {
		r, err = requestFromQuery(c)
	} else {
		r, err = requestFromBody(body)
	}
	switch {
	case err != nil && err.Code() == CodePersistedQueryNotSupported &&
		string(c.Response().Header.ContentType()) != typeGraphQL:
		return refuse(c, http.StatusOK, err) // like Apollo's servers
	case err != nil:
		return refuse(c, http.StatusBadRequest, err)
	}
	r.raw = rawRequest{bytes: raw, contentType: c.Get(fiber.HeaderContentType), accept: list(c, fiber.HeaderAccept)}
	r.charge = func(n float64) { e.charge(c, n) }
	if streamed || e.follows(c.UserContext(), r) {
		return e.stream(c, r, hash)
	}
	resp, entry := e.answer(c.UserContext(), r, hash)
	switch {
	case entry != nil:
		return e.sendCached(c, entry)
	case resp.status == statusForwarded:
		return e.sendForwarded(c, resp)
	case resp.status == statusStale:
		return e.sendStale(c, resp)
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	c.Status(httpStatus(c, r, resp))
	return e.sendLight(c, resp)
}

// sendLight sends an answer, or 304 if the client already has it.
func (e *Endpoint) sendLight(c *fiber.Ctx, r response) error {
	if !e.validate(c, r) {
		return e.sendBody(c, r)
	}
	size := r.body.size()
	if r.held != nil {
		e.reuse(r)
	}
	return notModified(c, size)
}

// sendCached sends a cached answer with its age (RFC 9111, section 5).
func (e *Endpoint) sendCached(c *fiber.Ctx, entry *cacheEntry) error {
	h := &c.Response().Header
	h.Set(fiber.HeaderCacheControl, e.caching("max-age="+strconv.Itoa(int(entry.ttl/time.Second))))
	h.Set(fiber.HeaderAge, strconv.Itoa(int(entry.age(e.now())/time.Second)))
	h.Set(fiber.HeaderETag, entry.tag)
	if matches(list(c, fiber.HeaderIfNoneMatch), entry.tag) {
		return notModified(c, entry.body.size())
	}
	if chosen := code(c, entry.body.size()); chosen != coding.Identity {
		coded := e.codedEntry(c.UserContext(), entry, chosen)
		if _, plain := codingOf(c); coded == nil && !plain {
			return refuseOverloaded(c)
		}
		if coded != nil {
			entry = coded
			setCoding(c, chosen)
		}
	}
	if !entry.hold(e.budget) {
		return refuseOverloaded(c)
	}
	send(c, entry.body, entry.release)
	return nil
}

// httpStatus returns the status according to GraphQL over HTTP, section 6.4.
func httpStatus(c *fiber.Ctx, r request, resp response) int {
	for _, err := range resp.errors {
		switch err.Code() {
		case document.CodeOperationUnsupported:
			if r.get { // section 6.2.1: GET must not request a mutation
				c.Set(fiber.HeaderAllow, fiber.MethodPost)
				return http.StatusMethodNotAllowed
			}
		case appliance.CodeInternal:
			return http.StatusInternalServerError
		}
	}
	switch {
	case resp.status == statusMalformed:
		return http.StatusBadRequest
	case resp.status == statusUnavailable:
		setRetryAfter(c, resp.retryAfter)
		return http.StatusServiceUnavailable
	case resp.status == statusRefused && string(c.Response().Header.ContentType()) == typeGraphQL:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// setRetryAfter sets Retry-After, to at least one second.
func setRetryAfter(c *fiber.Ctx, d time.Duration) {
	c.Set(fiber.HeaderRetryAfter, strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}

// refuse sends an error for a request that does not conform to GraphQL over HTTP.
func refuse(c *fiber.Ctx, status int, err *document.Error) error {
	if string(c.Response().Header.ContentType()) != typeGraphQL { // not negotiated yet
		c.Response().Header.SetContentType(typeJSON)
	}
	c.Set(fiber.HeaderCacheControl, "no-store")
	// These headers describe the answer that is not sent.
	for _, name := range []string{fiber.HeaderAge, fiber.HeaderContentEncoding, fiber.HeaderETag} {
		c.Response().Header.Del(name)
	}
	c.Status(status)
	c.Response().SetBodyRaw(document.ErrorBody(err))
	return nil
}

// checkContentType accepts application/json in UTF-8 (section 5.3), uncompressed.
func checkContentType(c *fiber.Ctx) *document.Error {
	header := c.Get(fiber.HeaderContentType)
	if len(c.Request().Header.PeekAll(fiber.HeaderContentEncoding)) > 0 {
		return document.NewError(CodeUnsupportedMediaType, "the body must not be compressed")
	}
	if header == mediaJSON {
		return nil
	}
	media, params, err := mime.ParseMediaType(header)
	if err != nil || media != mediaJSON {
		return document.NewError(CodeUnsupportedMediaType, "the Content-Type must be "+mediaJSON)
	}
	if charset := strings.ToLower(params["charset"]); charset != "" && charset != "utf-8" && charset != "utf8" &&
		charset != "us-ascii" {
		return document.NewError(CodeUnsupportedMediaType, "the charset must be utf-8")
	}
	return nil
}

// negotiate chooses the media type of the answer from an Accept header (RFC 9110, section 12.5.1). Without a header, or
// with */*, it chooses application/json, which older clients expect.
func negotiate(accept string) (contentType string, ok bool) {
	switch accept {
	case "", "*/*", mediaJSON:
		return typeJSON, true
	case mediaGraphQL:
		return typeGraphQL, true
	}
	var quality [2]float64     // of mediaJSON and mediaGraphQL
	specific := [2]int{-1, -1} // specificity of the media range that set the quality
	for _, part := range strings.Split(accept, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil || !acceptsUTF8(params) {
			continue
		}
		q := 1.0
		if s, given := params["q"]; given {
			if q, err = strconv.ParseFloat(s, 64); err != nil {
				continue
			}
		}
		for i, offer := range [2]string{mediaJSON, mediaGraphQL} {
			if narrow := slices.Index([]string{"*/*", "application/*", offer}, media); narrow > specific[i] {
				quality[i], specific[i] = q, narrow
			}
		}
	}
	named := specific[1] == 2
	switch {
	case quality[0] <= 0 && quality[1] <= 0:
		return "", false
	case quality[1] > quality[0], quality[1] == quality[0] && named:
		return typeGraphQL, true
	}
	return typeJSON, true
}

func acceptsUTF8(params map[string]string) bool {
	charset := strings.ToLower(params["charset"])
	return charset == "" || charset == "utf-8" || charset == "utf8"
}
