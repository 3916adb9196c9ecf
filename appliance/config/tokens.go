package config

import (
	"fmt"
	"strings"
)

// The settings that name tokens. Only one of them may be set.
const (
	oneToken      = "hsm.uri"
	severalTokens = "hsm.uris"
	severalKeys   = "hsm.keys"
)

// TokenURIs returns the URIs of the tokens of all attestor keys, in their order of use.
func (c *Config) TokenURIs() (uris []string) {
	for _, k := range c.AttestorKeys() {
		uris = append(uris, k.TokenURIs()...)
	}
	return uris
}

// TokenSetting returns the name of the i-th token's setting for errors. i counts from 0.
func (c *Config) TokenSetting(i int) string {
	switch key, at := c.KeyOfToken(i); {
	case len(c.HSM.Keys) > 0 && len(key.URIs) > 0:
		return fmt.Sprintf("%s: %s: uris: entry %d", severalKeys, key.Name, at+1)
	case len(c.HSM.Keys) > 0:
		return fmt.Sprintf("%s: %s: uri", severalKeys, key.Name)
	case len(c.HSM.URIs) > 0:
		return fmt.Sprintf("%s: entry %d", severalTokens, i+1)
	}
	return oneToken
}

// chooseTokens drops the default of hsm.uri if hsm.uris or hsm.keys is set. If two of them are set, the error names
// their locations.
func chooseTokens(path string, defaults map[string]any, layers map[string]map[string]any) error {
	names := []string{oneToken, severalTokens, severalKeys}
	var given []string
	told := make(map[string]string)
	for _, name := range names {
		if places := placesOf(path, name, layers); len(places) > 0 {
			given = append(given, name)
			told[name] = fmt.Sprintf("%s (%s)", name, strings.Join(places, "; "))
		}
	}
	if len(given) > 0 && given[0] != oneToken {
		defaults[oneToken] = ""
	}
	if len(given) < 2 {
		return nil
	}
	return fmt.Errorf(
		"%s and %s are both set: keep %s for one token, %s for several of the same key, or %s for several keys",
		told[given[0]], told[given[1]], oneToken, severalTokens, severalKeys)
}

// placesOf returns the locations that set a value that is not empty.
func placesOf(path, name string, layers map[string]map[string]any) (places []string) {
	for _, layer := range []string{"file", "environment", "flags"} {
		value, set := layers[layer][name]
		if list, isList := value.([]any); !set || value == nil || value == "" || isList && len(list) == 0 {
			continue
		}
		switch layer {
		case "file":
			places = append(places, fmt.Sprintf("%s, line %d", path, readLines(path)[name]))
		case "environment":
			places = append(places, "the variable "+EnvName(name))
		default:
			places = append(places, "the flags of this command")
		}
	}
	return places
}
