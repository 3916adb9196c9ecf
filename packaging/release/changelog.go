package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

const maintainer = "attestd maintainers <attestd@users.noreply.github.com>"

// release is one version of CHANGELOG.md.
type release struct {
	version string
	date    time.Time
	changes []string // one line of text per change
}

var heading = regexp.MustCompile(`^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?`)

// parseChangelog reads the format of Keep a Changelog. The unreleased section becomes a release of the given version. A
// release without changes is omitted.
func parseChangelog(text, version string, date time.Time) ([]release, error) {
	var all []release
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		m := heading.FindStringSubmatch(line)
		switch {
		case m != nil && m[2] != "":
			day, err := time.Parse(time.DateOnly, m[2])
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			all = append(all, release{version: m[1], date: day})
		case m != nil:
			all = append(all, release{version: version, date: date})
		case strings.HasPrefix(line, "### "):
			section = strings.TrimPrefix(line, "### ")
		case len(all) == 0:
		case strings.HasPrefix(line, "- "):
			r := &all[len(all)-1]
			r.changes = append(r.changes, section+": "+plain(strings.TrimPrefix(line, "- ")))
		case strings.HasPrefix(line, "  "):
			r := &all[len(all)-1]
			if n := len(r.changes); n > 0 {
				r.changes[n-1] += " " + plain(strings.TrimSpace(line))
			}
		}
	}
	kept := all[:0]
	for _, r := range all {
		if len(r.changes) > 0 {
			kept = append(kept, r)
		}
	}
	if len(kept) == 0 {
		return nil, errors.New("no release in the changelog")
	}
	// The first entry must be the package's own version, even if no change is unreleased.
	if kept[0].version != version && strings.SplitN(version, "+", 2)[0] == kept[0].version {
		kept[0].version = version
	}
	if kept[0].version != version {
		kept = append([]release{{version, date, []string{"Changed: see the repository's history."}}}, kept...)
	}
	return kept, nil
}

// plain removes Markdown's backquotes.
func plain(s string) string { return strings.ReplaceAll(s, "`", "") }

func writeChangelog(w io.Writer, file, format, version string, date time.Time) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	releases, err := parseChangelog(string(text), version, date)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	switch format {
	case "debian":
		return writeDebian(w, releases)
	case "rpm":
		return writeRPM(w, releases)
	}
	return fmt.Errorf("no format %q", format)
}

// writeDebian writes the format of deb-changelog(5).
func writeDebian(w io.Writer, releases []release) error {
	var b strings.Builder
	for i, r := range releases {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "attestd (%s) unstable; urgency=medium\n\n", r.version)
		for _, change := range r.changes {
			b.WriteString(wrap(change, "  * ", "    ", 80))
		}
		fmt.Fprintf(&b, "\n -- %s  %s\n", maintainer, r.date.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeRPM writes the %changelog of an RPM spec file.
func writeRPM(w io.Writer, releases []release) error {
	var b strings.Builder
	for i, r := range releases {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "* %s %s - %s-1\n", r.date.Format("Mon Jan 02 2006"), maintainer, r.version)
		for _, change := range r.changes {
			b.WriteString(strings.ReplaceAll(wrap(change, "- ", "  ", 80), "%", "%%"))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks text between words into lines of at most width columns. A longer word gets its own line.
func wrap(text, first, rest string, width int) string {
	var b strings.Builder
	line, empty := first, true
	for word := range strings.FieldsSeq(text) {
		if !empty && len([]rune(line))+1+len([]rune(word)) > width {
			b.WriteString(line + "\n")
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	return b.String() + line + "\n"
}
