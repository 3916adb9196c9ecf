package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

const markdownHead = `# Configuration

<!-- Made from appliance/config by 'go generate ./appliance/config'. Change it there. -->

The configuration is YAML, in %[1]s; 'attestd setup' writes it, and --config or $ATTESTD_CONFIG names another file. Each value
can also be set in the environment, which goes over the file: %[2]s sets %[3]s. What is not set has its default.

Durations have a unit, as in 30s, 5m or 24h; so have sizes, as in 64KiB or 16MiB. Lists are written [a, b] in the file, and a,b in
the environment; lists of objects as JSON there. A name that is not here is an error, which names the nearest one that is.

'attestd config check' finds mistakes, 'attestd config show' prints the values in effect, and the packages install all of them with
their defaults as %[4]s. A PIN is never in the file: pin-source in hsm.uri or hsm.uris says where it is.

Changes take a restart, but for the values marked *reload*: 'systemctl reload attestd' has a running daemon follow them.
`

// Markdown returns docs/configuration.md.
func Markdown() []byte {
	const example = "server.listen"
	var b bytes.Buffer
	fmt.Fprintf(&b, markdownHead, DefaultFile, EnvName(example), example, ReferenceFile)
	section, objects := "none", []Setting(nil)
	for _, s := range Settings() {
		if at := sectionOf(s.Name); at != section {
			writeObjects(&b, objects)
			section, objects = at, nil
			title := section
			if title == "" {
				title = "At the top"
			}
			fmt.Fprintf(&b, "\n## %s\n\n%s", title, tableHead)
		}
		writeRow(&b, s)
		if _, isList := s.Default.(Objects); isList {
			objects = append(objects, s)
		}
	}
	writeObjects(&b, objects)
	return b.Bytes()
}

const tableHead = "| name | default | what it is for |\n| --- | --- | --- |\n"

// writeObjects writes the members of each list's objects.
func writeObjects(b *bytes.Buffer, lists []Setting) {
	for _, list := range lists {
		fmt.Fprintf(b, "\n### Each of %s\n\n%s", list.Name, tableHead)
		for _, member := range list.Default.(Objects) {
			writeRow(b, member)
		}
	}
}

func writeRow(b *bytes.Buffer, s Setting) {
	fmt.Fprintf(b, "| `%s` | %s | %s%s |\n", s.Name, markdownDefault(s.Default), strings.ReplaceAll(s.Doc, "|", `\|`), reloadMark(s.Name))
}

// sectionOf returns the first part of a dotted name, or "" for a name without a section.
func sectionOf(name string) string {
	section, _, nested := strings.Cut(name, ".")
	if !nested {
		return ""
	}
	return section
}

func markdownDefault(value any) string {
	text := showDefault(value)
	if text == emptyDefault || text == noDefaults {
		return text
	}
	return "`" + text + "`"
}

// Words for empty defaults.
const (
	emptyDefault = "empty"
	noDefaults   = "none"
)

func showDefault(value any) string {
	switch value := value.(type) {
	case string:
		if value == "" {
			return emptyDefault
		}
	case []string:
		if len(value) == 0 {
			return noDefaults
		}
	case Objects:
		return noDefaults
	}
	return fmt.Sprint(value)
}

func reloadMark(name string) string {
	if reloads(name) {
		return "; *reload*"
	}
	return ""
}

// reloads reports whether a running daemon applies a change of the setting.
func reloads(name string) bool { return slices.Contains(Reloadable(), name) }
