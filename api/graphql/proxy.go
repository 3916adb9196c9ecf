package graphql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
)

// proxy forwards requests to the upstream, behind a circuit breaker.
type proxy struct {
	upstream *upstream.Client
	timeout  time.Duration // of one request; the upstream client's timeout may be shorter
	stale    time.Duration // Options.StaleIfError
	judges   *slots        // parsing an answer takes an execution slot
	breaker  *gobreaker.CircuitBreaker[upstream.Response]
	pause    time.Duration             // how long the breaker stays open
	until    atomic.Pointer[time.Time] // when the breaker allows the next trial
	cause    atomic.Pointer[error]     // the latest failure
	sent     prometheus.Counter        // stale answers sent
	log      *slog.Logger
}

// The breaker opens after breakerFailures consecutive failures. After defaultBreakerOpen it allows one trial request.
const (
	breakerFailures    = 5
	defaultBreakerOpen = 10 * time.Second
)

func newProxy(o Options, limits Limits, judges *slots, log *slog.Logger) (*proxy, error) {
	p := &proxy{
		upstream: o.Upstream, timeout: limits.Timeout, stale: o.StaleIfError, pause: o.breakerOpen, judges: judges,
		log: log,
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "attestd_graphql_stale_total", Help: "Expired responses sent because the upstream had failed."}),
	}
	p.cause.Store(new(error))
	if p.pause == 0 {
		p.pause = defaultBreakerOpen
	}
	p.breaker = gobreaker.NewCircuitBreaker[upstream.Response](gobreaker.Settings{
		Timeout:       p.pause,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsSuccessful:  isAnswer,
		IsExcluded:    isCallersFault,
		OnStateChange: p.changed,
	})
	return p, register(o.Registry, p.sent, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "attestd_upstream_breaker_state", Help: "Whether queries are forwarded: 0 yes, 1 a single trial query, " +
			"2 not at present because the upstream keeps failing.",
	}, func() float64 { return float64(p.breaker.State()) }))
}

// isAnswer reports whether the upstream is available.
func isAnswer(err error) bool {
	return err == nil || errors.Is(err, upstream.ErrTooLarge) || errors.Is(err, upstream.ErrNoRoom) ||
		errors.Is(err, errBusy)
}

// isCallersFault reports whether an error is unrelated to the upstream.
func isCallersFault(err error) bool {
	return errors.Is(err, context.Canceled) || appliance.CodeOf(err) == appliance.CodeInvalidField
}

// changed logs when the breaker opens and when it closes, but not the failed trials in between.
func (p *proxy) changed(_ string, from, to gobreaker.State) {
	switch to {
	case gobreaker.StateOpen:
		p.until.Store(new(time.Now().Add(p.pause)))
		if from == gobreaker.StateClosed {
			p.log.Warn("the upstream keeps failing: forwarding of queries is suspended", "error", *p.cause.Load())
		}
	case gobreaker.StateClosed:
		p.log.Info("the upstream answers again: forwarding of queries resumes")
	}
}

// forward returns the upstream's answer, or an error for the client.
func (p *proxy) forward(ctx context.Context, r upstream.Request) response {
	answer, err := p.exchange(ctx, r)
	switch {
	case err == nil:
		return response{status: statusForwarded, upstream: answer, body: pieces{answer.Body}}
	case errors.Is(err, errLimited):
		return response{status: statusForwarded, upstream: answer, body: pieces{answer.Body}, failed: true}
	case errors.Is(err, upstream.ErrTooLarge):
		return refused(statusUnavailable, document.NewError(document.CodeResponseTooLarge, "the upstream's response "+
			"is too large: request fewer rows (p_limit) or fields"))
	case errors.Is(err, upstream.ErrNoRoom), errors.Is(err, errBusy):
		return refused(statusUnavailable, overloaded())
	case errors.Is(err, context.Canceled):
		return refused(statusUnavailable, document.NewError(appliance.CodeTimeout, "the request was abandoned"))
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		paused := appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream keeps failing and is not queried "+
			"for some seconds")
		paused.RetryAfter = max(time.Until(*p.until.Load()), time.Second).Round(time.Second)
		return unavailable(paused)
	}
	known, _ := errors.AsType[*appliance.Error](err)
	return unavailable(known)
}

// errBusy means that no execution slot was free to parse an answer.
var errBusy = errors.New("too many concurrent reads")

// errLimited counts as a failure, although the answer is forwarded.
var errLimited = errors.New("the upstream answered 429")

// exchange sends a request unless the breaker is open.
//
// Errors: *appliance.Error; errLimited, together with the answer; upstream.ErrTooLarge; upstream.ErrNoRoom; errBusy;
// context.Canceled; the errors of gobreaker.
func (p *proxy) exchange(ctx context.Context, r upstream.Request) (upstream.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.breaker.Execute(func() (upstream.Response, error) {
		answer, err := p.upstream.Forward(ctx, r)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			err = appliance.Errorf(appliance.CodeUpstreamUnavailable,
				"the upstream took too long").Because(fmt.Errorf("no complete answer within %s", p.timeout))
		case err == nil:
			err = p.judged(ctx, answer)
		}
		if !isAnswer(err) && !isCallersFault(err) {
			p.cause.Store(&err)
		}
		return answer, err
	})
}

// judged calls judge in an execution slot.
func (p *proxy) judged(ctx context.Context, answer upstream.Response) error {
	if p.judges.acquire(ctx) != nil {
		return errBusy
	}
	defer p.judges.end()
	return upstreamFailure(answer)
}

// upstreamFailure returns an error for an answer that counts as a failure of the upstream.
func upstreamFailure(answer upstream.Response) error {
	switch {
	case answer.Status >= 500 || !answer.JSON():
		return answer.Unavailable()
	case answer.Status == http.StatusTooManyRequests:
		return errLimited
	}
	return nil
}

// unavailable returns the response for a failed upstream.
func unavailable(why *appliance.Error) response {
	r := refused(statusUnavailable, document.FromDomain(why))
	r.retryAfter, r.failed = why.RetryAfter, true
	return r
}

// isWhole reports whether the upstream's answer has data and no errors.
func isWhole(answer upstream.Response) bool {
	var body struct {
		Data   json.RawMessage `json:"data"`
		Errors json.RawMessage `json:"errors"`
	}
	return answer.Status == http.StatusOK && json.Unmarshal(answer.Body, &body) == nil && !isNull(body.Data) &&
		isNull(body.Errors)
}

// sendForwarded sends the upstream's answer.
func (e *Endpoint) sendForwarded(c *fiber.Ctx, r response) error {
	c.Set(fiber.HeaderCacheControl, "no-store")
	c.Response().Header.SetContentType(r.upstream.ContentType)
	if r.upstream.RetryAfter > 0 {
		setRetryAfter(c, r.upstream.RetryAfter)
	}
	c.Status(r.upstream.Status)
	return e.sendLight(c, r)
}

// staleOr returns the stale answer of a key, or failed if the cache has none.
func (e *Endpoint) staleOr(failed response, key cacheKey) response {
	entry, ok := e.cache.entries.GetIfPresent(key)
	if !ok {
		return failed
	}
	age := entry.age(e.now())
	if age >= entry.ttl+entry.stale {
		return failed
	}
	e.proxy.sent.Inc()
	return response{status: statusStale, body: pieces{markStale(entry.body.whole(), age)}, age: age}
}

// markStale adds stale and age to the extensions of an answer.
func markStale(body []byte, age time.Duration) []byte {
	var answer struct {
		Data       json.RawMessage            `json:"data"`
		Extensions map[string]json.RawMessage `json:"extensions"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Extensions == nil {
		// extensions need not be an object
		answer.Extensions = make(map[string]json.RawMessage)
	}
	answer.Extensions["stale"] = json.RawMessage("true")
	answer.Extensions["age"] = strconv.AppendInt(nil, int64(age/time.Second), 10)
	extensions, err := json.Marshal(answer.Extensions)
	if err != nil { // cannot happen: it was JSON before
		panic(err)
	}
	return slices.Concat([]byte(`{"data":`), answer.Data, []byte(`,"extensions":`), extensions, []byte("}"))
}

// sendStale sends a stale answer (RFC 5861, section 4), with Cache-Status (RFC 9211).
func (e *Endpoint) sendStale(c *fiber.Ctx, r response) error {
	h := &c.Response().Header
	h.Set(fiber.HeaderCacheControl, e.caching("max-age=0"))
	h.Set(fiber.HeaderAge, strconv.Itoa(int(r.age/time.Second)))
	h.Set("Cache-Status", "attestd; hit; detail=stale")
	return e.sendBody(c, r)
}
