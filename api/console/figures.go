package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/history"
	"github.com/attestd/attestd/appliance/text"
)

// graphSeconds is the time span of the live graphs in seconds. The daemon keeps samples of each second for that long.
const graphSeconds = 15 * 60

// timeSpan is how far back the graphs reach.
type timeSpan struct {
	Name    string // in the URL
	Title   string
	Seconds int
}

// spans are all time spans. The first one is live, with a sample for each second; the others show the history.
var spans = []timeSpan{
	{"15m", "15 minutes", graphSeconds}, {"1h", "1 hour", 3600}, {"6h", "6 hours", 6 * 3600},
	{"24h", "24 hours", 24 * 3600}, {"7d", "7 days", 7 * 24 * 3600}, {"30d", "30 days", 30 * 24 * 3600},
}

// Live reports whether the graphs show each second.
func (s timeSpan) Live() bool { return s.Seconds == graphSeconds }

// readSpan returns the named span, or the live one.
func readSpan(name string) timeSpan {
	return spans[max(0, slices.IndexFunc(spans, func(s timeSpan) bool { return s.Name == name }))]
}

// sendHistory answers with the history of a span, for the graphs.
func sendHistory(w http.ResponseWriter, v *visit) error {
	history, err := v.Admin.History(v.Context(), readSpan(v.URL.Query().Get("span")).Seconds)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(history)
}

// withHistory replaces the figures of the graphs' span by those of the history.
func withHistory(live []figure, steps []history.Step) []figure {
	var all history.Step
	var medians []wire.Sample
	for _, s := range steps {
		all.Add(s)
		if s.Requests > 0 {
			medians = append(medians, wire.Sample{P50Seconds: &s.P50})
		}
	}
	milliseconds := func(seconds float64, of int64) string {
		if of == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f ms", 1000*seconds)
	}
	for i, shown := range []string{
		text.Count(all.Attestations),
		latency(medians, func(s wire.Sample) *float64 { return s.P50Seconds }, .5),
		milliseconds(all.P99, all.Requests),
		fmt.Sprintf("%s (refusals %s, errors %s)", text.Count(all.Refusals+all.Errors), text.Count(all.Refusals),
			text.Count(all.Errors)),
		text.Count(all.Reads),
		milliseconds(all.HSM, all.Signatures),
		text.Count(all.Sessions),
	} {
		live[i].Window = shown
	}
	return live
}

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
		of("Latency, worst p99", func(s []wire.Sample) string {
			return latency(s, func(s wire.Sample) *float64 { return s.P99Seconds }, 1)
		}),
		of("Refusals and errors", errorsTold),
		of("Queries", func(s []wire.Sample) string {
			return text.Count(total(s, func(s wire.Sample) int64 { return s.Reads }))
		}),
		of("HSM latency, mean", func(s []wire.Sample) string {
			return latency(s, func(s wire.Sample) *float64 { return s.HSMSeconds }, .5)
		}),
		of("HSM sessions in use, most", func(s []wire.Sample) string {
			most := 0
			for _, one := range s {
				most = max(most, one.InUse)
			}
			return strconv.Itoa(most)
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
