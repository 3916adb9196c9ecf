package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// ReadWitnessPolicy reads a policy file (C2SP tlog-policy).
func ReadWitnessPolicy(path string) (*witness.Policy, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened to read only
	text, err := io.ReadAll(io.LimitReader(f, witness.MaxPolicy+1))
	if err != nil {
		return nil, err
	}
	policy, err := witness.ParsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return policy, nil
}

// readWitnesses reads the policy of journal.witnesses, nil if there is none. It returns an error if the witnesses that
// have a URL are no quorum.
func readWitnesses(c *config.Config) (*witness.Policy, error) {
	path := c.Journal.Witnesses
	if path == "" {
		return nil, nil
	}
	policy, err := ReadWitnessPolicy(path)
	if err != nil {
		return nil, fmt.Errorf("journal.witnesses: %w", err)
	}
	if err := policy.Askable(); err != nil {
		return nil, fmt.Errorf("journal.witnesses: %s: %w", path, err)
	}
	return policy, nil
}

// WitnessOptions are the optional parts of OpenWitnesses.
type WitnessOptions struct {
	Version string
	Logger  *slog.Logger
	Record  func(journal.Event)
}

// OpenWitnesses returns a Gatherer of cosignatures for the store's checkpoints. It is not running yet, and has the
// cosignatures that were gathered before.
func OpenWitnesses(c *config.Config, store *Store, o WitnessOptions) (*witness.Gatherer, error) {
	policy, err := readWitnesses(c)
	if err != nil {
		return nil, err
	}
	g, err := witness.Open(witness.Options{
		Journal: store.Journal, Log: store.LogKey.Verifier, Path: filepath.Join(c.DataDir, witness.FileName),
		Interval: c.Journal.WitnessInterval, UserAgent: "attestd/" + o.Version, Logger: o.Logger, Record: o.Record,
	})
	if err != nil {
		return nil, err
	}
	g.Use(policy)
	return g, nil
}

// gatherCosignatures starts the Gatherer. stop ends it. Attesting never waits for it.
func (r *running) gatherCosignatures(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { r.witnesses.Run(ctx) })
	return func() {
		cancel()
		done.Wait()
	}
}

// witnessMetrics collects the witnesses' metrics at each scrape. Without a policy it collects none.
type witnessMetrics struct {
	status                                                       func() witness.Status
	newest, records, timestamp, witnessed, failing, contradicted *prometheus.Desc
}

func newWitnessMetrics(status func() witness.Status) *witnessMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &witnessMetrics{
		status: status,
		newest: describe("attestd_witness_newest_timestamp_seconds",
			"Unix time at which a quorum of witnesses cosigned the newest witnessed checkpoint; 0 without one."),
		records: describe("attestd_witness_newest_records", "Records covered by the newest witnessed checkpoint."),
		timestamp: describe("attestd_witness_timestamp_seconds",
			"Unix time of a witness's last cosignature, as the witness says; 0 if it has not cosigned.", "witness"),
		witnessed: describe("attestd_witness_records", "Records of the tree that a witness has cosigned last.",
			"witness"),
		failing: describe("attestd_witness_failing", "1 if a witness does not cosign, 0 otherwise.", "witness"),
		contradicted: describe("attestd_witness_contradicts",
			"1 if a witness has reported another history of the log, 0 otherwise.", "witness"),
	}
}

// Describe implements prometheus.Collector.
func (m *witnessMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.newest, m.records, m.timestamp, m.witnessed, m.failing, m.contradicted} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *witnessMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := m.status()
	if !s.Policy {
		return
	}
	newest, records := 0.0, int64(0)
	if s.Newest != nil {
		newest, records = float64(s.Newest.Time.Unix()), s.Newest.Records
	}
	gauge(m.newest, newest)
	gauge(m.records, float64(records))
	for _, w := range s.Witnesses {
		at, name := 0.0, strings.ToValidUTF8(w.Name, "?")
		if !w.Time.IsZero() {
			at = float64(w.Time.Unix())
		}
		gauge(m.timestamp, at, name)
		gauge(m.witnessed, float64(w.Records), name)
		gauge(m.failing, oneIf(w.Fault != ""), name)
		gauge(m.contradicted, oneIf(w.Contradicts), name)
	}
}
