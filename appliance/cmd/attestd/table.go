package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance/text"
)

// page writes a result as text. It keeps the first error of a sequence of writes.
type page struct {
	w       io.Writer
	columns int  // available columns; 0 means unlimited, so that a pipe gets one row per line
	narrow  bool // set by table if it shortened a value or left out a column
	colours bool
	err     error
}

// page returns standard output. It is as wide as the terminal, or as $COLUMNS, and unlimited with --output wide.
func (a *app) page() *page {
	p := &page{w: a.out, columns: columns(a.out), colours: a.colours(a.out)}
	if p.columns == 0 {
		p.columns, _ = strconv.Atoi(a.source.Getenv("COLUMNS")) // if it is no number, the width stays 0
	}
	if a.output == outputWide || p.columns < 0 {
		p.columns = 0
	}
	return p
}

func (p *page) Write(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	n, err := p.w.Write(b)
	p.err = err
	return n, err
}

// room returns how many columns w has; 0 means unlimited.
func room(w io.Writer) int {
	if p, is := w.(*page); is {
		return p.columns
	}
	return columns(w)
}

const gap = 2 // between columns

// table writes aligned rows under a header, one line for each row. If a row is wider than w, the table is fitted; see
// fit.
func table(w io.Writer, header string, rows [][]string, leaveOut ...string) {
	all := append([][]string{strings.Split(header, "\t")}, rows...)
	for n, row := range all {
		all[n] = append(slices.Clone(row), make([]string, len(all[0])-len(row))...)
	}
	all = fit(w, all, leaveOut)
	widths := widthsOf(all)
	for _, row := range all {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell + strings.Repeat(" ", gap+widths[i]-utf8.RuneCountInString(cell)))
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// widthsOf returns the width of each column.
func widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit narrows a table, whose first row is its header, to the width of w. It shortens addresses and hashes, then leaves
// out empty columns, then those of leaveOut in that order, and cuts the widest ones at last. It stops as soon as the
// rows fit.
func fit(w io.Writer, rows [][]string, leaveOut []string) [][]string {
	width := func() (sum int) {
		for _, width := range widthsOf(rows) {
			sum += width + gap
		}
		return sum - gap
	}
	p, is := w.(*page)
	if !is || p.columns == 0 || width() <= p.columns {
		return rows
	}
	p.narrow = true
	for _, row := range rows {
		for i, cell := range row {
			row[i] = longHex.ReplaceAllStringFunc(cell, shortAddress)
		}
	}
	for _, name := range append(emptyColumns(rows), leaveOut...) {
		if i := slices.Index(rows[0], name); i >= 0 && width() > p.columns {
			for n := range rows {
				rows[n] = slices.Delete(rows[n], i, i+1)
			}
		}
	}
	for over := width() - p.columns; over > 0; over = width() - p.columns {
		if !cutWidest(rows, over) {
			return rows
		}
	}
	return rows
}

// longHex matches addresses and hashes.
var longHex = regexp.MustCompile(`0x[0-9a-fA-F]{40,}`)

// emptyColumns returns the names of the columns without a value.
func emptyColumns(rows [][]string) (names []string) {
	for i, name := range rows[0] {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" && row[i] != "-" }) {
			names = append(names, name)
		}
	}
	return names
}

// leastCut is the width to which a column is cut at most: that of a shortened address.
const leastCut = 11

// whole matches cells that are not cut: IDs, which people copy, and times.
var whole = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[-0-9]{10} [:0-9]{8}Z)$`)

// cutWidest cuts the widest column that may be cut. It returns false if there is none.
func cutWidest(rows [][]string, over int) bool {
	widest, most := -1, leastCut
	for i, width := range widthsOf(rows) {
		if width > most && !slices.ContainsFunc(rows, func(row []string) bool { return whole.MatchString(row[i]) }) {
			widest, most = i, width
		}
	}
	if widest < 0 {
		return false
	}
	for _, row := range rows {
		if utf8.RuneCountInString(row[widest]) > most-over {
			row[widest] = short(row[widest], max(leastCut, most-over))
		}
	}
	return true
}

// fields writes name and value pairs, aligned. Pairs with an empty value are left out.
func fields(w io.Writer, pairs [][2]string) {
	var rows [][]string
	for _, p := range pairs {
		if p[1] != "" {
			rows = append(rows, p[:])
		}
	}
	outline(w, rows)
}

// outline writes rows whose last cell is a text. If the text is too wide, it continues on the next line, in the same
// column.
func outline(w io.Writer, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	last := len(rows[0]) - 1
	widths, before := make([]int, last), 0
	for i := range last {
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		before += widths[i] + gap
	}
	for _, row := range rows {
		head := ""
		for i, width := range widths {
			head += row[i] + strings.Repeat(" ", width-utf8.RuneCountInString(row[i])+gap)
		}
		for _, line := range lines(row[last], room(w)-before) {
			fmt.Fprintln(w, head+line)
			head = strings.Repeat(" ", before)
		}
	}
}

// lines wraps a value to width, unless width is 0 or less. An empty value has no lines.
func lines(value string, width int) []string {
	if value == "" {
		return nil
	}
	if width <= 0 || utf8.RuneCountInString(value) <= width {
		return []string{value}
	}
	return text.Wrap(value, width)
}

// Colours of a terminal (ECMA-48, SGR).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint colours a text, if w shows colours.
func paint(w io.Writer, colour, s string) string {
	if p, is := w.(*page); !is || !p.colours || colour == "" || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}
