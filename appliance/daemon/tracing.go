package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// lastSpans is how long a daemon that ends waits for the collector to take what is left.
const lastSpans = 5 * time.Second

// collectorVariables are those of the OpenTelemetry specification that say where a collector is.
var collectorVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// tracing hands spans of attestations to a collector. It never waits for that.
type tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// openTracing returns nil where no collector is named.
func (r *running) openTracing(ctx context.Context) (*tracing, error) {
	var options []otlptracehttp.Option
	shown := cmp.Or(os.Getenv(collectorVariables[0]), os.Getenv(collectorVariables[1])) // which the exporter reads itself
	if endpoint := r.config.Tracing.Endpoint; endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil {
			return nil, fmt.Errorf("tracing.endpoint: %w", err)
		}
		shown = u.JoinPath("v1", "traces").String()
		options = append(options, otlptracehttp.WithEndpointURL(shown))
	}
	if shown == "" {
		return nil, nil
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	attributes := []attribute.KeyValue{semconv.ServiceName("attestd"), semconv.ServiceVersion(r.options.Version)}
	if name, err := MemberName(r.config); err == nil {
		attributes = append(attributes, semconv.ServiceInstanceID(name))
	}
	described, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("tracing: OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { r.logger.Warn("tracing", "error", err.Error()) })) // else it writes to stderr
	// Spans wait in a queue, 2,048 at most, and further ones are dropped (OTEL_BSP_MAX_QUEUE_SIZE).
	provider := sdk.NewTracerProvider(sdk.WithResource(described), sdk.WithBatcher(&reporting{SpanExporter: exporter, logger: r.logger}))
	r.logger.Info("tracing: spans of attestations go to a collector", "endpoint", withoutQuery(shown))
	return &tracing{provider, provider.Tracer("github.com/attestd/attestd")}, nil
}

// withoutQuery is an address as it is logged: what follows a question mark may be a key.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// forRequests is nil where there is nothing to begin.
func (t *tracing) forRequests() func(context.Context, api.Traced) (context.Context, func(error)) {
	if t == nil {
		return nil
	}
	return t.request
}

// forParts is nil likewise.
func (t *tracing) forParts() appliance.Trace {
	if t == nil {
		return nil
	}
	return t.part
}

// request begins the span of a request. It belongs to the client's trace where the client says so (W3C Trace Context).
func (t *tracing) request(ctx context.Context, q api.Traced) (context.Context, func(error)) {
	carrier := propagation.MapCarrier{"traceparent": q.Parent, "tracestate": q.State}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	ctx, span := t.tracer.Start(ctx, q.Method+" "+q.Route, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(q.Begin), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(q.Method), semconv.HTTPRoute(q.Route),
		attribute.String("attestd.request_id", q.RequestID), attribute.String("attestd.key_id", q.KeyID),
	))
	return ctx, ender(span)
}

// part begins the span of a part of an attestation.
func (t *tracing) part(ctx context.Context, part string) (context.Context, func(error)) {
	ctx, span := t.tracer.Start(ctx, part)
	return ctx, ender(span)
}

// ender ends a span. Of an error it tells the code alone: the rest may be what nobody outside shall know.
func ender(span trace.Span) func(error) {
	return func(err error) {
		if err != nil {
			code := string(appliance.CodeOf(err))
			span.SetAttributes(semconv.ErrorTypeKey.String(code))
			span.SetStatus(codes.Error, code)
		}
		span.End()
	}
}

// close sends what is left, for a moment.
func (t *tracing) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what the collector has not taken is lost, and was told of
}

// reporting tells the log when a collector begins to fail, and when it is back.
type reporting struct {
	sdk.SpanExporter
	logger  *slog.Logger
	failing atomic.Bool
}

// ExportSpans implements sdk.SpanExporter. Its error is told here, and nowhere else.
func (e *reporting) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	e.tell(e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

func (e *reporting) tell(err error) {
	switch failed := err != nil; {
	case failed && !e.failing.Swap(true):
		e.logger.Warn("tracing: the collector takes no spans, which are dropped; attestations go on", "error", err.Error())
	case !failed && e.failing.Swap(false):
		e.logger.Info("tracing: the collector takes spans again")
	}
}
