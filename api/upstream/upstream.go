// Package upstream speaks to another GraphQL endpoint of the same API over HTTP ("GraphQL over HTTP"): as the follower's
// source (Query), and on behalf of a client (Forward).
package upstream

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// Options say where the upstream is and how to speak to it.
type Options struct {
	URL         string        // of the GraphQL endpoint, https; http only to this machine, or with AllowHTTP
	Headers     http.Header   // sent with each request, such as an API key of the upstream's
	CAFile      string        // PEM file of the authorities that its certificate may be of; empty means the system's
	AllowHTTP   bool          // allows http to other machines
	Timeout     time.Duration // of one request, with the body of its answer; must be more than zero
	MaxResponse int64         // largest answer, in bytes, decompressed; zero means DefaultMaxResponse
	UserAgent   string        // such as attestd/1.0; empty means attestd
	Registry    prometheus.Registerer
}

// DefaultMaxResponse is what Options.MaxResponse is when it is zero.
const DefaultMaxResponse = 64 << 20

// Client is a client of one upstream. It is safe for concurrent use, and keeps connections open between requests.
type Client struct {
	url     *url.URL
	header  http.Header // of each request
	http    *http.Client
	timeout time.Duration
	max     int64
	known   *otter.Cache[[sha256.Size]byte, Response] // answers to queries, by the hash of what was sent
	metrics metrics
}

// New checks the options. Nothing is connected to yet.
//
// Errors: what is wrong with the URL, a header or the CA file; no timeout; metrics that are registered already.
func New(o Options) (*Client, error) {
	if o.Timeout <= 0 {
		return nil, errors.New("upstream.Options: Timeout must be set")
	}
	address, err := parseURL(o.URL, o.AllowHTTP)
	if err != nil {
		return nil, fmt.Errorf("address of the upstream: %w", err)
	}
	header, err := checkHeaders(o.Headers)
	if err != nil {
		return nil, fmt.Errorf("headers for the upstream: %w", err)
	}
	header.Set("User-Agent", o.UserAgent)
	if o.UserAgent == "" {
		header.Set("User-Agent", "attestd")
	}
	// All that is sent is a query, so the transport may send it again where the upstream closed a kept connection just
	// then. An empty list says so to net/http and is not sent.
	header["Idempotency-Key"] = nil
	transport, err := newTransport(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities of the upstream: %w", err)
	}
	c := &Client{
		url: address, header: header, timeout: o.Timeout, max: o.MaxResponse,
		http: &http.Client{
			Transport: transport,
			// A redirect could lead anywhere, with the configured headers: it is an answer like any other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if c.max <= 0 {
		c.max = DefaultMaxResponse
	}
	c.known = otter.Must(&otter.Options[[sha256.Size]byte, Response]{
		MaximumWeight: knownBytes,
		Weigher:       func(_ [sha256.Size]byte, r Response) uint32 { return uint32(r.size()) },
	})
	c.metrics, err = newMetrics(o.Registry)
	return c, err
}

// CheckURL returns what is wrong with the address of an upstream, nil if New would take it.
func CheckURL(address string, allowHTTP bool) error {
	_, err := parseURL(address, allowHTTP)
	return err
}

// CheckHeaders returns what is wrong with headers for an upstream, nil if New would take them.
func CheckHeaders(headers http.Header) error {
	_, err := checkHeaders(headers)
	return err
}

// parseURL checks an address. Its errors do not repeat it: it may hold a password.
func parseURL(address string, allowHTTP bool) (*url.URL, error) {
	u, err := url.Parse(address)
	if parseError, ok := errors.AsType[*url.Error](err); ok {
		return nil, parseError.Err
	}
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return nil, errors.New("must be like https://host/v1/graphql")
	case u.User != nil:
		return nil, errors.New("must not have a user name or password: send a header instead")
	case u.Fragment != "" || strings.Contains(address, "#"):
		return nil, errors.New("must not have a fragment (#)")
	case u.Scheme == "http" && !allowHTTP && !isLoopback(u.Hostname()):
		return nil, fmt.Errorf("must be https: what %s answers over http could be anyone's (http is allowed to this machine, or on request)", u.Hostname())
	}
	return u, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// ownHeaders are those that a request has by itself.
var ownHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host",
	"Idempotency-Key", "If-None-Match", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent",
}

// checkHeaders returns a copy of headers with canonical names. Its errors do not repeat values: they may be secret.
func checkHeaders(headers http.Header) (http.Header, error) {
	checked := make(http.Header)
	for name, values := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, notInToken):
			return nil, fmt.Errorf("%q is not a header's name", name)
		case slices.Contains(ownHeaders, canonical):
			return nil, fmt.Errorf("%s cannot be set", canonical)
		case slices.ContainsFunc(values, hasControl):
			return nil, fmt.Errorf("the value of %s has a control character", canonical)
		}
		checked[canonical] = append(checked[canonical], values...)
	}
	return checked, nil
}

// notInToken tells a character that a header's name cannot have (RFC 9110, section 5.6.2).
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

func hasControl(value string) bool { return strings.ContainsFunc(value, unicode.IsControl) }

// newTransport is net/http's own but for TLS, and for what a slow or dead upstream could hold up.
func newTransport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.MaxIdleConnsPerHost = 64 // about the number of concurrent requests to expect
	t.MaxResponseHeaderBytes = 64 << 10
	// A connection of HTTP/2 is shared. Without pings, one that leads nowhere would be used until TCP gives it up, in a
	// quarter of an hour (go.dev/issue/36026).
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	t.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", caFile)
	}
	return t, nil
}
