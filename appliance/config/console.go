package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
)

func consoleSettings() []Setting {
	return []Setting{
		{"console.listen", "",
			"address and port of the console, such as 127.0.0.1:9465; if empty, the console is off. An address that other machines can reach needs server.tls with server.tls.client_ca"},
		{"console.url", "",
			"URL of the console in browsers, such as https://console.example.com; other names are refused. If empty, console.listen is used"},
		{"console.oidc.issuer", "",
			"OpenID Connect provider for signing in, such as https://login.example.com; if empty, only links of 'attestd console' sign in"},
		{"console.oidc.client_id", "", "the console's client id at the provider"},
		{"console.oidc.client_secret", "",
			"location of the client secret, file:/path or credential:NAME; empty for a public client"},
		{"console.oidc.scopes", []string{"openid", "profile", "email"},
			"scopes requested from the provider; some providers send groups only if a scope asks for them"},
		{"console.oidc.groups_claim", "groups", "claim that contains a user's groups"},
		{"console.oidc.viewers", []string{}, "groups with the role viewer"},
		{"console.oidc.auditors", []string{}, "groups with the role auditor"},
		{"console.oidc.operators", []string{}, "groups with the role operator"},
	}
}

func (c *Config) validateConsole(check func(ok bool, format string, args ...any)) {
	if c.Console.URL != "" {
		u, err := url.Parse(c.Console.URL)
		check(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") &&
			(u.Path == "" || u.Path == "/") && u.RawQuery == "",
			"console.url: %q is not an address such as https://console.example.com", c.Console.URL)
	}
	c.validateOIDC(check)
	if c.Console.Listen == "" || IsLoopback(c.Console.Listen) {
		return
	}
	check(c.Server.TLS.ClientCA != "",
		"console.listen: other machines can reach %s: set server.tls.cert, server.tls.key and server.tls.client_ca; or listen on 127.0.0.1", c.Console.Listen)
	check(c.Console.URL != "" || !isAnyAddress(c.Console.Listen),
		"console.listen: %s means all addresses of this machine: set console.url to the address that browsers use",
		c.Console.Listen)
}

func (c *Config) validateOIDC(check func(ok bool, format string, args ...any)) {
	o := c.Console.OIDC
	if o.Issuer == "" {
		return
	}
	u, err := url.Parse(o.Issuer)
	check(err == nil && u.Host != "" &&
		(u.Scheme == "https" || u.Scheme == "http" && IsLoopback(net.JoinHostPort(u.Hostname(), "0"))),
		"console.oidc.issuer: %q is not an address such as https://login.example.com", o.Issuer)
	check(o.ClientID != "", "console.oidc.client_id: must be set with console.oidc.issuer")
	check(slices.Contains(o.Scopes, "openid"), "console.oidc.scopes: must have openid")
	check(len(o.Viewers)+len(o.Auditors)+len(o.Operators) > 0,
		"console.oidc: no group may open the console: set viewers, auditors or operators")
	if o.ClientSecret != "" {
		secret := Header{"console.oidc.client_secret", o.ClientSecret}
		check(secret.Kept(),
			"console.oidc.client_secret: must be file:/path or credential:NAME, the location of the secret")
		if secret.Kept() {
			err := secret.Check()
			check(err == nil, "%v", err)
		}
	}
}

// isAnyAddress reports whether an address to listen on means all interfaces.
func isAnyAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// Origin returns the source of a value: default, file, environment or flag.
func (c *Config) Origin(name string) string {
	if from, ok := c.origins[name]; ok {
		return from
	}
	return "default"
}
