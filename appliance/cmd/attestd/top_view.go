package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
)

// topView draws the daemon's activity. The goroutine of run owns its fields.
type topView struct {
	admin   *client.Admin
	screen  *screen
	samples []wire.Sample     // oldest first
	state   string            // whether the appliance signs
	names   map[string]string // names of API keys, by id
}

func (v *topView) run(ctx context.Context) {
	v.state = "asking"
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
		v.state = "no answer, waiting"
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
		v.state = err.Error()
	case status.Signing.State == wire.SigningReady:
		v.state = "signing"
	default:
		v.state = "not signing: " + string(status.Signing.State) + "; " + status.Signing.Remedy
	}
	if status.HSM != nil {
		v.state += fmt.Sprintf("; %d of %d sessions", status.HSM.SessionsInUse, status.HSM.MostSessions)
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
	v.screen.draw(topText(v.samples, v.state, v.names, width, height))
}

// Windows over which rates are shown, in seconds.
var topWindows = []int{1, 60, topSeconds}

// topText fits a terminal of 40 columns and 24 lines, and uses any additional room.
func topText(samples []wire.Sample, state string, names map[string]string, width, height int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "attestd %s\n\n%-12s%9s%9s%9s\n", state, "", "now", "1 min", "15 min")
	for _, row := range []struct {
		name    string
		value   func(wire.Sample) float64
		average bool
	}{
		{"attest/s", func(s wire.Sample) float64 { return float64(s.Attestations) }, true},
		{"reads/s", func(s wire.Sample) float64 { return float64(s.Reads) }, true},
		{"errors/s", func(s wire.Sample) float64 { return float64(errorsOf(s)) }, true},
		{"p50 ms", func(s wire.Sample) float64 { return thousandfold(s.P50Seconds) }, false},
		{"p99 ms", func(s wire.Sample) float64 { return thousandfold(s.P99Seconds) }, false},
		{"sessions", func(s wire.Sample) float64 { return float64(s.InUse) }, false},
	} {
		fmt.Fprintf(&b, "%-12s", row.name)
		for _, seconds := range topWindows {
			if v := over(last(samples, seconds), row.value, row.average); math.IsNaN(v) {
				fmt.Fprintf(&b, "%9s", "-")
			} else {
				fmt.Fprintf(&b, "%9.1f", v)
			}
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "\nattestations %s\n\n", spark(last(samples, min(width-14, 2*len(topWindows)*20))))
	minute := last(samples, 60)
	left := max(2, (height-14)/2)
	counted(&b, "API KEY", perKey(minute, names), minute, left)
	counted(&b, "ERROR", perCode(minute), minute, left)
	return b.String()
}

func last(samples []wire.Sample, n int) []wire.Sample {
	return samples[max(0, len(samples)-max(n, 0)):]
}

// over returns the average or the maximum of a window. The maximum is NaN if no sample has a value.
func over(samples []wire.Sample, value func(wire.Sample) float64, average bool) float64 {
	sum, most := 0., math.NaN()
	for _, s := range samples {
		v := value(s)
		sum += v
		if math.IsNaN(most) || v > most {
			most = v
		}
	}
	if average {
		return sum / float64(max(1, len(samples)))
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

// spark draws attestations, one character per second.
func spark(samples []wire.Sample) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	most := int64(1)
	for _, s := range samples {
		most = max(most, s.Attestations)
	}
	var b strings.Builder
	for _, s := range samples {
		b.WriteRune(levels[s.Attestations*int64(len(levels)-1)/most])
	}
	return b.String()
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

// counted lists the highest counts, per second.
func counted(b *strings.Builder, title string, counts map[string]int64, samples []wire.Sample, lines int) {
	fmt.Fprintf(b, "%-29s%10s\n", title, "/s, 1 min")
	names := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	})
	for _, name := range names[:min(len(names), max(1, lines-1))] {
		fmt.Fprintf(b, "%-29s%10.1f\n", short(name, 28), float64(counts[name])/float64(max(1, len(samples))))
	}
}
