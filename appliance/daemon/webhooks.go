package daemon

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/webhooks"
	"github.com/attestd/attestd/store/postgres"
)

// webhooksFolder is the folder in data_dir with the webhooks of an appliance whose store is a file.
const webhooksFolder = "webhooks"

// webhooksOf returns the webhooks in the database, or without one those in data_dir.
func webhooksOf(c *config.Config, database *postgres.Store) webhooks.Store {
	if database != nil {
		return database.Webhooks()
	}
	return webhooks.NewFolder(filepath.Join(c.DataDir, webhooksFolder))
}

// deliverWebhooks starts to deliver the journal's events to webhooks. end stops it.
func (r *running) deliverWebhooks() (end func()) {
	r.webhooks = webhooks.Start(webhooks.Options{
		Store: webhooksOf(r.config, r.store.Database), Journal: r.store.Journal, Verifier: r.store.LogKey.Verifier,
		Keys: r.store.Keys, Events: r.events,
		Sender: webhooks.NewSender(webhooks.SenderOptions{Networks: r.config.Webhooks.AllowNetworks,
			PlainHTTP: r.config.Webhooks.AllowPlainHTTP, Version: r.options.Version, Now: time.Now}),
		Logger: r.logger, Now: time.Now,
	})
	r.registry.MustRegister(webhookMetrics(r.webhooks))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastShipment)
		defer cancel()
		r.events.Flush(ctx) // the stop event is delivered, too
		r.webhooks.Close(ctx)
	}
}

// webhookMetrics collects the metrics of the webhooks that this appliance delivers.
func webhookMetrics(hooks *webhooks.Hooks) collector {
	return func(s samples) {
		for _, w := range hooks.Delivering() {
			of := prometheus.Labels{"webhook": w.Name}
			s.gauge("attestd_webhook_disabled", "1 if attestd disabled a webhook, 0 otherwise.",
				oneIf(!w.Disabled.IsZero() && !w.Operator), of)
			failing := 0.0
			if !w.Failing.IsZero() {
				failing = max(0, time.Since(w.Failing).Seconds())
			}
			s.gauge("attestd_webhook_failing_seconds",
				"Time since the first failed delivery after the last successful one; 0 while deliveries succeed.",
				failing, of)
			s.gauge("attestd_webhook_waiting_events", "Events that wait to be sent again.", float64(w.Waiting), of)
			s.counter("attestd_webhook_delivered_total", "Events that a receiver accepted.", uint64(w.Delivered), of)
			s.counter("attestd_webhook_failures_total", "Attempts that failed.", uint64(w.Failures), of)
			s.counter("attestd_webhook_given_up_total",
				"Events that a receiver refused for three days, while it accepted others.", uint64(w.GivenUp), of)
		}
	}
}
