package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/hsm"
)

func newConfig(a *app) *cobra.Command {
	return group("config", "The configuration: check, show",
		"The configuration is YAML; each value can also be set as ATTESTD_SECTION_NAME in the environment,\nwhich goes over the file.",
		newConfigCheck(a), newConfigShow(a))
}

func newConfigCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "check",
		Short:   "Validate the configuration without starting anything",
		Example: "  attestd config check --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			if err := errors.Join(requireSetup(&a.source, c), checkReferences(c)); err != nil {
				return err
			}
			return a.print(map[string]bool{"ok": true}, func(w io.Writer) { fmt.Fprintln(w, "The configuration is valid.") })
		},
	}
}

// requireSetup returns an error on a machine that nobody has set up: there is no configuration, the environment sets no
// hsm.uri, and the PIN that its default names is not there either.
func requireSetup(from *source, c *config) error {
	path := from.path()
	if _, set := from.lookup(envName("hsm.uri")); set || exists(path) {
		return nil
	}
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return fmt.Errorf("hsm.uri: %w", err)
	}
	if exists(strings.TrimPrefix(uri.PINSource, "file:")) {
		return nil
	}
	return fmt.Errorf("no configuration yet: run 'attestd setup', which writes %s", path)
}

// checkReferences checks what the configuration points at, as far as that can be done without the HSM.
func checkReferences(c *config) error {
	if _, err := hsm.ParseURI(c.HSM.URI); err != nil {
		return fmt.Errorf("hsm.uri: %w", err)
	}
	for name, path := range map[string]string{"cert": c.Server.TLS.Cert, "key": c.Server.TLS.Key, "client_ca": c.Server.TLS.ClientCA} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("server.tls.%s: %w", name, err)
		}
	}
	_, err := readScreening(c)
	return errors.Join(err, checkUpstreamReferences(c))
}

func newConfigShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the effective values, with what each is for",
		Example: `  attestd config show
  attestd config show --output json
  ATTESTD_SERVER_LISTEN=0.0.0.0:443 attestd config show`,
		Args: noArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			values := c.values()
			return a.print(nested(values), func(w io.Writer) { writeYAML(w, values) })
		},
	}
}

// values are all, by name, as they would be written in the file.
func (c *config) values() map[string]any {
	values := make(map[string]any)
	for _, s := range settings() {
		values[s.name] = shown(field(reflect.ValueOf(c).Elem(), s.name))
	}
	return values
}

// shown is a value as it would be written in the file.
func shown(v reflect.Value) any {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	if v.Kind() == reflect.Slice {
		items := make([]string, v.Len())
		for i := range items {
			items[i] = fmt.Sprint(v.Index(i).Interface())
		}
		return items
	}
	return v.Interface()
}

// nested turns dotted names into objects.
func nested(values map[string]any) map[string]any {
	root := make(map[string]any)
	for name, value := range values {
		at, path := root, strings.Split(name, ".")
		for _, section := range path[:len(path)-1] {
			if _, ok := at[section].(map[string]any); !ok {
				at[section] = make(map[string]any)
			}
			at = at[section].(map[string]any)
		}
		at[path[len(path)-1]] = value
	}
	return root
}

// writeYAML writes the values that are given in the order of settings, each under its explanation.
func writeYAML(w io.Writer, values map[string]any) {
	var open []string
	for _, s := range settings() {
		if _, given := values[s.name]; !given {
			continue
		}
		path := strings.Split(s.name, ".")
		sections := path[:len(path)-1]
		for depth, section := range sections {
			if depth < len(open) && open[depth] == section {
				continue
			}
			fmt.Fprintf(w, "%s%s:\n", strings.Repeat("  ", depth), section)
			open = append(open[:depth:depth], section)
		}
		open = open[:len(sections)]
		indent := strings.Repeat("  ", len(sections))
		fmt.Fprintf(w, "%s# %s\n%s%s: %s\n", indent, s.doc, indent, path[len(path)-1], yamlValue(values[s.name]))
	}
}

func yamlValue(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = fmt.Sprintf("%q", s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	return fmt.Sprint(v)
}
