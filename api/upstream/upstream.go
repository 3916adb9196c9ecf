// Package upstream is a client of another GraphQL endpoint with the same API ("GraphQL over HTTP"). It serves the
// follower (Query), and forwards requests of clients (Forward).
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

// Options describe the upstream and how to reach it.
type Options struct {
	URL         string        // of the GraphQL endpoint: https, or http if the host is this machine or AllowHTTP is set
	Headers     http.Header   // sent with each request, such as the upstream's API key
	CAFile      string        // PEM file of trusted CAs for the upstream's certificate; empty means the system's
	AllowHTTP   bool          // allows http to other machines
	Timeout     time.Duration // of one request including the body of its answer; must be positive
	MaxResponse int64         // largest answer, in bytes, decompressed; zero means DefaultMaxResponse
	UserAgent   string        // such as attestd/1.0; empty means attestd
	Registry    prometheus.Registerer
}

// DefaultMaxResponse is the default of Options.MaxResponse, in bytes.
const DefaultMaxResponse = 64 << 20

// Client is a client of one upstream. It is safe for concurrent use, and keeps connections open between requests.
type Client struct {
	url     *url.URL
	header  http.Header // of each request
	http    *http.Client
	timeout time.Duration
	max     int64
	known   *otter.Cache[[sha256.Size]byte, Response] // cached answers to queries, by the hash of the request body
	metrics metrics
}

// New checks the options. It does not connect yet.
//
// Errors: an invalid URL, header or CA file; a missing timeout; metrics that are already registered.
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
	// All requests are queries, so the transport may resend a request if the upstream has just closed a kept
	// connection. An empty list signals this to net/http and is not sent.
	header["Idempotency-Key"] = nil
	transport, err := newTransport(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities of the upstream: %w", err)
	}
	c := &Client{
		url: address, header: header, timeout: o.Timeout, max: o.MaxResponse,
		http: &http.Client{
			Transport: transport,
			// A redirect could lead to any host, with the configured headers. So it is returned as an answer.
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

// CheckURL returns the error that New would return for the address of an upstream, or nil.
func CheckURL(address string, allowHTTP bool) error {
	_, err := parseURL(address, allowHTTP)
	return err
}

// CheckHeaders returns the error that New would return for the headers, or nil.
func CheckHeaders(headers http.Header) error {
	_, err := checkHeaders(headers)
	return err
}

// parseURL checks an address. Its errors do not repeat the address, which may hold a password.
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
		return nil, fmt.Errorf("must be https: over http, an attacker could answer for %s (http is allowed to this "+
			"machine, or with graphql.upstream_allow_http)", u.Hostname())
	}
	return u, nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// ownHeaders are the headers that the client or net/http sets itself.
var ownHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host",
	"Idempotency-Key", "If-None-Match", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent",
}

// checkHeaders returns a copy of headers with canonical names. Its errors do not repeat values, which may be secret.
func checkHeaders(headers http.Header) (http.Header, error) {
	checked := make(http.Header)
	for name, values := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, notInToken):
			return nil, fmt.Errorf("%q is not a header name", name)
		case slices.Contains(ownHeaders, canonical):
			return nil, fmt.Errorf("%s cannot be set", canonical)
		case slices.ContainsFunc(values, hasControl):
			return nil, fmt.Errorf("the value of %s has a control character", canonical)
		}
		checked[canonical] = append(checked[canonical], values...)
	}
	return checked, nil
}

// notInToken reports whether r is forbidden in a header name (RFC 9110, section 5.6.2).
func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

func hasControl(value string) bool { return strings.ContainsFunc(value, unicode.IsControl) }

// newTransport returns net/http's default transport with its own TLS settings, and with protection from slow or dead
// upstreams.
func newTransport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.MaxIdleConnsPerHost = 64 // about the expected number of concurrent requests
	t.MaxResponseHeaderBytes = 64 << 10
	// HTTP/2 requests share a connection. Without pings, a dead connection would be used until TCP gives it up after a
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
		return nil, fmt.Errorf("%s does not contain a PEM certificate", caFile)
	}
	return t, nil
}
