package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Values returns all values by name, as they would be written in the file.
func (c *Config) Values() map[string]any {
	values := make(map[string]any)
	for _, s := range Settings() {
		value := field(reflect.ValueOf(c).Elem(), s.Name)
		if objects, isList := s.Default.(Objects); isList {
			values[s.Name] = objects.shown(value)
		} else {
			values[s.Name] = shown(value)
		}
	}
	return values
}

// Shown returns Values for users who may not read the file. It hides the query of the upstream's URL, which may be a
// key.
func (c *Config) Shown() map[string]any {
	values := c.Values()
	if address := c.UpstreamShown(); address != c.GraphQL.Upstream {
		values["graphql.upstream"] = address + "?" + hiddenValue
	}
	return values
}

// shown returns a value as it would be written in the file.
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

// Nested turns dotted names into objects.
func Nested(values map[string]any) map[string]any {
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

// WriteYAML writes the given values in the order of Settings, each under its description.
func WriteYAML(w io.Writer, values map[string]any) {
	var open []string
	for _, s := range Settings() {
		if _, given := values[s.Name]; !given {
			continue
		}
		path := strings.Split(s.Name, ".")
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
		value := " " + YAMLValue(values[s.Name])
		if objects, isList := s.Default.(Objects); isList {
			value = objects.yaml(values[s.Name], indent)
		}
		fmt.Fprintf(w, "%s# %s\n%s%s:%s\n", indent, s.Doc, indent, path[len(path)-1], value)
	}
}

// YAMLValue returns a value as YAML.
func YAMLValue(v any) string {
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
