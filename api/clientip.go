package api

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/valyala/fasthttp"
)

// clientIP returns the client address of a request. It reads X-Forwarded-For from the end, skips the addresses of
// trusted proxies, and returns the first other address.
func clientIP(rctx *fasthttp.RequestCtx, trusted []netip.Prefix) netip.Addr {
	peer, ok := rctx.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := peer.AddrPort().Addr().Unmap()
	if !contains(trusted, ip) {
		return ip
	}
	headers := rctx.Request.Header.PeekAll("X-Forwarded-For")
	for i := len(headers) - 1; i >= 0; i-- {
		hops := bytes.Split(headers[i], []byte(","))
		for j := len(hops) - 1; j >= 0; j-- {
			hop, err := parseHop(string(bytes.TrimSpace(hops[j])))
			if err != nil {
				return ip
			}
			if ip = hop; !contains(trusted, ip) {
				return ip
			}
		}
	}
	return ip
}

// parseHop reads an address with or without a port, since some proxies add one.
func parseHop(s string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap(), nil
	}
	ip, err := netip.ParseAddr(s)
	return ip.Unmap(), err
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
