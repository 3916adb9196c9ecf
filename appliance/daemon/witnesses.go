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

// witnessMetrics collects the witnesses' metrics. Without a policy it sends none.
func witnessMetrics(status func() witness.Status) collector {
	return func(s samples) {
		w := status()
		if !w.Policy {
			return
		}
		newest, records := 0.0, int64(0)
		if w.Newest != nil {
			newest, records = float64(w.Newest.Time.Unix()), w.Newest.Records
		}
		s.gauge("attestd_witness_newest_timestamp_seconds",
			"Unix time at which a quorum of witnesses cosigned the newest witnessed checkpoint; 0 without one.",
			newest, nil)
		s.gauge("attestd_witness_newest_records", "Records covered by the newest witnessed checkpoint.",
			float64(records), nil)
		for _, one := range w.Witnesses {
			at, of := 0.0, prometheus.Labels{"witness": strings.ToValidUTF8(one.Name, "?")}
			if !one.Time.IsZero() {
				at = float64(one.Time.Unix())
			}
			s.gauge("attestd_witness_timestamp_seconds",
				"Unix time of a witness's last cosignature, as the witness says; 0 if it has not cosigned.", at, of)
			s.gauge("attestd_witness_records", "Records of the tree that a witness has cosigned last.",
				float64(one.Records), of)
			s.gauge("attestd_witness_failing", "1 if a witness does not cosign, 0 otherwise.", oneIf(one.Fault != ""),
				of)
			s.gauge("attestd_witness_contradicts",
				"1 if a witness has reported another history of the log, 0 otherwise.", oneIf(one.Contradicts), of)
		}
	}
}
