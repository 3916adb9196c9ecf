package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

// FuzzLoad checks that no file crashes the loader, and that the YAML of a valid configuration loads as the same
// configuration.
func FuzzLoad(f *testing.F) {
	var all bytes.Buffer
	none := config.Source{File: os.DevNull}
	c, err := none.Load(nil)
	if err != nil {
		f.Fatal(err)
	}
	config.WriteYAML(&all, c.Values())
	f.Add(all.Bytes())
	f.Add([]byte("server:\n  tls:\n  listen: 127.0.0.1:80\n"))
	f.Add([]byte("a: &a [x]\nlog: *a\n"))
	f.Add(
		[]byte(
			"graphql.upstream: https://example.com/v1/graphql\ngraphql:\n  upstream_headers: [\"x-api-key: file:/key\"]\n  source: replica\n"))
	f.Add(
		[]byte(
			"hsm:\n  uri: pkcs11:token=a;object=b?pin-source=file:/p&module-path=/m\n  sessions: 3\nkeys: {default_rate: 5/s}\n"))
	path := filepath.Join(f.TempDir(), "attestd.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := load(t, path, text)
		if err != nil {
			return
		}
		var shown bytes.Buffer
		config.WriteYAML(&shown, c.Values())
		again, err := load(t, path, shown.Bytes())
		if err != nil {
			t.Fatalf("%s\nis shown as\n%s\nwhich is refused: %v", text, shown.Bytes(), err)
		}
		if names := c.Differing(again); len(names) > 0 {
			t.Fatalf("%s\nis shown as\n%s\nwhich differs in %v", text, shown.Bytes(), names)
		}
	})
}

func load(t *testing.T, path string, text []byte) (*config.Config, error) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s := config.Source{File: path}
	return s.Load(nil)
}
