package daemon

import (
	"net"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

// listenerAt is a listener with a given address, such as one from systemd.
type listenerAt struct {
	net.Listener
	at net.Addr
}

func (l listenerAt) Addr() net.Addr { return l.at }

func TestAnAPIWithoutTLSStaysOnThisMachine(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 80} }
	for name, test := range map[string]struct {
		listen  string   // server.listen
		at      net.Addr // the address of its listener
		refused bool
	}{
		"IPv4 loopback":         {"127.0.0.1:80", tcp("127.0.0.1"), false},
		"the rest of 127/8":     {"127.9.9.9:80", tcp("127.9.9.9"), false},
		"IPv6 loopback":         {"[::1]:80", tcp("::1"), false},
		"localhost":             {"localhost:80", tcp("127.0.0.1"), false},
		"all addresses":         {":80", tcp("::"), true},
		"all of IPv4":           {"0.0.0.0:80", tcp("0.0.0.0"), true},
		"all of IPv6":           {"[::]:80", tcp("::"), true},
		"one that others reach": {"192.0.2.1:80", tcp("192.0.2.1"), true},
		"a name":                {"attestd.example:80", tcp("192.0.2.1"), true},
		"a mapped address":      {"[::ffff:192.0.2.1]:80", tcp("192.0.2.1"), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(config.Config)
			c.Server.Listen = test.listen
			check := func(refused bool) {
				t.Helper()
				for what, err := range map[string]error{"configured": CheckPlainHTTP(c),
					"served": checkListeners(c, []net.Listener{listenerAt{at: test.at}})} {
					if (err != nil) != refused || err != nil &&
						!strings.Contains(err.Error(), "server.allow_plain_http: true") {
						t.Errorf("%s: %v", what, err)
					}
				}
			}
			check(test.refused)
			c.Server.AllowPlainHTTP = true
			check(false)
			c.Server.AllowPlainHTTP, c.Server.TLS.Cert = false, "tls.crt"
			check(false)
		})
	}
	c := new(config.Config)
	if err := checkListeners(c, []net.Listener{listenerAt{at: &net.UnixAddr{Name: "/run/api.sock"}}}); err != nil {
		t.Errorf("a Unix socket is of this machine: %v", err)
	}
}
