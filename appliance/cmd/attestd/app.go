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

// app is what all commands share: the terminal and the global flags.
type app struct {
	terminal
	source config.Source // of the configuration
	output string
}

func (a *app) checkOutput(cmd *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return usagef(cmd, "--output must be text or json, not %q", a.output)
	}
	return nil
}

func (a *app) json() bool { return a.output == "json" }

// config loads the configuration. Flags that set a value go over file and environment, by the value's name.
func (a *app) config(flags map[string]any) (*config.Config, error) { return a.source.Load(flags) }

// printJSON writes v indented, as a result.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// print writes v as JSON with --output json, else what text writes.
func (a *app) print(v any, text func(w io.Writer)) error {
	if a.json() {
		return a.printJSON(v)
	}
	w := a.page()
	text(w)
	return w.err
}

// say writes a line to a person, not a result.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }

// colours says whether w shows them: a terminal, unless NO_COLOR is set (no-color.org) or it is one that cannot.
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

// readLimited reads all of a small input. More than max bytes is an error.
func readLimited(r io.Reader, max int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(b)) > max {
		err = errors.New("it is too large")
	}
	return b, err
}

// orDash stands in for an empty table cell.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
