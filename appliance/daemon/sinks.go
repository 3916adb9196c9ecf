package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/sinks"
)

// SinksFolder is the folder in data_dir with the cursors of audit.sinks.
const SinksFolder = "sinks"

// lastShipment is how long a stopping daemon waits for the sinks to accept the remaining leaves.
const lastShipment = 3 * time.Second

// CheckSinks returns an error if a sink refuses its configuration.
func CheckSinks(c *config.Config) error {
	_, err := buildSinks(c, "")
	return err
}

// checkSinkReferences checks the files that audit.sinks names.
func checkSinkReferences(c *config.Config) error {
	var failures []error
	for i, s := range c.Audit.Sinks {
		err := security(s).Check()
		for _, h := range s.Headers {
			if path, kept := HeaderFile(h); kept == nil && path != "" {
				_, missing := os.Stat(path)
				err = errors.Join(err, missing)
			}
		}
		if s.Type == config.SinkFile {
			_, missing := os.Stat(filepath.Dir(s.Path))
			err = errors.Join(err, missing)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("audit.sinks: entry %d: %w", i+1, err))
		}
	}
	return errors.Join(failures...)
}

// buildSinks returns the sinks of audit.sinks, without opening them.
func buildSinks(c *config.Config, version string) (all []sinks.Sink, err error) {
	var failures []error
	for i, s := range c.Audit.Sinks {
		sink, err := buildSink(s, version)
		if err != nil {
			failures = append(failures, fmt.Errorf("audit.sinks: entry %d: %w", i+1, err))
		}
		all = append(all, sink)
	}
	return all, errors.Join(failures...)
}

func buildSink(s config.Sink, version string) (sinks.Sink, error) {
	format, errFormat := sinks.ParseFormat(s.Format)
	redact, errRedact := sinks.ParseRedaction(s.Redact)
	facility, errFacility := sinks.ParseFacility(s.Facility)
	sink := sinks.Sink{
		Name: s.Name, Format: format, Redact: redact, FromNow: s.Start == config.StartNow,
		Batch: s.Batch, Bytes: int(s.BatchBytes), Interval: s.Interval, Timeout: s.Timeout,
	}
	switch s.Type {
	case config.SinkFile:
		sink.To = &sinks.File{Path: s.Path}
	case config.SinkHTTPS:
		sink.To = &sinks.HTTPS{URL: s.URL, Security: security(s), Headers: func() (http.Header, error) {
			return readHeaders(s.Headers)
		}, Gzip: s.Gzip, Version: version}
	case config.SinkSyslog:
		sink.To = syslogOf(s, facility)
	}
	return sink,
		errors.Join(ofValue("format", errFormat), ofValue("redact", errRedact), ofValue("facility", errFacility))
}

// ofValue adds the name of a value to an error.
func ofValue(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func security(s config.Sink) sinks.Security {
	return sinks.Security{CA: s.CA, Cert: s.Cert, Key: s.Key, ServerName: s.ServerName}
}

func syslogOf(s config.Sink, facility sinks.Facility) *sinks.Syslog {
	to := &sinks.Syslog{Security: security(s), Facility: facility}
	to.Host, _ = os.Hostname() // on an error, messages have no host name
	if at, err := url.Parse(s.URL); err == nil {
		to.Plain = at.Scheme == "tcp"
		if to.Address = at.Host; at.Port() == "" {
			to.Address = net.JoinHostPort(at.Hostname(), config.SyslogPort)
		}
	}
	return to
}

func readHeaders(headers []config.Header) (http.Header, error) {
	all := make(http.Header)
	for _, h := range headers {
		value, err := readHeader(h)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.Name, err)
		}
		all.Add(h.Name, value)
	}
	return all, nil
}

// shipping ships the journal to audit.sinks.
type shipping struct {
	*sinks.Shipper
	to []config.Sink // guarded by running.reloading
}

// ship starts to ship the journal. end stops it.
func (r *running) ship() (end func(), err error) {
	all, err := buildSinks(r.config, r.options.Version)
	if err != nil {
		return nil, err
	}
	r.shipping = shipping{to: r.config.Audit.Sinks, Shipper: sinks.New(sinks.Options{
		Journal: r.store.Journal, Verifier: r.store.LogKey.Verifier,
		Cursors: sinks.Folder(filepath.Join(r.config.DataDir, SinksFolder)),
		Version: r.options.Version, Logger: r.logger,
	})}
	r.shipping.Set(all)
	r.registry.MustRegister(sinkMetrics(r.shipping.Shipper))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastShipment)
		defer cancel()
		told, end := context.WithTimeout(ctx, startedTimeout)
		defer end()
		r.events.Flush(told) // the stop event is shipped, too
		r.shipping.Close(ctx)
	}, nil
}

// prepare returns a function that switches to the sinks of another configuration.
func (s *shipping) prepare(next *config.Config, version string) (adopt func(), err error) {
	all, err := buildSinks(next, version)
	if err != nil || reflect.DeepEqual(next.Audit.Sinks, s.to) {
		return func() {}, err
	}
	return func() {
		s.Set(all)
		s.to = next.Audit.Sinks
	}, nil
}

// sinkMetrics collects the sinks' metrics.
func sinkMetrics(shipper *sinks.Shipper) collector {
	return func(s samples) {
		for _, sink := range shipper.Status() {
			of := prometheus.Labels{"sink": sink.Name}
			if sink.LagRecords != nil {
				s.gauge("attestd_sink_lag_records",
					"Records that a sink has not accepted; absent before the journal can be read.",
					float64(*sink.LagRecords), of)
			}
			s.gauge("attestd_sink_lag_seconds",
				"Age of the oldest record that a sink has not accepted; 0 if it has all.", sink.LagSeconds, of)
			s.gauge("attestd_sink_failing", "1 if a sink fails, 0 otherwise.", oneIf(sink.Failing != ""), of)
			s.counter("attestd_sink_shipped_total",
				"Records that a sink accepted; a record that was sent twice counts twice.", uint64(sink.Shipped), of)
			s.counter("attestd_sink_failures_total", "Batches that a sink did not accept.", uint64(sink.Failures), of)
		}
	}
}
