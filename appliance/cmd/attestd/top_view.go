package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/text"
)

// topState is the first line of the view.
type topState struct{ text, colour string }

// topView draws the daemon's activity. The goroutine of run owns its fields.
type topView struct {
	admin   *client.Admin
	screen  *screen
	samples []wire.Sample // oldest first
	colours bool
	state   topState          // whether the appliance signs
	names   map[string]string // names of API keys, by id
}

func (v *topView) run(ctx context.Context) {
	v.state = topState{"asking", ""}
	// The error only says that the view was closed.
	_ = followSamples(ctx, v.admin, topSeconds, func(one wire.Sample) error {
		v.samples = append(v.samples, one)
		v.samples = v.samples[max(0, len(v.samples)-topSeconds):]
		if time.Since(one.Time) < 2*watchInterval { // older samples arrive all at once
			v.look(ctx)
			v.draw()
		}
		return nil
	}, func(error) {
		v.state = topState{"no answer, waiting", red}
		v.draw()
	})
}

// look asks the daemon for the state that samples do not have.
func (v *topView) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	status, err := v.admin.Status(ctx)
	switch {
	case err != nil:
		v.state = topState{err.Error(), red}
	case status.Signing.State == wire.SigningReady:
		v.state = topState{"signing", green}
	default:
		v.state = topState{"not signing: " + string(status.Signing.State) + "; " + status.Signing.Remedy, red}
	}
	if status.HSM != nil {
		v.state.text += fmt.Sprintf("; %d of %d sessions", status.HSM.SessionsInUse, status.HSM.MostSessions)
	}
	for id := range v.samples[len(v.samples)-1].Keys {
		if _, known := v.names[id]; !known {
			v.askNames(ctx)
			return
		}
	}
}

func (v *topView) askNames(ctx context.Context) {
	keys, err := v.admin.ListKeys(ctx)
	if err != nil {
		return // the view shows ids instead
	}
	v.names = make(map[string]string, len(keys))
	for _, k := range keys {
		v.names[k.ID] = k.Name
	}
}

func (v *topView) draw() {
	width, height := v.screen.size()
	var b strings.Builder
	writeTop(&page{w: &b, colours: v.colours}, v.samples, v.state, v.names, width, height)
	v.screen.draw(b.String())
}

// Windows over which rates are shown, in seconds.
var topWindows = []int{1, 60, topSeconds}

const (
	topHead = 10 // lines above the chart and the lists
	topName = 12 // columns of a row's name
	topRate = 9  // columns of a number
	// topSmall is the height, in lines, of a terminal that has no room for a chart.
	topSmall   = 30
	topHighest = 12 // lines of a chart at most
)

// topRows are the rows of the view. The average of a rate is shown, and the maximum of any other value.
var topRows = []struct {
	name  string
	value func(wire.Sample) float64
	rate  bool
}{
	{"attest/s", attestations, true},
	{"reads/s", func(s wire.Sample) float64 { return float64(s.Reads) }, true},
	{"errors/s", func(s wire.Sample) float64 { return float64(errorsOf(s)) }, true},
	{"median ms", func(s wire.Sample) float64 { return thousandfold(s.P50Seconds) }, false},
	{"p99 ms", func(s wire.Sample) float64 { return thousandfold(s.P99Seconds) }, false},
	{"sessions", func(s wire.Sample) float64 { return float64(s.InUse) }, false},
}

func attestations(s wire.Sample) float64 { return float64(s.Attestations) }

// writeTop fits a terminal of 40 columns and 24 lines, and uses any additional room: for sparklines of the last
// seconds, a chart, and longer lists.
func writeTop(w io.Writer, samples []wire.Sample, state topState, names map[string]string, width, height int) {
	fmt.Fprintf(w, "attestd %s\n\n", paint(w, state.colour, state.text))
	seconds := width - topName - topRate*len(topWindows) - gap
	head := fmt.Sprintf("%-*s%*s%*s%*s", topName, "", topRate, "now", topRate, "1 min", topRate, "15 min")
	if seconds >= topName {
		head += fmt.Sprintf("  last %d s", seconds)
	}
	fmt.Fprintln(w, head)
	for _, row := range topRows {
		line := fmt.Sprintf("%-*s", topName, row.name)
		for _, n := range topWindows {
			line += fmt.Sprintf("%*s", topRate, decimal(over(last(samples, n), row.value, row.rate)))
		}
		if seconds >= topName {
			line += "  " + chart(valuesOf(last(samples, seconds), row.value), 1)[0]
		}
		if row.name == "errors/s" && over(last(samples, 60), row.value, true) > 0 {
			line = paint(w, red, line)
		}
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w)
	left := height - topHead
	if lines := min(height-topSmall, topHighest); lines > 0 {
		values := longest(samples, width)
		fmt.Fprintf(w, "attestations per second in 15 min, at most %s\n", decimal(highest(values)))
		for _, line := range chart(values, lines) {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
		fmt.Fprintln(w)
		left -= lines + 2
	}
	minute := last(samples, 60)
	if width < statusWidth {
		for _, list := range [][]string{counted("API KEY", perKey(minute, names), minute, width, left/2),
			counted("ERROR", perCode(minute), minute, width, left/2)} {
			fmt.Fprintln(w, strings.Join(list, "\n"))
		}
		return
	}
	half := (width - gap) / 2
	keys := counted("API KEY", perKey(minute, names), minute, half, left)
	failed := counted("ERROR", perCode(minute), minute, half, left)
	for i := range max(len(keys), len(failed)) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-*s%s", half+gap, at(keys, i), at(failed, i)), " "))
	}
}

// at returns an element, or "" beyond the end.
func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

func decimal(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return text.Decimal(v, 1)
}

func valuesOf(samples []wire.Sample, value func(wire.Sample) float64) (values []float64) {
	for _, s := range samples {
		values = append(values, value(s))
	}
	return values
}

// longest returns the attestations per second over the whole time span in at most width columns, each with the maximum
// of some seconds. A second without a sample is NaN.
func longest(samples []wire.Sample, width int) []float64 {
	if len(samples) == 0 {
		return nil
	}
	each := int64((topSeconds + width - 1) / max(1, width-1)) // seconds in a column; begins at its multiples
	first := samples[0].Time.Unix() / each
	values := make([]float64, samples[len(samples)-1].Time.Unix()/each-first+1)
	for i := range values {
		values[i] = math.NaN()
	}
	for _, s := range samples {
		if i := s.Time.Unix()/each - first; i >= 0 && i < int64(len(values)) { // the clock may have been set
			values[i] = highest([]float64{values[i], attestations(s)})
		}
	}
	return values[max(0, len(values)-width):]
}

func last(samples []wire.Sample, n int) []wire.Sample {
	return samples[max(0, len(samples)-max(n, 0)):]
}

// over returns the average or the maximum of a window. The maximum is NaN if no sample has a value.
func over(samples []wire.Sample, value func(wire.Sample) float64, average bool) float64 {
	values := valuesOf(samples, value)
	if !average {
		return highest(values)
	}
	sum := 0.
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
}

// highest returns the maximum. It is NaN if there is none.
func highest(values []float64) float64 {
	most := math.NaN()
	for _, v := range values {
		if math.IsNaN(most) || v > most {
			most = v
		}
	}
	return most
}

// thousandfold returns NaN for nil.
func thousandfold(seconds *float64) float64 {
	if seconds == nil {
		return math.NaN()
	}
	return 1000 * *seconds
}

// chart draws values as columns of a number of lines; the highest value fills all of them. NaN is a gap.
func chart(values []float64, lines int) []string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	full, most := len(levels)-1, max(highest(values), math.SmallestNonzeroFloat64)
	drawn := make([]string, lines)
	for _, v := range values {
		eighths := 0
		if !math.IsNaN(v) {
			eighths = max(1, int(math.Round(v/most*float64(lines*full))))
		}
		for i := range lines {
			drawn[lines-1-i] += string(levels[min(max(eighths-i*full, 0), full)])
		}
	}
	return drawn
}

func perKey(samples []wire.Sample, names map[string]string) map[string]int64 {
	counts := make(map[string]int64)
	for _, s := range samples {
		for id, n := range s.Keys {
			counts[strings.TrimSpace(names[id]+" "+id)] += n
		}
	}
	return counts
}

func perCode(samples []wire.Sample) map[string]int64 {
	counts := make(map[string]int64)
	for _, s := range samples {
		for code, n := range s.Errors {
			counts[string(code)] += n
		}
	}
	return counts
}

// counted lists the highest counts, per second, in a number of lines.
func counted(title string, counts map[string]int64, samples []wire.Sample, width, lines int) []string {
	name := width - topRate - 1
	list := []string{fmt.Sprintf("%-*s%*s", name, title, topRate+1, "/s, 1 min")}
	names := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	})
	for _, one := range names[:min(len(names), max(1, lines-1))] {
		list = append(list, fmt.Sprintf("%-*s%*s", name, short(one, name-1), topRate+1,
			decimal(float64(counts[one])/float64(max(1, len(samples))))))
	}
	return list
}
