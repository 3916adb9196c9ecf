package follower

import (
	"context"
	"encoding/json"
	"strings"
)

// Upstream answers GraphQL queries of the same API. api/upstream.Client does so over HTTP.
type Upstream interface {
	// Query executes an operation and returns the response's data. A response with errors counts as failed and returns
	// no data.
	//
	// Errors: *QueryError if the upstream read the operation and refused or failed it; ctx's error if ctx has ended;
	// otherwise appliance.CodeUpstreamUnavailable, with RetryAfter if the upstream sent one (429, 503).
	Query(ctx context.Context, query string, variables map[string]any) (data json.RawMessage, err error)
}

// QueryError is the error of an upstream that refused an operation or could not finish it.
type QueryError struct {
	Errors []ResponseError
}

// ResponseError is an error of a GraphQL response (GraphQL, section 7.1.2).
type ResponseError struct {
	Message string
	Code    string // extensions.code; may be empty
}

// Error joins the messages.
func (e *QueryError) Error() string {
	var messages []string
	for _, r := range e.Errors {
		messages = append(messages, r.Message)
	}
	return "the upstream refused the query: " + strings.Join(messages, "; ")
}
