package api

import (
	"log/slog"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// logRequest writes the access log line and the metrics of a request, and then calls onAnswer. The log holds neither
// the API key's secret, nor the query string, nor the body.
func (h *httpServer) logRequest(rctx *fasthttp.RequestCtx, x *exchange, now time.Time) {
	status, took := rctx.Response.StatusCode(), now.Sub(x.start)
	h.metrics.end(x, status, took)
	if h.onAnswer != nil {
		h.onAnswer(x, status)
	}
	level, logger := slog.LevelInfo, h.access
	switch {
	case status == fiber.StatusInternalServerError:
		level, logger = slog.LevelError, h.logger
	case status > fiber.StatusInternalServerError:
		level, logger = slog.LevelWarn, h.logger
	case x.probe || isProbe(rctx.Path()):
		level = slog.LevelDebug // load balancers and monitoring poll every second
	}
	if !logger.Enabled(h.base, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs,
		slog.String("method", x.method), slog.String("route", x.route), slog.Int("status", status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000), slog.Int("bytes", bodySize(rctx)),
		slog.String("request_id", x.id))
	if x.ip.IsValid() { // not on a Unix socket
		attrs = append(attrs, slog.String("client_ip", x.ip.String()))
	}
	if x.keyID != "" {
		attrs = append(attrs, slog.String("key_id", x.keyID))
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", string(x.code)))
	}
	if x.cause != nil {
		attrs = append(attrs, slog.String("cause", x.cause.Error()))
	}
	// Logger.LogAttrs would walk the stack for a caller that is never printed
	record := slog.NewRecord(now, level, "request", 0)
	record.AddAttrs(attrs...)
	_ = logger.Handler().Handle(h.base, record)
}

// bodySize returns the size of the answer's body in bytes, or -1 for a stream of unknown length.
func bodySize(rctx *fasthttp.RequestCtx) int {
	if rctx.Response.IsBodyStream() {
		return rctx.Response.Header.ContentLength()
	}
	return len(rctx.Response.Body())
}
