package config

import (
	"fmt"
	"io"
	"slices"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// AttestorKey is an entry of hsm.keys: a key that signs attestations.
type AttestorKey struct {
	Name    string                  `koanf:"name"`
	State   attest.AttestorKeyState `koanf:"state"`
	URI     string                  `koanf:"uri"`
	URIs    []string                `koanf:"uris"`
	Address string                  `koanf:"address"`
}

func attestorKeyMembers() Objects {
	return Objects{
		{"name", "", "name by which API keys are bound to it: letters, digits, dots, dashes and underscores"},
		{"state", string(attest.AttestorKeyActive),
			"active, or retiring: it signs only for the API keys that are bound to it, and no other can be bound"},
		{"uri", "", "like hsm.uri"},
		{"uris", []string{}, "like hsm.uris, used instead of uri"},
		{"address", "",
			"the key's address, as attestd hsm keygen and attestd hsm status print it; another key is refused"},
	}
}

// AttestorKeys returns the attestor keys in order. They are the entries of hsm.keys, or the one unnamed key of hsm.uri
// or hsm.uris. The unnamed key has an address only if hsm.address is set.
func (c *Config) AttestorKeys() []AttestorKey {
	if len(c.HSM.Keys) > 0 {
		return c.HSM.Keys
	}
	return []AttestorKey{{State: attest.AttestorKeyActive, URI: c.HSM.URI, URIs: c.HSM.URIs, Address: c.HSM.Address}}
}

// DefaultKey returns the attestor key that signs for unbound API keys.
func (c *Config) DefaultKey() AttestorKey {
	for _, k := range c.AttestorKeys() {
		if k.State == attest.AttestorKeyActive {
			return k
		}
	}
	return AttestorKey{} // validate refuses such a configuration
}

// TokenURIs returns the URIs of the tokens that hold the key, in their order of use.
func (k AttestorKey) TokenURIs() []string {
	if len(k.URIs) > 0 {
		return k.URIs
	}
	return []string{k.URI}
}

// KeyOfToken returns the attestor key of the i-th token, and the token's index within that key. Both count from 0; see
// TokenURIs.
func (c *Config) KeyOfToken(i int) (key AttestorKey, at int) {
	for _, k := range c.AttestorKeys() {
		if n := len(k.TokenURIs()); i >= n {
			i -= n
			continue
		}
		return k, i
	}
	return AttestorKey{}, 0
}

// Expected returns the configured address of the key, or nil.
func (k AttestorKey) Expected() (*appliance.Address, error) {
	if k.Address == "" {
		return nil, nil
	}
	address, err := appliance.ParseAddress(k.Address)
	if err != nil && k.Name == "" {
		return nil, fmt.Errorf("hsm.address %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: address %w", severalKeys, k.Name, err)
	}
	return &address, nil
}

// WriteKeys writes hsm.keys as YAML.
func WriteKeys(w io.Writer, keys []AttestorKey) {
	fmt.Fprintln(w, "  keys:")
	for _, k := range keys {
		fmt.Fprintf(w, "    - name: %s\n      state: %s\n", YAMLValue(k.Name), k.State)
		if len(k.URIs) > 0 {
			fmt.Fprintf(w, "      uris: %s\n", YAMLValue(k.URIs))
		} else {
			fmt.Fprintf(w, "      uri: %s\n", YAMLValue(k.URI))
		}
		fmt.Fprintf(w, "      address: %s\n", YAMLValue(k.Address))
	}
}

// SignerAddresses returns the configured addresses, the default key's first. Keys without a configured address are
// omitted.
func (c *Config) SignerAddresses() (addresses []appliance.Address, err error) {
	standard := c.DefaultKey()
	for _, k := range c.AttestorKeys() {
		expected, err := k.Expected()
		if err != nil {
			return nil, err
		}
		switch {
		case expected == nil:
		case k.Name == standard.Name:
			addresses = slices.Insert(addresses, 0, *expected)
		default:
			addresses = append(addresses, *expected)
		}
	}
	return addresses, nil
}

// validateKeys checks hsm.keys and hsm.address.
func (c *Config) validateKeys(check func(ok bool, format string, args ...any)) {
	for _, k := range c.AttestorKeys() {
		if _, err := k.Expected(); err != nil {
			check(false, "%w", err)
		}
	}
	if len(c.HSM.Keys) == 0 {
		return
	}
	check(c.HSM.Address == "", "hsm.address: applies to hsm.uri only; with hsm.keys, set address in the key's entry")
	check(len(c.HSM.Keys) <= attest.MostAttestorKeys, "hsm.keys: has %d entries; the maximum is %d", len(c.HSM.Keys),
		attest.MostAttestorKeys)
	check(c.DefaultKey().Name != "",
		"hsm.keys: set state: active on one key, which signs for API keys without a binding")
	names, addresses := make(map[string]bool), make(map[appliance.Address]string)
	for i, k := range c.HSM.Keys {
		if !appliance.ValidAttestorKeyName(k.Name) {
			check(false,
				"hsm.keys: entry %d: name %.64q must be 1 to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit", i+1, k.Name)
			continue
		}
		check(!names[k.Name], "hsm.keys: %s: two keys have this name; rename one", k.Name)
		names[k.Name] = true
		check(k.State == attest.AttestorKeyActive || k.State == attest.AttestorKeyRetiring,
			"hsm.keys: %s: state %q is not active or retiring", k.Name, k.State)
		check((k.URI == "") != (len(k.URIs) == 0), "hsm.keys: %s: give uri, or uris for several tokens of the key",
			k.Name)
		expected, _ := k.Expected()
		check(k.Address != "", "hsm.keys: %s: address is missing; attestd hsm status shows it", k.Name)
		if expected != nil {
			check(addresses[*expected] == "", "hsm.keys: %s: has the address of %s", k.Name, addresses[*expected])
			addresses[*expected] = k.Name
		}
	}
}
