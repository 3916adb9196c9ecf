package graphql

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
)

// A request is forwarded byte for byte, with the upstream's credentials. The upstream must therefore parse it like this
// server. A request that parsers of JSON or URLs may read differently is refused. Otherwise a mutation could pass for a
// query, or one query's answer could be cached as another's.

// checkForwarded checks a forwarded operation as far as possible without the upstream's schema.
func (e *Endpoint) checkForwarded(op *operation) *document.Error {
	if err := op.CheckName(); err != nil {
		return err
	}
	if e.noIntrospection && op.Introspects() {
		return introspectionOff()
	}
	return nil
}

// forwardedJob returns a job that queries the upstream.
func (e *Endpoint) forwardedJob(op *operation, r request, given map[string]any) (job, []*document.Error) {
	message := r.message()
	message.MaxResponse = int64(e.limits.MaxResponseBytes)
	j := job{
		run:      e.forwards.bounded(func(ctx context.Context) response { return e.forward(ctx, message) }),
		stale:    e.proxy.stale,
		shareKey: message.ContentType + "\n" + message.Accept,
	}
	if op.Cached == nil {
		return j, nil
	}
	extensions, err := readObject(r.extensions)
	if err != nil {
		return j, []*document.Error{document.NewError(appliance.CodeInvalidField, "extensions must be an object")}
	}
	j.variant = string(canonicalJSON(extensions))
	var errs []*document.Error
	j.variables, errs = op.Cached.CoerceVariables(e.schema, given)
	return j, errs
}

// forward queries the upstream. The answer counts against the budget from its arrival.
func (e *Endpoint) forward(ctx context.Context, message upstream.Request) response {
	held, kept := &share{budget: e.budget}, false
	defer func() {
		if !kept {
			held.release()
		}
	}()
	message.Room = held.grow
	r := e.proxy.forward(ctx, message)
	if r.status == statusForwarded {
		r.held, kept = held, true
	}
	return r
}

// message returns a copy of the request to forward.
func (r request) message() upstream.Request {
	m := upstream.Request{Method: http.MethodPost, Accept: strings.Clone(r.raw.accept)}
	if r.get {
		m.Method, m.Query = http.MethodGet, string(r.raw.bytes)
	} else {
		m.Body, m.ContentType = bytes.Clone(r.raw.bytes), strings.Clone(r.raw.contentType)
	}
	return m
}

// checkForwardable refuses a request that the upstream may read differently.
func (r request) checkForwardable() *document.Error {
	if r.reserved != "" {
		return document.NewError(appliance.CodeUnknownField, fmt.Sprintf("%s is not a GraphQL over HTTP parameter: a "+
			"forwarded request can only have %s",
			document.Show(r.reserved), strings.Join(parameters, ", ")))
	}
	if r.get {
		if _, err := url.ParseQuery(string(r.raw.bytes)); err != nil ||
			bytes.ContainsFunc(r.raw.bytes, unicode.IsControl) {
			return document.NewError(appliance.CodeInvalidField, "the URL's query is malformed")
		}
	}
	if strings.ContainsFunc(r.raw.accept+r.raw.contentType, unicode.IsControl) {
		return document.NewError(appliance.CodeInvalidField, "a header has a control character")
	}
	return nil
}
