package console

import (
	"fmt"
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

// drawLine returns the path of a graph that ends at the right edge. steps is the number of values that fill the width.
// A nil value leaves a gap. most is the highest value. scale is the value at the upper edge: most, but at least least.
func drawLine(values []*float64, steps int, least float64) (path string, most, scale float64) {
	scale = least
	for _, v := range values {
		if v != nil {
			most, scale = max(most, *v), max(scale, *v)
		}
	}
	var b strings.Builder
	pen := "M"
	for i, v := range values {
		if v == nil {
			pen = "M"
			continue
		}
		x := lineWidth - float64(len(values)-1-i)*lineWidth/float64(max(1, steps-1))
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, x, lineHeight-lineHeight**v/scale)
		if pen == "M" {
			b.WriteString("h.1") // makes a single value visible as a dot
		}
		pen = "L"
	}
	return b.String(), most, scale
}
