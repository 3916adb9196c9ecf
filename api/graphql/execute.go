package graphql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// response is what an operation is answered with.
type response struct {
	body     []byte // JSON
	status   status
	errors   []*Error
	reusable bool // the body may be given back by Endpoint.reuse

	upstream   upstream.Response // of statusForwarded
	failed     bool              // the upstream has failed, so an answer past its ttl may do instead
	retryAfter time.Duration     // of statusUnavailable; zero means a second
	age        time.Duration     // of statusStale
}

// isWhole tells whether an answer may be shared: it has data and no errors.
func (r response) isWhole() bool {
	if r.status == statusForwarded {
		return isWhole(r.upstream)
	}
	return r.status == statusOK && len(r.errors) == 0
}

// maxReused is the capacity up to which buffers are kept for the next response.
const maxReused = 1 << 20

// lagSeconds is nil where the lag is not known.
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

// buffer returns an empty buffer for a response.
func (e *Endpoint) buffer() []byte {
	if b, ok := e.buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 32<<10)
}

// reuse gives back the body of a response that has been copied, and that nobody else has.
func (e *Endpoint) reuse(r response) {
	if r.reusable && cap(r.body) <= maxReused {
		e.buffers.Put(&r.body)
	}
}

// status tells how far a request has come, which decides the HTTP status; see Endpoint.httpStatus.
type status uint8

const (
	statusOK          status = iota // executed; data may be null where a field failed
	statusRefused                   // not executed: the operation is at fault
	statusMalformed                 // not executed: the request is at fault
	statusUnavailable               // not executed, or not to the end: the appliance is at fault for now
	statusForwarded                 // answered by the upstream, whose status it has
	statusStale                     // answered with what the upstream said before
)

// execute runs an operation. replica says that the response tells the replica's lag.
func (e *Endpoint) execute(ctx context.Context, root []*selection, replica bool) response {
	ctx, cancel := context.WithTimeout(ctx, e.limits.Timeout)
	defer cancel()
	extensions := warnings(root)
	if replica {
		if extensions == nil {
			extensions = make(map[string]any)
		}
		// Before the snapshot is taken: it is no older than this says.
		extensions["replica"] = map[string]any{"lag_seconds": e.lagSeconds()}
	}
	x := &execution{endpoint: e, ctx: ctx, max: e.limits.MaxResponseBytes, buf: e.buffer()}
	x.buf = append(x.buf, `{"data":`...)
	errs := x.run(root)
	if len(errs) == 0 {
		return response{body: x.finish(extensions), reusable: true}
	}
	r := response{errors: errs, status: statusOK}
	for _, err := range errs {
		switch err.code() {
		case appliance.CodeTimeout, appliance.CodeReplicaUnavailable, appliance.CodeShuttingDown:
			r.status = statusUnavailable
		}
	}
	// All root fields that read data are non-null: an error in one is an error of all.
	r.body = append(appendErrors([]byte(`{"data":null,`), errs), '}')
	return r
}

// execution writes the response of one operation, from one snapshot of the index.
type execution struct {
	endpoint *Endpoint
	ctx      context.Context
	snap     snapshot
	buf      []byte
	max      int // bytes of buf
}

var errResponseTooLarge = errors.New("response too large")

func (x *execution) run(root []*selection) []*Error {
	reads := false
	for _, s := range root {
		reads = reads || !s.meta && s.def.Name != "__typename"
	}
	if !reads {
		return x.object(root)
	}
	var errs []*Error
	err := x.endpoint.index.View(x.ctx, func(snap index.Snapshot) error {
		x.snap = snap
		errs = x.object(root)
		return nil
	})
	if err != nil {
		errs = []*Error{x.failure(err, root[0])}
	}
	return errs
}

// object writes the root object.
func (x *execution) object(root []*selection) []*Error {
	var errs []*Error
	x.buf = append(x.buf, '{')
	for i, s := range root {
		x.buf = s.appendKey(x.buf, i)
		if err := x.rootField(s); err != nil {
			errs = append(errs, x.failure(err, s))
			if x.ctx.Err() != nil {
				break
			}
		}
	}
	x.buf = append(x.buf, '}')
	return errs
}

// rootField answers a root field by itself, in one of three ways: introspection, rows or figures.
func (x *execution) rootField(s *selection) error {
	query, isRows := rowQueries[s.def.Name]
	switch {
	case s.def.Name == "__typename":
		x.buf = append(x.buf, `"Query"`...)
		return nil
	case s.meta:
		return x.introspect(s)
	case isRows:
		return x.rowList(query, s)
	}
	return x.figure(s)
}

// failure turns what stopped a root field into an error of the response.
func (x *execution) failure(err error, s *selection) *Error {
	switch {
	case errors.Is(err, errResponseTooLarge):
		return newError(CodeResponseTooLarge, fmt.Sprintf("the response is larger than %d bytes: ask for fewer rows (p_limit) or fields", x.max)).
			at(s.node.Position).under(s.key)
	case x.ctx.Err() != nil:
		return newError(appliance.CodeTimeout, "the query took too long: ask for fewer rows (p_limit) or fields").at(s.node.Position).under(s.key)
	}
	if appliance.CodeOf(err) == appliance.CodeInternal {
		x.endpoint.log.Error("graphql query failed", "field", s.def.Name, "error", err)
	}
	return fromDomain(err, s)
}

// finish closes the response.
func (x *execution) finish(extensions map[string]any) []byte {
	if len(extensions) > 0 {
		encoded, err := json.Marshal(extensions)
		if err != nil { // strings and numbers only
			panic(err)
		}
		x.buf = append(append(x.buf, `,"extensions":`...), encoded...)
	}
	return append(x.buf, '}')
}
