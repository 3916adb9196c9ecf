package console

import (
	"fmt"
	"math"
	"strings"
)

// Sizes of graphs, in the units of their viewBox.
const (
	sparkHeight = 24
	lineWidth   = 360
	lineHeight  = 100
)

// bars returns the path of a sparkline: one bar per count, one unit wide. The path is empty if all counts are zero.
func bars(counts []uint32) string {
	var most uint32
	for _, n := range counts {
		most = max(most, n)
	}
	var path strings.Builder
	for i, n := range counts {
		if n > 0 {
			fmt.Fprintf(&path, "M%d.5 %dv-%.1f", i, sparkHeight, max(1, sparkHeight*float64(n)/float64(most)))
		}
	}
	return path.String()
}

// line is a graph that ends at the right edge. Its y axis is logarithmic, so that an outage does not flatten the rest.
type line struct {
	path        string
	gaps        string  // areas between values that are missing
	most, scale float64 // the highest value, and the value at the upper edge
}

// drawLine draws a graph. steps is the number of values that fill the width. A nil value leaves a gap. The value at the
// upper edge is at least least.
func drawLine(values []*float64, steps int, least float64) line {
	l := line{scale: least}
	for _, v := range values {
		if v != nil {
			l.most, l.scale = max(l.most, *v), max(l.scale, *v)
		}
	}
	x := func(i int) float64 {
		return lineWidth - float64(len(values)-1-i)*lineWidth/float64(max(1, steps-1))
	}
	var path, gaps strings.Builder
	last := -1 // index of the value before
	for i, v := range values {
		if v == nil {
			continue
		}
		y := lineHeight - lineHeight*math.Log1p(*v)/math.Log1p(l.scale)
		if last >= 0 && last == i-1 {
			fmt.Fprintf(&path, "L%.1f %.1f", x(i), y)
		} else {
			fmt.Fprintf(&path, "M%.1f %.1fh.1", x(i), y) // h.1 makes a single value visible as a dot
		}
		if last >= 0 && last < i-1 {
			fmt.Fprintf(&gaps, "M%.1f 0H%.1fV%dH%.1fZ", x(last), x(i), lineHeight, x(last))
		}
		last = i
	}
	l.path, l.gaps = path.String(), gaps.String()
	return l
}
