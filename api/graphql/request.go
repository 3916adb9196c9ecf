package graphql

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
)

// request is a GraphQL request.
type request struct {
	query      string
	operation  string
	variables  []byte // JSON, or none
	extensions []byte // JSON, or none
	get        bool
	raw        rawRequest
}

// rawRequest is a request as received. It is valid only until the handler returns.
type rawRequest struct {
	bytes               []byte // the body of a POST, or the query of a GET's URL
	contentType, accept string
}

// How much of a refused body is read before the connection is closed: a client that writes its whole body before it
// reads can then see the error. A client that sends more is cut off.
const (
	drainBytes = 8 << 20
	drainTime  = 5 * time.Second
)

// bodyBytes is the largest body: query and variables as JSON, with escapes.
func (e *Endpoint) bodyBytes() int {
	return 2*(e.limits.MaxQueryBytes+e.limits.MaxVariablesBytes) + 4096
}

// readBody reads the whole body, so that the connection can be reused, or refuses it and closes the connection. Bodies are
// not decompressed, so a small one cannot become large.
func (e *Endpoint) readBody(c *fiber.Ctx) ([]byte, *document.Error) {
	limit := e.bodyBytes()
	tooLarge := document.NewError(CodeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes", limit))
	if !c.Request().IsBodyStream() {
		body := c.Request().Body()
		if len(body) > limit {
			return nil, tooLarge
		}
		return body, nil
	}
	stream := c.Context().RequestBodyStream()
	length := c.Request().Header.ContentLength()
	if length > limit {
		drain(c, stream)
		return nil, tooLarge
	}
	body, err := readAll(io.LimitReader(stream, int64(limit)+1), length)
	switch {
	case err != nil:
		c.Response().SetConnectionClose()
		return nil, document.NewError(appliance.CodeInvalidJSON, "the body ended before its length")
	case len(body) > limit: // chunked
		drain(c, stream)
		return nil, tooLarge
	}
	return body, nil
}

// readAll reads to EOF, into a buffer of the announced length, if it is known.
func readAll(r io.Reader, length int) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(r)
	}
	body := make([]byte, length)
	_, err := io.ReadFull(r, body)
	return body, err
}

func drain(c *fiber.Ctx, stream io.Reader) {
	c.Response().SetConnectionClose()
	if err := c.Context().Conn().SetReadDeadline(time.Now().Add(drainTime)); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, stream, drainBytes) // as far as it goes
}

// requestFromBody reads the parameters of section 5.1 from a POST.
func requestFromBody(body []byte) (request, *document.Error) {
	trimmed := strings.TrimLeft(string(body[:min(len(body), 64)]), " \t\r\n")
	if strings.HasPrefix(trimmed, "[") {
		return request{}, document.NewError(CodeBatchingUnsupported, "batches are not supported: send one operation a request")
	}
	var parameters struct {
		Query         *json.RawMessage `json:"query"`
		OperationName json.RawMessage  `json:"operationName"`
		Variables     json.RawMessage  `json:"variables"`
		Extensions    json.RawMessage  `json:"extensions"`
	}
	if err := json.Unmarshal(body, &parameters); err != nil {
		return request{}, document.NewError(appliance.CodeInvalidJSON, "the body must be a JSON object with the member query")
	}
	if parameters.Query == nil {
		return request{}, missingQuery()
	}
	var r request
	if !isString(*parameters.Query, &r.query) {
		return request{}, document.NewError(appliance.CodeInvalidField, "query must be a string")
	}
	if !isNull(parameters.OperationName) && !isString(parameters.OperationName, &r.operation) {
		return request{}, document.NewError(appliance.CodeInvalidField, "operationName must be a string")
	}
	if !isNull(parameters.Variables) {
		r.variables = parameters.Variables
	}
	if !isNull(parameters.Extensions) {
		r.extensions = parameters.Extensions
	}
	return r, checkObjects(r.variables, r.extensions)
}

// requestFromQuery reads the parameters of section 5.2 from a URL.
func requestFromQuery(c *fiber.Ctx) (request, *document.Error) {
	parameters := c.Context().QueryArgs()
	if !parameters.Has("query") {
		return request{}, missingQuery()
	}
	r := request{
		query:     string(parameters.Peek("query")),
		operation: string(parameters.Peek("operationName")),
		get:       true,
	}
	for _, p := range []struct {
		name string
		raw  *[]byte
	}{{"variables", &r.variables}, {"extensions", &r.extensions}} {
		raw := parameters.Peek(p.name)
		if isNull(raw) {
			continue
		}
		if !json.Valid(raw) {
			return request{}, notObject(p.name)
		}
		*p.raw = slices.Clone(raw)
	}
	return r, checkObjects(r.variables, r.extensions)
}

func missingQuery() *document.Error {
	return document.NewError(appliance.CodeMissingField, "the parameter query is required")
}

// checkObjects refuses variables and extensions that are not objects. Each is valid JSON or empty.
func checkObjects(variables, extensions []byte) *document.Error {
	for _, p := range []struct {
		name string
		raw  []byte
	}{{"variables", variables}, {"extensions", extensions}} {
		if !isNull(p.raw) && bytes.TrimLeft(p.raw, " \t\r\n")[0] != '{' {
			return notObject(p.name)
		}
	}
	return nil
}

func notObject(name string) *document.Error {
	return document.NewError(appliance.CodeInvalidField, name+" must be an object")
}

func isNull(raw []byte) bool { return len(raw) == 0 || string(bytes.TrimSpace(raw)) == "null" }

func isString(raw []byte, s *string) bool {
	return !isNull(raw) && raw[0] == '"' && json.Unmarshal(raw, s) == nil
}
