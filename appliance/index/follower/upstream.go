package follower

import (
	"context"
	"encoding/json"
	"strings"
)

// Upstream answers GraphQL queries of the same API. api/upstream.Client does so over HTTP.
type Upstream interface {
	// Query executes an operation and returns the response's data, which is whole: a response with errors is none.
	//
	// Errors: *QueryError where the upstream has read the operation and has refused or failed it; else
	// appliance.CodeUpstreamUnavailable, with RetryAfter where the upstream has said so (429, 503); ctx's own error
	// where that has ended.
	Query(ctx context.Context, query string, variables map[string]any) (data json.RawMessage, err error)
}

// QueryError is the answer of an upstream that refused an operation, or could not finish it.
type QueryError struct {
	Errors []ResponseError
}

// ResponseError is an error of a GraphQL response (GraphQL, section 7.1.2).
type ResponseError struct {
	Message string
	Code    string // extensions.code; empty where there is none
}

// Error joins the messages.
func (e *QueryError) Error() string {
	var messages []string
	for _, r := range e.Errors {
		messages = append(messages, r.Message)
	}
	return "the upstream refused the query: " + strings.Join(messages, "; ")
}
