package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

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
	w := &stickyWriter{w: a.out}
	text(w)
	return w.err
}

// table writes rows under a header, aligned. It is for text inside print.
func table(w io.Writer, header string, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, header)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	tw.Flush()
}

// fields writes name and value pairs, aligned. Pairs with an empty value are left out.
func fields(w io.Writer, pairs [][2]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range pairs {
		if p[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", p[0], p[1])
		}
	}
	tw.Flush()
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

// stickyWriter keeps the first error of a sequence of writes.
type stickyWriter struct {
	w   io.Writer
	err error
}

func (s *stickyWriter) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	s.err = err
	return n, err
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
		err = errors.New("is too large")
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
