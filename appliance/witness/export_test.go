package witness

import "net/http"

// SetTransport replaces how a Gatherer sends its requests.
func (g *Gatherer) SetTransport(to func(http.RoundTripper) http.RoundTripper) {
	g.client.Transport = to(g.client.Transport)
}
