package config

import (
	"net"
	"net/netip"
	"net/url"
)

func (c *Config) validateConsole(check func(ok bool, format string, args ...any)) {
	if c.Console.URL != "" {
		u, err := url.Parse(c.Console.URL)
		check(err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && (u.Path == "" || u.Path == "/") && u.RawQuery == "",
			"console.url: %q is not an address such as https://console.example.com", c.Console.URL)
	}
	if c.Console.Listen == "" || IsLoopback(c.Console.Listen) {
		return
	}
	check(c.Server.TLS.ClientCA != "", "console.listen: %s is reached by other machines, which takes server.tls.cert, server.tls.key and server.tls.client_ca; or listen on 127.0.0.1", c.Console.Listen)
	check(c.Console.URL != "" || !isAnyAddress(c.Console.Listen), "console.listen: %s is every address of this machine: set console.url to the one that browsers use", c.Console.Listen)
}

// isAnyAddress says whether an address to listen on is that of no interface in particular.
func isAnyAddress(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// Origin is where a value is from: default, file, environment or flag.
func (c *Config) Origin(name string) string {
	if from, ok := c.origins[name]; ok {
		return from
	}
	return "default"
}
