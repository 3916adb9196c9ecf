package daemon

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/webhooks"
)

// webhooksFolder is the folder in data_dir with the webhooks of an appliance whose store is a file.
const webhooksFolder = "webhooks"

// deliverWebhooks starts to deliver the journal's events to webhooks. end stops it.
func (r *running) deliverWebhooks() (end func()) {
	var store webhooks.Store = webhooks.NewFolder(filepath.Join(r.config.DataDir, webhooksFolder))
	if r.store.Database != nil {
		store = r.store.Database.Webhooks()
	}
	r.webhooks = webhooks.Start(webhooks.Options{
		Store: store, Journal: r.store.Journal, Verifier: r.store.LogKey.Verifier, Keys: r.store.Keys, Events: r.events,
		Sender: webhooks.NewSender(webhooks.SenderOptions{Networks: r.config.Webhooks.AllowNetworks,
			PlainHTTP: r.config.Webhooks.AllowPlainHTTP, Version: r.options.Version, Now: time.Now}),
		Logger: r.logger, Now: time.Now,
	})
	r.registry.MustRegister(newWebhookMetrics(r.webhooks))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastShipment)
		defer cancel()
		r.events.Flush(ctx) // the stop event is delivered, too
		r.webhooks.Close(ctx)
	}
}

// webhookMetrics collects the metrics of the webhooks that this appliance delivers.
type webhookMetrics struct {
	hooks   *webhooks.Hooks
	figures []webhookFigure
}

type webhookFigure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(webhooks.Status) float64
}

func newWebhookMetrics(hooks *webhooks.Hooks) *webhookMetrics {
	m := &webhookMetrics{hooks: hooks}
	add := func(kind prometheus.ValueType, name, help string, value func(webhooks.Status) float64) {
		m.figures = append(m.figures,
			webhookFigure{prometheus.NewDesc(name, help, []string{"webhook"}, nil), kind, value})
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "attestd_webhook_disabled", "1 if a webhook is disabled, 0 otherwise.",
		func(s webhooks.Status) float64 { return oneIf(!s.Disabled.IsZero()) })
	add(gauge, "attestd_webhook_failing_seconds",
		"Time since the first failed delivery after the last successful one; 0 while deliveries succeed.",
		func(s webhooks.Status) float64 {
			if s.Failing.IsZero() {
				return 0
			}
			return max(0, time.Since(s.Failing).Seconds())
		})
	add(gauge, "attestd_webhook_waiting_events", "Events that wait to be sent again.",
		func(s webhooks.Status) float64 { return float64(s.Waiting) })
	add(counter, "attestd_webhook_delivered_total", "Events that a receiver accepted.",
		func(s webhooks.Status) float64 { return float64(s.Delivered) })
	add(counter, "attestd_webhook_failures_total", "Attempts that failed.",
		func(s webhooks.Status) float64 { return float64(s.Failures) })
	add(counter, "attestd_webhook_given_up_total",
		"Events that a receiver refused for three days, while it accepted others.",
		func(s webhooks.Status) float64 { return float64(s.GivenUp) })
	return m
}

// Describe implements prometheus.Collector.
func (m *webhookMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.figures {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m *webhookMetrics) Collect(out chan<- prometheus.Metric) {
	for _, s := range m.hooks.Delivering() {
		for _, f := range m.figures {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(s), s.Name)
		}
	}
}
