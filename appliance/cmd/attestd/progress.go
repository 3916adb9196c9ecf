package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Units of progress.
const (
	unitBytes     = "bytes"
	unitRows      = "rows"
	unitRecords   = "records"
	unitTransfers = "transfers"
	unitBlocks    = "blocks"
	unitPackets   = "packets"
)

// Terminals with fewer columns than roomy show neither the rate nor the remaining time.
const roomy = 72

// progress returns a callback that draws a bar on a terminal and does nothing elsewhere. end finishes the line.
func (a *app) progress(what, unit string) (update func(done, total int64), end func()) {
	if !isTerminal(a.err) {
		return func(int64, int64) {}, func() {}
	}
	bar := progressbar.NewOptions64(1, a.barOptions(what, unit)...)
	bar.StartWithoutRender() // gives the first update a rate
	drawn := false
	update = func(done, total int64) {
		drawn = true
		bar.ChangeMax64(max(total, 1))
		_ = bar.Set64(done) // fails only if the terminal fails
	}
	return update, func() {
		_ = bar.Exit() // leaves the bar as it is: interrupted work is not complete
		if drawn {
			fmt.Fprintln(a.err)
		}
	}
}

// barOptions fit the bar into one line of the terminal. A longer bar would leave its pieces on the screen.
func (a *app) barOptions(what, unit string) []progressbar.Option {
	options := []progressbar.Option{
		progressbar.OptionSetWriter(a.err), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100 * time.Millisecond), progressbar.OptionFullWidth(),
	}
	if unit == unitBytes {
		options = append(options, progressbar.OptionShowBytes(true))
	}
	if columns(a.err) < roomy {
		return append(options, progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
	}
	if unit != unitBytes {
		options = append(options, progressbar.OptionSetItsString(unit), progressbar.OptionShowIts())
	}
	return append(options, progressbar.OptionSetPredictTime(true))
}

// columns returns the width of a terminal; 0 if w is no terminal.
func columns(w any) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
