package config

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

const markdownHead = `# Configuration

<!-- Made from appliance/config by 'go generate ./appliance/config'. Change it there. -->

The configuration is a YAML file, %[1]s, which 'attestd setup' writes. --config or $ATTESTD_CONFIG
names another file. An environment variable overrides a value of the file: %[2]s sets %[3]s.
Settings without a value have their defaults.

Durations have a unit, as in 30s, 5m or 24h, and so do sizes, as in 64KiB or 16MiB. Write lists as [a, b] in the file,
and as a,b in the environment. Write lists of objects as JSON in the environment. An unknown name is an error, and the
error suggests the nearest known name.

'attestd config check' finds mistakes, and 'attestd config show' prints the values in effect. The packages install all
settings with their defaults as %[4]s. The PIN is never in the file: pin-source in hsm.uri or
hsm.uris names its location.

After a change, restart attestd. For the settings marked *reload*, 'systemctl reload attestd' is enough.
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

const tableHead = "| name | default | purpose |\n| --- | --- | --- |\n"

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
	fmt.Fprintf(b, "| `%s` | %s | %s%s |\n", s.Name, markdownDefault(s.Default), strings.ReplaceAll(s.Doc, "|", `\|`),
		reloadMark(s.Name))
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
