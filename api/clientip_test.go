package api_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

func TestXForwardedForIsBelievedAsFarAsTrustedProxiesWroteIt(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		name, peer string
		forwarded  []string
		want       string
	}{
		{"a stranger's claim", "192.0.2.1", []string{"198.51.100.1"}, "192.0.2.1"},
		{"a proxy's", "10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"a proxy's, mapped to IPv6", "::ffff:10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"two proxies'", "10.0.0.1", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"forged before the proxy's", "10.0.0.1", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1"},
		{"in two headers", "10.0.0.1", []string{"203.0.113.7", "198.51.100.1 , 10.0.0.2"}, "198.51.100.1"},
		{"with a port", "10.0.0.1", []string{"198.51.100.1:4711"}, "198.51.100.1"},
		{"IPv6 with a port", "fd00::1", []string{"[2001:db8::9]:443"}, "2001:db8::9"},
		{"rubbish", "10.0.0.1", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"nothing", "10.0.0.1", nil, "10.0.0.1"},
		{"only proxies", "10.0.0.1", []string{"10.0.0.3"}, "10.0.0.3"},
	} {
		peer := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.peer), 1234))
		if got := api.ClientIP(peer, c.forwarded, trusted); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAKeyOfANetworkWorksThroughATrustedProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	token, _ := r.newKey(appliance.KeyRequest{AllowFrom: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
	from := func(address string) answer {
		return r.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json", "X-Forwarded-For",
			address)
	}
	if a := from("203.0.113.9"); a.status != 200 {
		t.Error(a)
	}
	if a := from("198.51.100.1"); a.status != 403 || a.problem().Code != appliance.CodeAddressNotAllowed {
		t.Error(a)
	}
	if !strings.Contains(r.logs.String(), `"client_ip":"203.0.113.9"`) {
		t.Error("the log has not the client's address")
	}
}
