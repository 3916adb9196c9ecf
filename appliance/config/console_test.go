package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatTheConsoleTakes(t *testing.T) {
	t.Parallel()
	const tls, groups = "server: { tls: { cert: a, key: b, client_ca: c } }\n", "client_id: attestd, operators: [ops]"
	for text, want := range map[string]string{
		"console: { listen: 127.0.0.1:9465 }":       "",
		"console: { listen: localhost }":            `console.listen: "localhost" is not an address`,
		"console: { listen: 192.0.2.1:9465 }":       "console.listen: other machines can reach 192.0.2.1:9465",
		tls + "console: { listen: 192.0.2.1:9465 }": "",
		tls +
			"console: { listen: ':9465' }": "set console.url",
		tls + "console: { listen: ':9465', url: https://c.example }":       "",
		"console: { url: c.example }":                                      `console.url: "c.example" is not an address`,
		"console: { url: https://c.example/path }":                         "console.url:",
		"console: { oidc: { issuer: https://i.example, " + groups + " } }": "",
		"console: { oidc: { issuer: http://i.example, " + groups +
			" } }": "console.oidc.issuer:",
		"console: { oidc: { issuer: http://127.0.0.1:1, " + groups + " } }": "",
		"console: { oidc: { issuer: https://i.example, operators: [a] } }":  "console.oidc.client_id: must be set",
		"console: { oidc: { issuer: https://i.example, client_id: a } }":    "no group may open the console",
		"console: { oidc: { issuer: https://i.example, scopes: [email], " + groups +
			" } }": "must have openid",
		"console: { oidc: { issuer: https://i.example, client_secret: plain, " + groups +
			" } }": "must be file:/path or credential:NAME",
		"console: { oidc: { issuer: https://i.example, client_secret: 'file:relative', " + groups +
			" } }": "absolute path",
		"console: { oidc: { issuer: https://i.example, client_secret: 'credential:oidc', " + groups + " } }": "",
	} {
		file := filepath.Join(t.TempDir(), "attestd.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := new(Source).LoadFile(file, nil)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "plain") {
			t.Errorf("%s: the error repeats the secret: %v", text, err)
		}
	}
}

func TestAValueIsFromWhereItIsSet(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "attestd.yaml")
	if err := os.WriteFile(file, []byte("data_dir: /var/lib/attestd\nlog: { level: warn }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := (&Source{Environ: []string{"ATTESTD_LOG_LEVEL=debug"}}).LoadFile(file,
		map[string]any{"server.listen": "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"data_dir": "file", "log.level": "environment", "server.listen": "flag",
		"log.format": "default"} {
		if got := c.Origin(name); got != want {
			t.Errorf("%s is from %s, want %s", name, got, want)
		}
	}
}
