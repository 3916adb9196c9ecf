package graphql

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// request is a GraphQL request.
type request struct {
	query      string
	operation  string
	variables  []byte // JSON, or empty
	extensions []byte // JSON, or empty
	reserved   string // name of an undefined parameter, which this server ignores
	get        bool
	raw        rawRequest
	// charge is Options.Charge for this request, and must not be called after the handler has returned. Nil disables
	// charging.
	charge func(n float64)
}

// rawRequest is a request as received. It is valid only until the handler returns.
type rawRequest struct {
	bytes               []byte // the body of a POST, or the query string of a GET
	contentType, accept string
}

// drainBytes and drainTime bound how much of a refused body is read before the connection is closed. So a client that
// writes its whole body before it reads can see the error. A client that sends more is cut off.
const (
	drainBytes = 8 << 20
	prefetched = 8 << 10 // bytes of a body that fasthttp reads before it calls the handler
	drainTime  = 5 * time.Second
)

// bodyBytes returns the largest body: query and variables as JSON, with escapes.
func (e *Endpoint) bodyBytes() int {
	return 2*(e.limits.MaxQueryBytes+e.limits.MaxVariablesBytes) + 4096
}

// incomingBytes returns the memory that the body may take in addition to the part that the server has already read.
func (e *Endpoint) incomingBytes(c *fiber.Ctx) int {
	length, limit := c.Request().Header.ContentLength(), e.bodyBytes()
	switch {
	case !c.Request().IsBodyStream(), length > limit: // a longer body is refused unread
		return 0
	case length < 0: // chunked
		return limit
	case length <= prefetched:
		return 0
	}
	return length
}

// readBody reads the whole body, so that the connection can be reused, or refuses it and closes the connection. Bodies
// are not decompressed, so a small body cannot become large.
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
		return nil, document.NewError(appliance.CodeInvalidJSON, "the body is shorter than its Content-Length")
	case len(body) > limit: // chunked
		drain(c, stream)
		return nil, tooLarge
	}
	return body, nil
}

// readAll reads to EOF, into a buffer of the announced length if it is known.
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
	_, _ = io.CopyN(io.Discard, stream, drainBytes) // as far as possible
}

// parameters lists all parameters that GraphQL over HTTP, section 5.1, defines. It reserves all other names.
var parameters = []string{"query", "operationName", "variables", "extensions"}

// requestFromBody reads the parameters of section 5.1 from a POST.
func requestFromBody(body []byte) (request, *document.Error) {
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		return request{}, document.NewError(CodeBatchingUnsupported, "batches are not supported: send one operation "+
			"per request")
	}
	members, err := wire.ReadMembers(body)
	if err != nil {
		return request{}, refusedJSON(err)
	}
	var r request
	if r.reserved, err = reservedName(maps.Keys(members)); err != nil {
		return request{}, refusedJSON(err)
	}
	query, has := members["query"]
	if !has || isNull(query) {
		return request{}, missingQuery(members["extensions"])
	}
	if !isString(query, &r.query) {
		return request{}, document.NewError(appliance.CodeInvalidField, "query must be a string")
	}
	if name := members["operationName"]; !isNull(name) && !isString(name, &r.operation) {
		return request{}, document.NewError(appliance.CodeInvalidField, "operationName must be a string")
	}
	if variables := members["variables"]; !isNull(variables) {
		r.variables = variables
	}
	if extensions := members["extensions"]; !isNull(extensions) {
		r.extensions = extensions
	}
	return r, checkObjects(r.variables, r.extensions)
}

// requestFromQuery reads the parameters of section 5.2 from a URL.
func requestFromQuery(c *fiber.Ctx) (request, *document.Error) {
	given, failed := queryParameters(c)
	if failed != nil {
		return request{}, failed
	}
	r := request{query: given["query"], operation: given["operationName"], get: true}
	var err error
	if r.reserved, err = reservedName(maps.Keys(given)); err != nil {
		return request{}, refusedJSON(err)
	}
	if _, has := given["query"]; !has {
		return request{}, missingQuery([]byte(given["extensions"]))
	}
	for name, raw := range map[string]*[]byte{"variables": &r.variables, "extensions": &r.extensions} {
		value := []byte(given[name])
		if isNull(value) {
			continue
		}
		_, err := wire.ReadMembers(value)
		switch {
		case appliance.CodeOf(err) == appliance.CodeInvalidJSON:
			return request{}, notObject(name)
		case err != nil:
			return request{}, refusedJSON(err)
		}
		*raw = value
	}
	return r, nil
}

func queryParameters(c *fiber.Ctx) (given map[string]string, failed *document.Error) {
	given = make(map[string]string)
	c.Context().QueryArgs().VisitAll(func(key, value []byte) {
		name := string(key)
		if _, again := given[name]; again {
			failed = isRepeated(name)
		}
		if given[name] = string(value); !utf8.Valid(value) {
			failed = document.NewError(appliance.CodeInvalidField, document.Show(name)+" is not UTF-8")
		}
	})
	return given, failed
}

// reservedName returns a name that is not a parameter, or "". It refuses a parameter in another case, because some JSON
// parsers ignore case.
func reservedName(names iter.Seq[string]) (reserved string, err error) {
	for name := range names {
		if slices.Contains(parameters, name) {
			continue
		}
		reserved = name
		if slices.ContainsFunc(parameters, func(p string) bool { return strings.EqualFold(p, name) }) {
			return name, appliance.Errorf(appliance.CodeUnknownField, "unknown parameter %s; names are case-sensitive",
				document.Show(name))
		}
	}
	return reserved, nil
}

// refusedJSON returns an error of package wire in the form of GraphQL.
func refusedJSON(err error) *document.Error {
	e, ok := errors.AsType[*appliance.Error](err)
	switch {
	case !ok:
		return document.NewError(appliance.CodeInternal, "internal error")
	case e.Code == appliance.CodeInvalidJSON:
		return document.NewError(appliance.CodeInvalidJSON,
			"the body must be a UTF-8 JSON object with the member query")
	}
	return document.NewError(e.Code, e.Detail)
}

func isRepeated(name string) *document.Error {
	return document.NewError(appliance.CodeDuplicateField, document.Show(name)+" occurs twice")
}

// missingQuery is the error for a request without a query. A request with a query's hash instead (automatic persisted
// queries) gets the message that makes the links of Apollo and urql send the query itself, and no more hashes.
func missingQuery(extensions []byte) *document.Error {
	if members, err := wire.ReadMembers(extensions); err == nil && !isNull(members["persistedQuery"]) {
		return document.NewError(CodePersistedQueryNotSupported, "PersistedQueryNotSupported")
	}
	return document.NewError(appliance.CodeMissingField, "the parameter query is required")
}

// checkObjects refuses variables and extensions that are not objects. Each must be valid JSON or empty.
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
