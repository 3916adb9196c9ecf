package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/witness"
)

// The metrics of docs/witness.md follow the state of each witness. Without a policy there are none.
func TestTheMetricsOfWitnesses(t *testing.T) {
	t.Parallel()
	var status witness.Status
	registry := prometheus.NewRegistry()
	registry.MustRegister(witnessMetrics(func() witness.Status { return status }))
	collected := func() (all []string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				all = append(all, fmt.Sprint(name, " ", m.GetGauge().GetValue()))
			}
		}
		return all
	}
	if got := collected(); len(got) != 0 {
		t.Errorf("without a policy: %q", got)
	}
	status = witness.Status{
		Policy: true, Newest: &witness.Witnessed{Records: 7, Time: time.Unix(100, 0)},
		Witnesses: []witness.WitnessNews{
			{Name: "away", Fault: "no answer"},
			{Name: "liar", Records: 9, Time: time.Unix(90, 0), Fault: "another history", Contradicts: true},
			{Name: "well", Records: 7, Time: time.Unix(100, 0)},
		},
	}
	want := []string{
		"attestd_witness_contradicts away 0", "attestd_witness_contradicts liar 1",
		"attestd_witness_contradicts well 0",
		"attestd_witness_failing away 1", "attestd_witness_failing liar 1", "attestd_witness_failing well 0",
		"attestd_witness_newest_records 7", "attestd_witness_newest_timestamp_seconds 100",
		"attestd_witness_records away 0", "attestd_witness_records liar 9", "attestd_witness_records well 7",
		"attestd_witness_timestamp_seconds away 0", "attestd_witness_timestamp_seconds liar 90",
		"attestd_witness_timestamp_seconds well 100",
	}
	if got := collected(); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
