package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// What is counted while a command works.
const (
	unitBytes     = "bytes"
	unitRows      = "rows"
	unitRecords   = "records"
	unitTransfers = "transfers"
	unitBlocks    = "blocks"
)

// A terminal of fewer columns than roomy has no room for how fast it goes and when it will be done.
const roomy = 72

// progress returns a callback that draws a bar on a terminal and does nothing elsewhere, and what ends it.
func (a *app) progress(what, unit string) (update func(done, total int64), end func()) {
	if !isTerminal(a.err) {
		return func(int64, int64) {}, func() {}
	}
	bar := progressbar.NewOptions64(1, a.barOptions(what, unit)...)
	bar.StartWithoutRender() // so that the first update has a rate
	drawn := false
	update = func(done, total int64) {
		drawn = true
		bar.ChangeMax64(max(total, 1))
		_ = bar.Set64(done) // fails only when the terminal does
	}
	return update, func() {
		_ = bar.Exit() // leaves it where it is: what was interrupted is not complete
		if drawn {
			fmt.Fprintln(a.err)
		}
	}
}

// barOptions fit the bar into the terminal's line: a longer one would leave its pieces on the screen.
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

// columns is how many columns a terminal has; 0 where w is none.
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
