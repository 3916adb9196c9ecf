package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance/text"
)

// page writes a result as text. It keeps the first error of a sequence of writes.
type page struct {
	w       io.Writer
	columns int // available columns; 0 means unlimited, so that a pipe gets one row per line
	err     error
}

// page returns standard output. It is as wide as the terminal, or as $COLUMNS.
func (a *app) page() *page {
	width := columns(a.out)
	if width == 0 {
		width, _ = strconv.Atoi(a.source.Getenv("COLUMNS")) // if it is no number, the width stays 0
	}
	return &page{w: a.out, columns: max(0, width)}
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

const gap = 2 // between columns, and before folded lines

// table writes aligned rows under a header. A row that is wider than w continues on indented lines below. No cell is
// cut, since people copy the values.
func table(w io.Writer, header string, rows [][]string) {
	all := append([][]string{strings.Split(header, "\t")}, rows...)
	widths := make([]int, len(all[0]))
	for n, row := range all {
		all[n] = append(row, make([]string, len(widths)-len(row))...)
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := fold(widths, room(w))
	for _, row := range all {
		for n, line := range lines {
			writeLine(w, row, widths, line, n > 0, room(w))
		}
	}
}

// fold distributes the columns over lines, with as many on each as fit.
func fold(widths []int, room int) (lines [][]int) {
	used := 0
	for i, width := range widths {
		fits := room == 0 || used+gap+width <= room
		if len(lines) == 0 || !fits {
			lines = append(lines, nil)
			used = gap * min(1, len(lines)-1)
		} else {
			used += gap
		}
		used += width
		lines[len(lines)-1] = append(lines[len(lines)-1], i)
	}
	return lines
}

// writeLine writes one line of a row. If a single cell is wider than the line, it is broken between words.
func writeLine(w io.Writer, row []string, widths, line []int, folded bool, room int) {
	indent := ""
	if folded {
		indent = strings.Repeat(" ", gap)
	}
	if len(line) == 1 && room > 0 && len(indent)+widths[line[0]] > room {
		for _, part := range text.Wrap(row[line[0]], room-len(indent)) {
			fmt.Fprintln(w, indent+part)
		}
		return
	}
	var b strings.Builder
	b.WriteString(indent)
	for n, i := range line {
		if n > 0 {
			b.WriteString(strings.Repeat(" ", gap+widths[line[n-1]]-utf8.RuneCountInString(row[line[n-1]])))
		}
		b.WriteString(row[i])
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
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
