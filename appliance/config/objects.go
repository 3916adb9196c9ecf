package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Objects is the Default of a setting that is a list of objects: an empty list, with the members of an object. In
// Config, the setting is a slice of structs with the members' names as koanf tags. In the environment it is JSON.
type Objects []Setting

// objectsOf returns the members of a setting's objects, or nil for other settings.
func objectsOf(name string) Objects {
	for _, s := range Settings() {
		if members, ok := s.Default.(Objects); ok && s.Name == name {
			return members
		}
	}
	return nil
}

// parse reads a list from the environment.
func (o Objects) parse(text string) (list []any, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil, fmt.Errorf(`is not a JSON list of objects such as [{"%s": …}]`, o[0].Name)
	}
	return list, nil
}

// decode fills a slice of structs.
func (o Objects) decode(value any, target reflect.Value) error {
	if value == nil {
		return nil
	}
	list, isList := value.([]any)
	if !isList {
		return errors.New("is not a list of objects, each begun by a dash")
	}
	objects := reflect.MakeSlice(target.Type(), len(list), len(list))
	var failures []error
	for i, item := range list {
		if err := o.decodeOne(item, objects.Index(i)); err != nil {
			failures = append(failures, fmt.Errorf("entry %d: %w", i+1, err))
		}
	}
	target.Set(objects)
	return errors.Join(failures...)
}

func (o Objects) decodeOne(item any, target reflect.Value) error {
	given, isObject := item.(map[string]any)
	if !isObject {
		return errors.New("is not an object of names and values")
	}
	var failures []error
	for name := range given {
		if names := o.names(); !slices.Contains(names, name) {
			failures = append(failures, fmt.Errorf("no setting %q; did you mean %s?", name, nearest(name, names)))
		}
	}
	for _, member := range o {
		value, set := given[member.Name]
		if !set {
			value = member.Default
		}
		if err := decodeValue(value, field(target, member.Name)); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", member.Name, err))
		}
	}
	return errors.Join(failures...)
}

func (o Objects) names() []string {
	names := make([]string, len(o))
	for i, member := range o {
		names[i] = member.Name
	}
	return names
}

// shown converts a slice of structs to values as in the file.
func (o Objects) shown(objects reflect.Value) []map[string]any {
	all := make([]map[string]any, objects.Len())
	for i := range all {
		all[i] = make(map[string]any, len(o))
		for _, member := range o {
			all[i][member.Name] = shown(field(objects.Index(i), member.Name))
		}
	}
	return all
}

// yaml returns a list as YAML to follow the colon of its name. indent is the indentation of the name.
func (o Objects) yaml(value any, indent string) string {
	objects, _ := value.([]map[string]any)
	if len(objects) == 0 {
		return " []"
	}
	var b strings.Builder
	for _, object := range objects {
		bullet := "- "
		for _, member := range o {
			fmt.Fprintf(&b, "\n%s  %s%s: %s", indent, bullet, member.Name, YAMLValue(object[member.Name]))
			bullet = "  "
		}
	}
	return b.String()
}
