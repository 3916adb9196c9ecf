package api

import (
	"bytes"
	"net/netip"
	"strings"
)

// The grammar that framing checks comes from RFC 9112, and from the parts of RFC 9110 and RFC 3986 that it refers to.

// isTarget reports whether target is a valid request target for method (section 3.2). It accepts characters that RFC
// 3986 forbids in a URI but that are harmless, such as the braces of a GraphQL query.
func isTarget(method string, target []byte) bool {
	for _, b := range target {
		if b <= ' ' || b >= 0x7f || b == '#' {
			return false
		}
	}
	switch {
	case method == "CONNECT":
		return len(target) > 0 && isHost(target)
	case string(target) == "*":
		return method == "OPTIONS"
	case bytes.HasPrefix(target, []byte("/")):
		return true
	}
	scheme, rest, found := bytes.Cut(target, []byte("://"))
	authority := rest
	if end := bytes.IndexAny(rest, "/?"); end >= 0 {
		authority = rest[:end]
	}
	return found && (isName(scheme, "http") || isName(scheme, "https")) && len(authority) > 0 && isHost(authority)
}

// isHost reports whether v is a host with or without a port (RFC 3986, section 3.2.2). The host may be empty.
func isHost(v []byte) bool {
	host, port := v, []byte(nil)
	if colon := bytes.LastIndexByte(v, ':'); colon > bytes.LastIndexByte(v, ']') {
		host, port = v[:colon], v[colon+1:]
	}
	for _, b := range port {
		if b < '0' || b > '9' {
			return false
		}
	}
	if inner, bracket := bytes.CutPrefix(host, []byte("[")); bracket {
		inner, bracket = bytes.CutSuffix(inner, []byte("]"))
		ip, err := netip.ParseAddr(string(inner))
		return bracket && err == nil && ip.Is6() && ip.Zone() == ""
	}
	for _, b := range host {
		if !isAlphanumeric(b) && strings.IndexByte("-._~!$&'()*+,;=%", b) < 0 {
			return false
		}
	}
	return true
}

// isExtensions reports whether v is empty or a list of chunk extensions (section 7.1.1).
func isExtensions(v []byte) bool {
	for len(v) > 0 {
		v = bytes.TrimLeft(v, " \t")
		if len(v) == 0 || v[0] != ';' {
			return false
		}
		v = bytes.TrimLeft(v[1:], " \t")
		n := tokenLength(v)
		if n == 0 {
			return false
		}
		v = v[n:]
		value, valued := bytes.CutPrefix(bytes.TrimLeft(v, " \t"), []byte("="))
		if !valued {
			continue
		}
		value = bytes.TrimLeft(value, " \t")
		if n = tokenLength(value); n == 0 {
			n = quotedLength(value)
		}
		if n == 0 {
			return false
		}
		v = value[n:]
	}
	return true
}

// quotedLength returns the length of the quoted string at the start of v (RFC 9110, section 5.6.4), or 0.
func quotedLength(v []byte) int {
	if len(v) == 0 || v[0] != '"' {
		return 0
	}
	for i := 1; i < len(v); i++ {
		switch b := v[i]; {
		case b == '"':
			return i + 1
		case b == '\\':
			i++
			if i == len(v) || v[i] < ' ' && v[i] != '\t' || v[i] == 0x7f {
				return 0
			}
		case b < ' ' && b != '\t' || b == 0x7f:
			return 0
		}
	}
	return 0
}

// isName reports whether v equals name, ignoring ASCII case only. strings.EqualFold would match the Kelvin sign with k.
func isName(v []byte, name string) bool {
	if len(v) != len(name) {
		return false
	}
	for i := range v {
		if lower(v[i]) != lower(name[i]) {
			return false
		}
	}
	return true
}

func lower(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		return b | 0x20
	}
	return b
}

func isToken(v []byte) bool { return len(v) > 0 && tokenLength(v) == len(v) }

// tokenLength returns the length of the token at the start of v (RFC 9110, section 5.6.2), or 0.
func tokenLength(v []byte) int {
	for i, b := range v {
		if !isTokenByte(b) {
			return i
		}
	}
	return len(v)
}

// isTokenByte reports whether b may be part of a token. It uses a 128-bit set because framing spends most of its time
// here.
func isTokenByte(b byte) bool {
	const table = (1<<10-1)<<'0' | (1<<26-1)<<'A' | (1<<26-1)<<'a' | 1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' |
		1<<'+' | 1<<'-' | 1<<'.' | 1<<'^' | 1<<'_' | 1<<'`' | 1<<'|' | 1<<'~'
	return (uint64(1)<<b)&(table&(1<<64-1))|(uint64(1)<<(b-64))&(table>>64) != 0
}

// trimBlanks removes optional whitespace around a value (RFC 9110, section 5.6.3). bytes.TrimSpace would also remove
// NEL and NBSP.
func trimBlanks(v []byte) []byte {
	for len(v) > 0 && isBlank(v[0]) {
		v = v[1:]
	}
	for len(v) > 0 && isBlank(v[len(v)-1]) {
		v = v[:len(v)-1]
	}
	return v
}

func isBlank(b byte) bool { return b == ' ' || b == '\t' }

// hexLength returns the number of hexadecimal digits at the start of v.
func hexLength(v []byte) int {
	for i, b := range v {
		if !isHex(b) {
			return i
		}
	}
	return len(v)
}

func isAlphanumeric(b byte) bool { return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' }

func isHex(b byte) bool { return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'f' }

func hexValue(b byte) int64 {
	if b <= '9' {
		return int64(b - '0')
	}
	return int64(b|0x20-'a') + 10
}
