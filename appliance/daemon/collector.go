package daemon

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector sends the metrics of a part of the daemon at each scrape. It is an unchecked collector of Prometheus,
// because which labels there are is known only then.
type collector func(samples)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// samples receives the metrics of one scrape.
type samples chan<- prometheus.Metric

func (s samples) gauge(name, help string, value float64, labels prometheus.Labels) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels), prometheus.GaugeValue, value)
}

func (s samples) counter(name, help string, value uint64, labels prometheus.Labels) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels), prometheus.CounterValue,
		float64(value))
}

// summary sends a count and a sum, without quantiles.
func (s samples) summary(name, help string, count uint64, sum float64, labels prometheus.Labels) {
	s <- prometheus.MustNewConstSummary(prometheus.NewDesc(name, help, nil, labels), count, sum, nil)
}

func newGauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func newCounter(name, help string, value func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 {
		return float64(value())
	})
}

// unixSeconds returns NaN for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return math.NaN()
	}
	return float64(t.UnixMilli()) / 1000
}

// ifKnown returns NaN for nil.
func ifKnown(yes *bool) float64 {
	if yes == nil {
		return math.NaN()
	}
	return oneIf(*yes)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
