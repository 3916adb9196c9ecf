package console

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// policy lets pages load and fetch only from the console itself. Neither scripts nor styles are inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// protected refuses requests that no page of the console sends: requests for a foreign host name, and cross-origin
// requests.
func (c *Console) protected(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.problem(w, r, http.StatusForbidden, "The request came from another site and was refused.")
	}))
	next = crossOrigin.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header(), c.secure())
		if !c.isOwnHost(r.Host) {
			http.Error(w, "The console does not serve this host name. To allow it, set console.url.",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// secure reports whether browsers reach the console over TLS, either directly or through a proxy.
func (c *Console) secure() bool { return c.opts.URL.Scheme == "https" }

func secure(h http.Header, tls bool) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // no-referrer would remove the Origin from forms
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if tls {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
}

// isOwnHost reports whether a Host header names the console. The port is ignored, because it differs behind a tunnel.
func (c *Console) isOwnHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return host == strings.ToLower(c.opts.URL.Hostname()) || slices.Contains(c.opts.Hosts, host)
}
