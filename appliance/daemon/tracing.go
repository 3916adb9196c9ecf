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
	"github.com/attestd/attestd/appliance/attest"
)

// lastSpans is how long a stopping daemon waits for the collector to accept the remaining spans.
const lastSpans = 5 * time.Second

// collectorVariables are the environment variables of the OpenTelemetry specification with the address of a collector.
var collectorVariables = []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}

// tracing sends spans of attestations to a collector. Attestations never wait for it.
type tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// openTracing returns nil if no collector is configured.
func (r *running) openTracing(ctx context.Context) (*tracing, error) {
	var options []otlptracehttp.Option
	// the exporter reads them itself
	shown := cmp.Or(os.Getenv(collectorVariables[0]), os.Getenv(collectorVariables[1]))
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
	// the default handler writes to stderr
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { r.logger.Warn("tracing", "error", err.Error()) }))
	// Spans wait in a queue, 2,048 at most, and further ones are dropped (OTEL_BSP_MAX_QUEUE_SIZE).
	provider := sdk.NewTracerProvider(sdk.WithResource(described),
		sdk.WithBatcher(&reporting{SpanExporter: exporter, logger: r.logger}))
	r.logger.Info("tracing: sending spans of attestations to a collector", "endpoint", withoutQuery(shown))
	return &tracing{provider, provider.Tracer("github.com/attestd/attestd")}, nil
}

// withoutQuery returns an address for the log, without its query, which may hold a key.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// forRequests returns a function that begins the span of a request, nil if there is no tracing.
func (t *tracing) forRequests() func(context.Context, api.Traced) (context.Context, func(error)) {
	if t == nil {
		return nil
	}
	return t.request
}

// forParts returns a function that begins the span of a part, nil if there is no tracing.
func (t *tracing) forParts() attest.Trace {
	if t == nil {
		return nil
	}
	return t.part
}

// request begins the span of a request. The span belongs to the client's trace if the request names one (W3C Trace
// Context).
func (t *tracing) request(ctx context.Context, q api.Traced) (context.Context, func(error)) {
	carrier := propagation.MapCarrier{"traceparent": q.Parent, "tracestate": q.State}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	ctx, span := t.tracer.Start(ctx, q.Method+" "+q.Route, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(q.Begin), trace.WithAttributes(
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

// ender returns a function that ends a span. It exports only the code of an error, because the text may hold internals.
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

// close sends the remaining spans, within lastSpans.
func (t *tracing) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // spans that the collector did not accept are lost, and were reported
}

// reporting logs when a collector begins to fail and when it recovers.
type reporting struct {
	sdk.SpanExporter
	logger  *slog.Logger
	failing atomic.Bool
}

// ExportSpans implements sdk.SpanExporter. Only reporting logs its error.
func (e *reporting) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	e.report(e.SpanExporter.ExportSpans(ctx, spans))
	return nil
}

func (e *reporting) report(err error) {
	switch failed := err != nil; {
	case failed && !e.failing.Swap(true):
		e.logger.Warn("tracing: the collector fails, spans are dropped; attestations are not affected",
			"error", err.Error())
	case !failed && e.failing.Swap(false):
		e.logger.Info("tracing: the collector accepts spans again")
	}
}
