package graphql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/attestd/attestd/api/graphql/answer"
	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
)

// response is the answer to a request.
type response struct {
	body   pieces // JSON
	held   *share // share of the budget for the body; nil for a small error
	status status
	errors []*document.Error

	upstream   upstream.Response // of statusForwarded
	failed     bool              // the upstream has failed, so a stale answer may be sent instead
	retryAfter time.Duration     // of statusUnavailable; zero means one second
	age        time.Duration     // of statusStale
}

// isWhole reports whether a response has data and no errors, so that it may be cached.
func (r response) isWhole() bool {
	if r.status == statusForwarded {
		return isWhole(r.upstream)
	}
	return r.status == statusOK && len(r.errors) == 0
}

// lagSeconds returns the lag of the replica in seconds, or nil if it is unknown.
func (e *Endpoint) lagSeconds() *float64 {
	if e.lag == nil {
		return nil
	}
	lag, known := e.lag()
	if !known {
		return nil
	}
	return new(float64(lag.Round(time.Millisecond).Milliseconds()) / 1000)
}

// status is the stage that a request reached; see httpStatus.
type status uint8

const (
	statusOK          status = iota // executed; data may be null if a field failed
	statusRefused                   // not executed: the operation is invalid
	statusMalformed                 // not executed: the request is invalid
	statusUnavailable               // not executed, or not completely: the index or the upstream is unavailable
	statusForwarded                 // the upstream's answer, with its status
	statusStale                     // an earlier answer of the upstream
)

// execute executes the root selections. If replica is set, the extensions contain the lag of the replica.
func (e *Endpoint) execute(ctx context.Context, root []*document.Selection, replica bool) response {
	ctx, cancel := context.WithTimeout(ctx, e.limits.Timeout)
	defer cancel()
	extensions := answer.Warnings(root)
	if replica {
		if extensions == nil {
			extensions = make(map[string]any)
		}
		// The lag is read before the snapshot is taken, so the snapshot is not older than the lag says.
		extensions["replica"] = map[string]any{"lag_seconds": e.lagSeconds()}
	}
	w := e.newWriter()
	defer w.drop() // after errors or a panic
	first := w.next(nil)
	if first == nil {
		return refused(statusUnavailable, overloaded())
	}
	last, errs := e.executor.Execute(ctx, append(first, `{"data":`...), root,
		answer.Output{Max: e.limits.MaxResponseBytes, Next: w.next})
	if len(errs) == 0 {
		return w.finish(finish(last, extensions))
	}
	r := response{errors: errs, status: statusOK,
		body: pieces{append(document.AppendErrors([]byte(`{"data":null,`), errs), '}')}}
	for _, err := range errs {
		switch err.Code() {
		case appliance.CodeTimeout, appliance.CodeReplicaUnavailable, appliance.CodeShuttingDown,
			appliance.CodeOverloaded:
			r.status = statusUnavailable
		}
	}
	return r
}

// finish appends the extensions and closes the response.
func finish(body []byte, extensions map[string]any) []byte {
	if len(extensions) > 0 {
		encoded, err := json.Marshal(extensions)
		if err != nil { // cannot happen: strings and numbers only
			panic(err)
		}
		body = append(append(body, `,"extensions":`...), encoded...)
	}
	return append(body, '}')
}

// refused returns the response to a request that is not executed.
func refused(s status, errs ...*document.Error) response {
	if code := errs[0].Code(); code == appliance.CodeOverloaded || code == appliance.CodeTimeout {
		s = statusUnavailable
	}
	return response{body: pieces{document.ErrorBody(errs...)}, status: s, errors: errs}
}
