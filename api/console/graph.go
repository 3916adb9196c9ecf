package console

import (
	"fmt"
	"strings"
)

// How large a graph is, in the units of its viewBox.
const (
	sparkHeight = 24
	lineWidth   = 360
	lineHeight  = 100
)

// bars returns the path of a sparkline: for each count a bar, one unit wide. It is empty where all are zero.
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

// line returns the path of a graph of values that end at its right edge, as wide as so many steps, the highest value, and the value at its upper
// edge: the highest, but no less than least. Where a value is nil the line has a gap.
func line(values []*float64, steps int, least float64) (path string, most, scale float64) {
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
			b.WriteString("h.1") // so that a value by itself is a dot
		}
		pen = "L"
	}
	return b.String(), most, scale
}
