package config

import (
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The settings that name tokens: one of them is given.
const (
	oneToken      = "hsm.uri"
	severalTokens = "hsm.uris"
)

// TokenURIs are the URIs of the tokens, in the order in which they are used: those of hsm.uris, or else hsm.uri.
func (c *Config) TokenURIs() []string {
	if len(c.HSM.URIs) > 0 {
		return c.HSM.URIs
	}
	return []string{c.HSM.URI}
}

// TokenSetting names the setting of a token, the first of which is 0, in errors.
func (c *Config) TokenSetting(i int) string {
	if len(c.HSM.URIs) > 0 {
		return fmt.Sprintf("%s: entry %d", severalTokens, i+1)
	}
	return oneToken
}

// chooseTokens leaves out the default of hsm.uri where hsm.uris is given. To give both is an error that says where they are.
func chooseTokens(path string, defaults map[string]any, layers map[string]map[string]any) error {
	given := func(name string) (places []string) {
		for _, layer := range []string{"file", "environment", "flags"} {
			value, set := layers[layer][name]
			if list, isList := value.([]any); !set || value == nil || value == "" || isList && len(list) == 0 {
				continue
			}
			switch layer {
			case "file":
				places = append(places, fmt.Sprintf("%s, line %d", path, lineOf(path, name)))
			case "environment":
				places = append(places, "the variable "+EnvName(name))
			default:
				places = append(places, "what is chosen here")
			}
		}
		return places
	}
	one, several := given(oneToken), given(severalTokens)
	if len(several) == 0 {
		return nil
	}
	defaults[oneToken] = ""
	if len(one) == 0 {
		return nil
	}
	return fmt.Errorf("%s (%s) and %s (%s) are both set: keep %s for one token, or %s for several of the same key",
		oneToken, strings.Join(one, "; "), severalTokens, strings.Join(several, "; "), oneToken, severalTokens)
}

// lineOf is the line of a dotted name in a YAML file; 0 where it cannot be told.
func lineOf(path, name string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	var document yaml.Node
	if yaml.Unmarshal(text, &document) != nil || len(document.Content) == 0 {
		return 0
	}
	at, line := document.Content[0], 0
	for _, part := range strings.Split(name, ".") {
		found := false
		for i := 0; i+1 < len(at.Content) && !found; i += 2 {
			if key := at.Content[i]; key.Value == part {
				at, line, found = at.Content[i+1], key.Line, true
			}
		}
		if !found {
			return 0
		}
	}
	return line
}
