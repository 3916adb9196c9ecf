package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
)

func consoleSettings() []Setting {
	return []Setting{
		{"console.listen", "", "address and port of the console, such as 127.0.0.1:9465; empty for none. An address that other machines reach takes server.tls with server.tls.client_ca"},
		{"console.url", "", "where browsers find the console, such as https://console.example.com: other names are refused; empty: at console.listen"},
		{"console.oidc.issuer", "", "OpenID Connect provider by which people sign in, such as https://login.example.com; empty for links of 'attestd console' alone"},
		{"console.oidc.client_id", "", "the console's name at the provider"},
		{"console.oidc.client_secret", "", "where its secret is, file:/path or credential:NAME; empty for a public client"},
		{"console.oidc.scopes", []string{"openid", "profile", "email"}, "what the provider is asked for; some tell groups only for a scope of that name"},
		{"console.oidc.groups_claim", "groups", "the claim in which the provider names somebody's groups"},
		{"console.oidc.viewers", []string{}, "groups whose people are viewers of the console"},
		{"console.oidc.auditors", []string{}, "groups whose people are auditors"},
		{"console.oidc.operators", []string{}, "groups whose people are operators"},
	}
}

func (c *Config) validateConsole(check func(ok bool, format string, args ...any)) {
	if c.Console.URL != "" {
		u, err := url.Parse(c.Console.URL)
		check(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && (u.Path == "" || u.Path == "/") && u.RawQuery == "",
			"console.url: %q is not an address such as https://console.example.com", c.Console.URL)
	}
	c.validateOIDC(check)
	if c.Console.Listen == "" || IsLoopback(c.Console.Listen) {
		return
	}
	check(c.Server.TLS.ClientCA != "", "console.listen: %s is reached by other machines, which takes server.tls.cert, server.tls.key and server.tls.client_ca; or listen on 127.0.0.1", c.Console.Listen)
	check(c.Console.URL != "" || !isAnyAddress(c.Console.Listen), "console.listen: %s is every address of this machine: set console.url to the one that browsers use", c.Console.Listen)
}

func (c *Config) validateOIDC(check func(ok bool, format string, args ...any)) {
	o := c.Console.OIDC
	if o.Issuer == "" {
		return
	}
	u, err := url.Parse(o.Issuer)
	check(err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && IsLoopback(net.JoinHostPort(u.Hostname(), "0"))),
		"console.oidc.issuer: %q is not an address such as https://login.example.com", o.Issuer)
	check(o.ClientID != "", "console.oidc.client_id: is needed with console.oidc.issuer")
	check(slices.Contains(o.Scopes, "openid"), "console.oidc.scopes: must have openid")
	check(len(o.Viewers)+len(o.Auditors)+len(o.Operators) > 0, "console.oidc: nobody could open the console: name groups in viewers, auditors or operators")
	if o.ClientSecret != "" {
		secret := Header{"console.oidc.client_secret", o.ClientSecret}
		check(secret.Kept(), "console.oidc.client_secret: must be file:/path or credential:NAME, which say where it is")
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
