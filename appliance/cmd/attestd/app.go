package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/attestd/attestd/appliance/config"
)

// app holds the terminal and the global flags, which all commands share.
type app struct {
	terminal
	source config.Source
	output string
}

// outputWide is text with all columns of tables, however narrow the terminal is.
const outputWide = "wide"

func (a *app) checkOutput(cmd *cobra.Command) error {
	if a.output != "text" && a.output != outputWide && a.output != "json" {
		return usagef(cmd, "--output must be text, wide or json, not %q", a.output)
	}
	return nil
}

func (a *app) json() bool { return a.output == "json" }

// config loads the configuration. flags override the file and the environment; their keys are names of values.
func (a *app) config(flags map[string]any) (*config.Config, error) { return a.source.Load(flags) }

// printJSON writes v to standard output as indented JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// print writes v as JSON with --output json. Otherwise it calls text.
func (a *app) print(v any, text func(w io.Writer)) error {
	if a.json() {
		return a.printJSON(v)
	}
	w := a.page()
	text(w)
	if w.narrow {
		a.say("Shortened to %d columns; to see everything, add: --output wide", w.columns)
	}
	return w.err
}

// say writes a line to standard error, for the operator.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

// colours reports whether w is a terminal that shows colours. NO_COLOR (no-color.org) and TERM=dumb turn them off.
func (a *app) colours(w any) bool {
	return isTerminal(w) && a.source.Getenv("NO_COLOR") == "" && a.source.Getenv("TERM") != "dumb"
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// openInput opens a file, or standard input for "-".
func (a *app) openInput(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.in), nil
	}
	return os.Open(name)
}

// readLimited reads a small input completely. It returns an error if the input has more than max bytes.
func readLimited(r io.Reader, max int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(b)) > max {
		err = errors.New("the file is too large")
	}
	return b, err
}

// orDash returns a dash for an empty table cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
