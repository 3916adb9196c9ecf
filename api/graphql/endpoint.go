// Package graphql answers GraphQL reads (GraphQL, October 2021 and the draft's introspection) over cross-chain
// transfers. It answers from an index, or from an upstream. With both, it forwards only the operations that the index
// cannot answer.
//
// This package implements the protocol: "GraphQL over HTTP" (graphql.github.io/graphql-over-http), the cache of
// @cached, and forwarding to an upstream. Package document reads documents, package answer executes them. A request
// passes through:
//
//   - limits on its size (http.go);
//   - the cache, if its operation has @cached (cache.go);
//   - parsing, limits on the document and validation, with the result cached for later requests
//     with the same text (document);
//   - coercion of its variables, a limit on its cost (document) and execution (answer); or forwarding (forward.go,
//     proxy.go).
package graphql

import (
	"context"
	_ "embed" // the schema
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vektah/gqlparser/v2/ast"
	"golang.org/x/sync/singleflight"

	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/api/graphql/answer"
	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/index"
)

// Schema is the schema in the schema definition language.
//
//go:embed schema.graphql
var Schema string

// Options configure an Endpoint. Limits and sizes have no defaults here; New refuses zero values.
type Options struct {
	// Index answers operations that are valid in the schema. If Upstream is also set, all other operations are
	// forwarded, each as a whole.
	Index index.Index
	// Upstream answers all operations if Index is nil. At least one of Index and Upstream is required.
	Upstream *upstream.Client
	// StaleIfError is how long after its ttl a cached answer of the upstream may be sent while the upstream is
	// unavailable. Zero disables stale answers.
	StaleIfError time.Duration
	// Lag returns how far the index may be behind, for requests that ask for it (extensions.replica). Nil means
	// unknown.
	Lag func() (lag time.Duration, known bool)

	Limits Limits

	// Executions bounds concurrent parsing and execution. Zero means the number of processors, or one less, but at
	// least one, while Attesting returns true.
	Executions int
	// Attesting reports whether attestations are being signed, or were a moment ago. Nil means always.
	Attesting func() bool
	// AnswerBytes bounds the answers that are being made or sent.
	AnswerBytes int64
	// Charge is called for a request that costs as much as n additional usual ones: before execution, and again once
	// the size of its answer is known. Nil disables charging.
	Charge func(c *fiber.Ctx, n float64)

	// Subscribe answers with a stream of rows; it needs Index. Nil means that subscriptions are not supported.
	Subscribe func(c *fiber.Ctx, rows events.Rows) error

	// CacheBytes bounds the cached answers of @cached.
	CacheBytes int64

	// NoIntrospection refuses __schema and __type. The schema is public nevertheless.
	NoIntrospection bool

	// RequireKey means that answers require an API key, so other caches must not share them.
	RequireKey bool

	Registry prometheus.Registerer // of the endpoint's metrics; nil means none
	Log      *slog.Logger          // nil means no log
	Now      func() time.Time      // nil means time.Now

	breakerOpen time.Duration // zero means defaultBreakerOpen; for tests
	line        queueLimit    // zero means defaultLine; for tests
}

// Limits bound the cost of one request.
type Limits = document.Limits

// documentBytes bounds the cached parsed documents, in bytes.
const documentBytes = 8 << 20

// check returns an error that names all missing options.
func (o Options) check() error {
	if o.Index == nil && o.Upstream == nil {
		return errors.New("neither an index nor an upstream")
	}
	missing := o.Limits.Unset()
	if o.AnswerBytes <= 0 {
		missing = append(missing, "AnswerBytes")
	}
	if o.CacheBytes <= 0 {
		missing = append(missing, "CacheBytes")
	}
	if len(missing) > 0 {
		return fmt.Errorf("graphql.Options: %s must be set", strings.Join(missing, ", "))
	}
	return nil
}

// Endpoint answers GraphQL requests. It is safe for concurrent use.
type Endpoint struct {
	executor        *answer.Executor // nil without an index
	proxy           *proxy           // nil without an upstream
	lag             func() (time.Duration, bool)
	limits          Limits
	schema          *ast.Schema
	cache           *cache
	operations      *otter.Cache[operationKey, *operation]
	pieces          sync.Pool // of *[pieceBytes]byte
	executions      *slots
	forwards        *slots
	budget          *budget // for answers
	bodies          *budget // for request bodies
	charge          func(*fiber.Ctx, float64)
	subscribe       func(*fiber.Ctx, events.Rows) error // nil without subscriptions
	noIntrospection bool
	keyed           bool // Options.RequireKey
	encoders        coding.Encoders
	encodings       singleflight.Group // of cache.entries
	log             *slog.Logger
	now             func() time.Time
}

// operationKey is a document and the name of one of its operations.
type operationKey struct{ query, name string }

// New returns an Endpoint. It fails if an option is missing, or if Registry already has its metrics.
func New(o Options) (*Endpoint, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	e := &Endpoint{
		lag: o.Lag, limits: o.Limits, noIntrospection: o.NoIntrospection, keyed: o.RequireKey,
		log: o.Log, now: o.Now, charge: o.Charge, subscribe: o.Subscribe,
	}
	if e.charge == nil {
		e.charge = func(*fiber.Ctx, float64) {}
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.now == nil {
		e.now = time.Now
	}
	if o.Index == nil {
		e.subscribe = nil
	}
	var err error
	if e.schema, err = document.LoadSchema(Schema); err != nil {
		return nil, err
	}
	if o.Index != nil {
		if e.executor, err = answer.New(o.Index, e.schema, e.log); err != nil {
			return nil, err
		}
	}
	if err := e.bound(o); err != nil {
		return nil, err
	}
	if e.cache, err = newCache(o.CacheBytes, e.now, o.Registry); err != nil {
		return nil, err
	}
	if o.Upstream != nil {
		if e.proxy, err = newProxy(o, e.limits, e.executions, e.log); err != nil {
			return nil, err
		}
	}
	e.operations, err = otter.New(&otter.Options[operationKey, *operation]{
		MaximumWeight: documentBytes,
		Weigher:       func(_ operationKey, op *operation) uint32 { return op.Weight },
	})
	if err != nil {
		return nil, fmt.Errorf("document cache: %w", err)
	}
	return e, nil
}

// bound creates the bounds of bounds.go and their metrics.
func (e *Endpoint) bound(o Options) error {
	if o.line == (queueLimit{}) {
		o.line = defaultLine
	}
	tooMany := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "attestd_graphql_overloaded_total", Help: "Queries refused because reads were at a limit, by limit: " +
			"concurrent executions, concurrent forwards, bytes of responses, bytes of bodies.",
	}, []string{"of"})
	e.executions = newExecutions(o.Executions, o.line, o.Attesting, tooMany.WithLabelValues("executions").Inc)
	e.forwards = newTurns(maxForwarded, o.line, tooMany.WithLabelValues("forwards").Inc)
	e.budget = newBudget(o.AnswerBytes, tooMany.WithLabelValues("answers").Inc)
	e.bodies = newBudget(maxIncoming, tooMany.WithLabelValues("bodies").Inc)
	return register(o.Registry, tooMany, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "attestd_graphql_answer_bytes", Help: "Bytes of responses in preparation or in transit.",
	}, func() float64 { return float64(e.budget.held.Load()) }))
}

// job is the work that answers a request.
type job struct {
	run       func(context.Context) response
	cost      int            // see document.Cost; 0 if unknown
	variables map[string]any // coerced; at least those that @cached uses
	variant   string         // further inputs that the answer depends on
	stale     time.Duration  // how long after its ttl the answer is kept, in case a later run fails
	shareKey  string         // concurrent requests share a run only if their keys are equal
}

// answer answers a request from the cache, or by executing or forwarding it. For a cached answer it returns the entry.
// hash is the hash of the request's bytes, for cache.lookupRequest.
func (e *Endpoint) answer(ctx context.Context, r request, hash cacheKey) (response, *cacheEntry) {
	if len(r.variables) > e.limits.MaxVariablesBytes {
		return refused(statusRefused, e.variablesTooLarge(r)), nil
	}
	op, errs := e.operation(ctx, r)
	if len(errs) > 0 {
		return refused(statusRefused, errs...), nil
	}
	if op.Subscribes() {
		return refused(statusRefused, op.RefuseSubscription()), nil
	}
	given, err := readObject(r.variables)
	if err != nil {
		return refused(statusRefused,
			document.NewError(document.CodeInvalidVariable, "variables must be a JSON object")), nil
	}
	jobOf := e.localJob
	if op.forwarded {
		if err := r.checkForwardable(); err != nil {
			return refused(statusMalformed, err), nil
		}
		jobOf = e.forwardedJob
	}
	j, errs := jobOf(op, r, given)
	if len(errs) > 0 {
		return refused(statusRefused, errs...), nil
	}
	j.run = e.recovering(j.run)
	var policy document.Policy
	if op.Cached != nil {
		var failed *document.Error
		if policy, failed = op.Cached.Policy(e.schema, j.variables); failed != nil {
			return refused(statusRefused, failed), nil
		}
	}
	if policy.TTL == 0 {
		r.payFor(j)
		resp := j.run(ctx)
		r.payForBytes(resp.body)
		return resp, nil
	}
	key := op.key(r.operation, given, j.variant)
	resp, entry := e.share(ctx, key, policy, j, r)
	if entry != nil && !policy.Refresh {
		e.cache.requests.Set(hash, key)
	}
	if resp.failed && !policy.Refresh {
		resp = e.staleOr(resp, key)
	}
	return resp, entry
}

func (e *Endpoint) variablesTooLarge(r request) *document.Error {
	return document.NewError(document.CodeVariablesTooLarge,
		fmt.Sprintf("the variables have %d bytes, more than %d", len(r.variables), e.limits.MaxVariablesBytes))
}

// localJob returns a job that executes an operation on the index.
func (e *Endpoint) localJob(op *operation, r request, given map[string]any) (job, []*document.Error) {
	variables, errs := op.CoerceVariables(given)
	j := job{variables: variables}
	extensions, _ := readObject(r.extensions) // already checked to be an object or empty
	replica := extensions["replica"] == true
	if replica {
		j.variant = "replica"
	}
	if len(errs) > 0 {
		return j, errs
	}
	root, errs := e.bind(op, variables)
	j.cost = document.Cost(root)
	j.run = e.executions.bounded(func(ctx context.Context) response { return e.execute(ctx, root, replica) })
	return j, errs
}

// recovering turns a panic of run into an internal error. The process also signs, so a defect here must not crash it. A
// shared job runs in its own goroutine, where the server's middleware does not recover.
func (e *Endpoint) recovering(run func(context.Context) response) func(context.Context) response {
	return func(ctx context.Context) (r response) {
		defer func() {
			if cause := recover(); cause != nil {
				e.log.Error("graphql query panicked", "cause", cause, "stack", string(debug.Stack()))
				r = refused(statusUnavailable, document.NewError(appliance.CodeInternal, "internal error"))
			}
		}()
		return run(ctx)
	}
}

// operation is an operation and the part that answers it.
type operation struct {
	*document.Operation
	forwarded bool // to the upstream; the operation is not resolved
}

// operation returns the parsed operation of a request.
func (e *Endpoint) operation(ctx context.Context, r request) (*operation, []*document.Error) {
	key := operationKey{r.query, r.operation}
	if op, ok := e.operations.GetIfPresent(key); ok {
		return op, nil
	}
	if err := e.executions.acquire(ctx); err != nil {
		return nil, []*document.Error{err}
	}
	defer e.executions.end()
	op, errs := e.prepare(r.query, r.operation)
	if len(errs) == 0 {
		e.operations.Set(key, op)
	}
	return op, errs
}

// prepare parses and checks the operation with the given name, or the only one. If the index cannot answer it and an
// upstream exists, the operation is forwarded.
func (e *Endpoint) prepare(query, name string) (*operation, []*document.Error) {
	parsed, err := document.Parse(query, name, e.limits)
	if err != nil {
		return nil, []*document.Error{err}
	}
	if parsed.Subscribes() && e.subscribe == nil {
		return nil, []*document.Error{parsed.RefuseSubscription()}
	}
	op := &operation{Operation: parsed}
	var errs []*document.Error
	if e.executor != nil {
		if errs = op.Resolve(e.schema); len(errs) == 0 {
			return op, nil
		}
	}
	if e.proxy == nil || op.Subscribes() {
		return nil, errs
	}
	op.forwarded = true
	if err := e.checkForwarded(op); err != nil {
		return nil, []*document.Error{err}
	}
	return op, nil
}

// bind returns the selections, if they may be executed.
func (e *Endpoint) bind(op *operation, variables map[string]any) ([]*document.Selection, []*document.Error) {
	root, errs := op.Bind(variables)
	if len(errs) > 0 {
		return nil, errs
	}
	for _, s := range root {
		if s.Meta && e.noIntrospection {
			return nil, []*document.Error{introspectionOff().At(s.Node.Position).WithPath(s.Key)}
		}
	}
	if err := e.limits.CheckCost(root); err != nil {
		return nil, []*document.Error{err}
	}
	return root, nil
}

func introspectionOff() *document.Error {
	return document.NewError(document.CodeIntrospectionOff, "introspection is off")
}
