package config

import (
	"bytes"
	"fmt"
	"strings"
)

const manualHead = `# NAME

attestd.yaml - configuration of attestd

# SYNOPSIS

%[1]s

# DESCRIPTION

The file is YAML. 'attestd setup' writes it; \-\-config or $ATTESTD_CONFIG names another file. An environment variable overrides
a value of the file: %[2]s sets %[3]s. Settings without a value have their defaults. Durations have a unit (30s, 5m, 24h),
and so do sizes (64KiB, 16MiB). Write lists as [a, b] in the file, and as a,b in the environment.

'attestd config check' finds mistakes, 'attestd config show' prints the values in effect, and %[4]s has all
settings with their defaults. After a change, use 'systemctl reload attestd' for the settings marked (reload), and restart
attestd for the others.

# VALUES

`

// Manual returns attestd.yaml(5) as Markdown for go-md2man. header is its title line.
func Manual(header string) []byte {
	const example = "server.listen"
	b := bytes.NewBufferString(header + "\n")
	fmt.Fprintf(b, manualHead, DefaultFile, EnvName(example), example, ReferenceFile)
	for _, s := range Settings() {
		mark := ""
		if reloads(s.Name) {
			mark = " (reload)"
		}
		fmt.Fprintf(b, "**%s**%s\n: %s. Default: %s.\n\n", manualEscape(s.Name), mark, manualEscape(s.Doc),
			manualEscape(showDefault(s.Default)))
		members, _ := s.Default.(Objects)
		for _, m := range members {
			fmt.Fprintf(b, "*%s* of each %s\n: %s. Default: %s.\n\n", manualEscape(m.Name), manualEscape(s.Name),
				manualEscape(m.Doc), manualEscape(showDefault(m.Default)))
		}
	}
	b.WriteString(
		"# SEE ALSO\n\n**attestd(1)**, **attestd-setup(1)**, **attestd-config-check(1)**, **attestd-reload(1)**\n")
	return b.Bytes()
}

// manualEscape escapes Markdown.
func manualEscape(text string) string {
	return strings.NewReplacer(`\`, `\\`, "_", `\_`, "*", `\*`, "<", `\<`, "`", "\\`").Replace(text)
}
