package console

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/text"
)

// graphSeconds is the time span of the graphs in seconds. The daemon keeps samples for that long.
const graphSeconds = 15 * 60

// figure is a row of the table that shows the graphs' data as numbers.
type figure struct {
	Name           string
	Minute, Window string // of the last minute, and of all samples
}

// figures summarises samples. The newest sample is last.
func figures(samples []wire.Sample) []figure {
	minute := samples[max(0, len(samples)-60):]
	of := func(name string, tell func([]wire.Sample) string) figure {
		return figure{name, tell(minute), tell(samples)}
	}
	return []figure{
		of("Attestations", func(s []wire.Sample) string {
			return text.Count(total(s, func(s wire.Sample) int64 { return s.Attestations }))
		}),
		of("Latency, median", func(s []wire.Sample) string {
			return latency(s, func(s wire.Sample) *float64 { return s.P50Seconds }, .5)
		}),
		of("Latency, p99 of the worst second", func(s []wire.Sample) string {
			return latency(s, func(s wire.Sample) *float64 { return s.P99Seconds }, 1)
		}),
		of("Errors", errorsTold),
		of("Queries", func(s []wire.Sample) string {
			return text.Count(total(s, func(s wire.Sample) int64 { return s.Reads }))
		}),
	}
}

func total(samples []wire.Sample, of func(wire.Sample) int64) (sum int64) {
	for _, s := range samples {
		sum += of(s)
	}
	return sum
}

// latency formats a quantile of the seconds' values: .5 for the median, 1 for the worst.
func latency(samples []wire.Sample, of func(wire.Sample) *float64, quantile float64) string {
	var had []float64
	for _, s := range samples {
		if seconds := of(s); seconds != nil {
			had = append(had, *seconds)
		}
	}
	if len(had) == 0 {
		return "–"
	}
	slices.Sort(had)
	return fmt.Sprintf("%.1f ms", 1000*had[int(quantile*float64(len(had)-1))])
}

// errorsTold formats the number of errors and the three most frequent codes.
func errorsTold(samples []wire.Sample) string {
	byCode := make(map[appliance.Code]int64)
	var sum int64
	for _, s := range samples {
		for code, n := range s.Errors {
			byCode[code] += n
			sum += n
		}
	}
	codes := slices.SortedFunc(maps.Keys(byCode), func(a, b appliance.Code) int {
		return cmp.Or(cmp.Compare(byCode[b], byCode[a]), strings.Compare(string(a), string(b)))
	})
	var most []string
	for _, code := range codes[:min(3, len(codes))] {
		most = append(most, fmt.Sprintf("%s %s", code, text.Count(byCode[code])))
	}
	if len(most) == 0 {
		return "0"
	}
	return text.Count(sum) + " (" + strings.Join(most, ", ") + ")"
}
