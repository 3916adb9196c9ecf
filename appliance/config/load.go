package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/attestd/attestd/appliance"
)

// LoadFile reads defaults, file, environment and flags; each overrides the ones before. If path is empty, it reads the
// default file, which may be missing. The error joins all faults, each with its location.
func (s *Source) LoadFile(path string, flags map[string]any) (*Config, error) {
	k := koanf.New(".")
	fromFile, unknown, err := readFile(path)
	if err != nil {
		return nil, err
	}
	fromEnv, unknownEnv := readEnv(s.Environ)
	defaults := s.defaults()
	layers := map[string]map[string]any{"file": fromFile, "environment": fromEnv, "flags": flags}
	several := chooseTokens(cmp.Or(path, DefaultFile), defaults, layers)
	for _, layer := range []map[string]any{defaults, fromFile, fromEnv, flags} {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			return nil, err
		}
	}
	c := Config{origins: make(map[string]string), file: cmp.Or(path, DefaultFile)}
	for _, layer := range []struct {
		name   string
		values map[string]any
	}{{"file", fromFile}, {"environment", fromEnv}, {"flag", flags}} {
		for name := range layer.values {
			c.origins[name] = layer.name
		}
	}
	err = errors.Join(decode(k, defaults, &c), c.validate())
	if s.Check != nil {
		err = errors.Join(err, s.Check(&c))
	}
	return &c, errors.Join(unknown, unknownEnv, several, located(path, layers, err))
}

// defaults returns the defaults of Settings, with the path of SoftHSM's library if known.
func (s *Source) defaults() map[string]any {
	values := make(map[string]any)
	for _, d := range Settings() {
		values[d.Name] = d.Default
		if _, isList := d.Default.(Objects); isList {
			values[d.Name] = []any{}
		}
	}
	if s.SoftHSM != "" {
		values["hsm.uri"] = strings.ReplaceAll(values["hsm.uri"].(string), debianSoftHSM, s.SoftHSM)
	}
	return values
}

// ReadFile returns the file's values by name. Unknown names are errors.
func ReadFile(path string) (map[string]any, error) {
	values, unknown, err := readFile(path)
	return values, errors.Join(err, unknown)
}

func readFile(path string) (values map[string]any, unknown, err error) {
	optional := path == ""
	if optional {
		path = DefaultFile
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case missing && optional:
			return nil, nil, nil
		case missing:
			return nil, nil, fmt.Errorf("configuration %s does not exist: create it with: attestd setup", path)
		}
		return nil, nil, fmt.Errorf("configuration %s: %w", path, plainYAML(err))
	}
	var lines lines
	for _, name := range k.Keys() {
		if isSetting(name) || isEmptySection(k, name) {
			continue
		}
		if lines == nil {
			lines = readLines(path)
		}
		why := fmt.Errorf("no setting %q; did you mean %s?", name, nearest(name, settingNames()))
		if isSection(name) {
			why = fmt.Errorf("%s is a section: write its values below it, indented", name)
		}
		unknown = errors.Join(unknown, fmt.Errorf("configuration %s: %w (line %d)", path, why, lines[name]))
		k.Delete(name)
	}
	return k.All(), unknown, nil
}

// isSection reports whether name is a section of settings.
func isSection(name string) bool {
	return slices.ContainsFunc(settingNames(), func(s string) bool { return strings.HasPrefix(s, name+".") })
}

// isEmptySection reports whether name is a section without content, such as "tls:". It deletes such a section.
func isEmptySection(k *koanf.Koanf, name string) bool {
	v := k.Get(name)
	m, isMap := v.(map[string]any)
	if isSection(name) && (v == nil || isMap && len(m) == 0) {
		k.Delete(name)
		return true
	}
	return false
}

// readEnv returns the values set by environment variables, by name, and errors for the other variables with the prefix.
func readEnv(environ []string) (values map[string]any, wrong error) {
	byVariable := make(map[string]string)
	for _, name := range settingNames() {
		byVariable[EnvName(name)] = name
	}
	values = make(map[string]any)
	for _, kv := range environ {
		variable, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(variable, envPrefix) || slices.Contains(envOther, variable) {
			continue
		}
		name, known := byVariable[variable]
		if !known {
			variables := slices.Collect(maps.Keys(byVariable))
			wrong = errors.Join(wrong,
				fmt.Errorf("environment: no setting %s; did you mean %s?", variable, nearest(variable, variables)))
			continue
		}
		values[name] = value
		if objects := objectsOf(name); objects != nil {
			list, err := objects.parse(value)
			if err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment: %s %w", variable, err))
			}
			values[name] = list
		}
	}
	return values, wrong
}

// EnvName returns the environment variable of a setting.
func EnvName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, ".", "_"))
}

// Differing returns the names of the settings in which the two configurations differ.
func (c *Config) Differing(other *Config) (names []string) {
	for _, s := range Settings() {
		one, another := field(reflect.ValueOf(c).Elem(), s.Name), field(reflect.ValueOf(other).Elem(), s.Name)
		bothEmpty := one.Kind() == reflect.Slice && one.Len() == 0 && another.Len() == 0 // "name:" and "name: []"
		if !bothEmpty && !reflect.DeepEqual(one.Interface(), another.Interface()) {
			names = append(names, s.Name)
		}
	}
	return names
}

// decode fills c setting by setting, so that each error names its setting. A faulty setting gets its default, so that
// it causes no further error.
func decode(k *koanf.Koanf, defaults map[string]any, c *Config) error {
	var failures []error
	for _, s := range Settings() {
		target := field(reflect.ValueOf(c).Elem(), s.Name)
		decode := decodeValue
		objects, isList := s.Default.(Objects)
		if isList {
			decode = objects.decode
		}
		if err := decode(k.Get(s.Name), target); err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.Name, err))
			if !isList { // a list reports each faulty entry
				must(decode(defaults[s.Name], target))
			}
		}
	}
	return errors.Join(failures...)
}

// must panics on an error that only a programming mistake can cause, such as an invalid default.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// field returns the field at the path of koanf tags that the dotted name gives.
func field(v reflect.Value, name string) reflect.Value {
	head, rest, nested := strings.Cut(name, ".")
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") == head {
			if nested {
				return field(v.Field(i), rest)
			}
			return v.Field(i)
		}
	}
	panic("Settings: no field " + name)
}

func decodeValue(value any, target reflect.Value) error {
	if value == nil {
		return nil // a name without a value keeps the zero value
	}
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: target.Addr().Interface(),
		// Only text is converted, because environment variables are always text.
		WeaklyTypedInput: reflect.TypeOf(value).Kind() == reflect.String,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			stringOnly,
			numberAsText,
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc(),
			mapstructure.StringToWeakSliceHookFunc(","),
		),
	})
	if err != nil {
		return err
	}
	if err := decoder.Decode(value); err != nil {
		return plainError(value, target, err)
	}
	return nil
}

// stringOnly refuses a bare number where a unit is needed: 30 is not a duration, 30s is.
func stringOnly(from, to reflect.Type, value any) (any, error) {
	needsUnit := to == reflect.TypeFor[time.Duration]() || to == reflect.TypeFor[Size]()
	if needsUnit && from.Kind() != reflect.String {
		return nil, fmt.Errorf("%v needs a unit", value)
	}
	return value, nil
}

// plainError describes the expected value instead of the decoder's failure.
func plainError(value any, target reflect.Value, err error) error {
	switch target.Interface().(type) {
	case time.Duration:
		return fmt.Errorf("%v is not a duration such as 30s or 2m", value)
	case Size:
		return fmt.Errorf("%v is not a size such as 16KiB or 64MiB", value)
	case bool:
		return fmt.Errorf("%v is not true or false", value)
	case int, uint64:
		return fmt.Errorf("%v is not a whole number", value)
	case string:
		return fmt.Errorf("%v is not text", value)
	case DatabaseURL: // the error may repeat a password
		return errors.New("is not text such as postgres://attestd@db.example.com/attestd")
	case []Header: // may repeat a secret
		return errors.New(`is not a list of quoted texts such as "x-api-key: file:/etc/attestd/upstream-key"`)
	case []netip.Prefix:
		return fmt.Errorf("%v is not a list of networks such as 10.0.0.0/8", value)
	case encoding.TextUnmarshaler, appliance.Rate:
		return fmt.Errorf("%v is not like 10/s, 600/m, 1000/h or unlimited", value)
	}
	return err
}

// nearest returns the name with the smallest edit distance.
func nearest(name string, names []string) string {
	slices.Sort(names)
	return slices.MinFunc(names, func(a, b string) int {
		return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
	})
}
