package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
)

// AsksUpstream reports whether the appliance sends requests to an upstream, for the replica or for clients.
func (c *Config) AsksUpstream() bool {
	return c.GraphQL.Upstream != "" && (c.GraphQL.Source == FromReplica || c.GraphQL.Source == FromProxy)
}

// Follows reports whether the replica follows an upstream.
func (c *Config) Follows() bool {
	return c.GraphQL.Upstream != "" && c.GraphQL.Source == FromReplica
}

// UpstreamShown returns the upstream's URL for logs, without its query, which may be a key.
func (c *Config) UpstreamShown() string {
	address, _, _ := strings.Cut(c.GraphQL.Upstream, "?")
	return address
}

// validateUpstream checks graphql.upstream and the settings that belong to it without sending a request.
func (c *Config) validateUpstream(check func(ok bool, format string, args ...any)) {
	g := c.GraphQL
	check(g.Upstream != "" ||
		g.Source != FromProxy, "graphql.upstream: graphql.source proxy needs the address of the endpoint to forward to")
	for i, h := range g.UpstreamHeaders {
		if err := h.Check(); err != nil {
			check(false, "graphql.upstream_headers: entry %d: %s", i+1, err)
		}
	}
	check(g.UpstreamTimeout > 0, "graphql.upstream_timeout: must be more than zero")
	check(g.UpstreamRate != appliance.Rate{}, "graphql.upstream_rate: must be a rate such as 10/s, or unlimited")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"poll_interval", g.PollInterval}, {"refresh_interval", g.RefreshInterval}} {
		check(d.value >= minInterval, "graphql.%s: must be at least %s", d.name, minInterval)
	}
	check(g.Overlap > 0, "graphql.overlap: must be more than zero")
	check(g.MaxLag >= 0, "graphql.max_lag: must not be negative; 0s allows any lag")
	check(g.MaxLag <= 0 ||
		c.Follows(), "graphql.max_lag: needs graphql.source replica and graphql.upstream, which give the lag")
	check(g.MaxLag <= 0 || g.MaxLag > g.PollInterval, "graphql.max_lag: must be more than graphql.poll_interval")
	check(g.Fallback == "" || g.Fallback == FromProxy, "graphql.fallback: %q is not proxy or empty", g.Fallback)
	check(g.Fallback == "" || c.Follows(), "graphql.fallback: needs graphql.source replica and graphql.upstream")
	check(g.Verify == "" || g.Verify == VerifyChain, "graphql.verify: %q is not chain or empty", g.Verify)
	check(g.Verify == "" || c.Follows() && len(c.Indexer.Chains) > 0,
		"graphql.verify: needs graphql.source replica, graphql.upstream and indexer.chains")
	check(g.Verify == "" || !g.ServeUnverified,
		"graphql.verify: graphql.serve_unverified would serve the packets that it finds; remove one of the two")
	check(g.StaleIfError >= 0, "graphql.stale_if_error: must not be negative; 0s never serves expired answers")
}

// VerifyChain is the value of graphql.verify with which packets are checked against their chains.
const VerifyChain = "chain"

// minInterval prevents a mistyped interval from flooding the upstream or the witnesses.
const minInterval = 100 * time.Millisecond

// Header is a header of each request to the upstream, "Name: value". Instead of the value, it may name the value's
// location: file:/path or credential:NAME, as in pin-source.
type Header struct{ Name, Value string }

const (
	keptInFile       = "file:"
	keptInCredential = "credential:"
	hiddenValue      = "(hidden)"
)

// UnmarshalText accepts any text; Check validates it.
func (h *Header) UnmarshalText(text []byte) error {
	name, value, _ := strings.Cut(string(text), ":")
	*h = Header{strings.TrimSpace(name), strings.TrimSpace(value)}
	return nil
}

// String hides a value, but shows the location of a value.
func (h Header) String() string {
	if h.Kept() {
		return h.Name + ": " + h.Value
	}
	return h.Name + ": " + hiddenValue
}

// Kept reports whether Value is the location of the value.
func (h Header) Kept() bool {
	return strings.HasPrefix(h.Value, keptInFile) || strings.HasPrefix(h.Value, keptInCredential)
}

// Check validates a header. Its errors do not repeat a value that may be secret.
func (h Header) Check() error {
	file, isFile := strings.CutPrefix(h.Value, keptInFile)
	credential, isCredential := strings.CutPrefix(h.Value, keptInCredential)
	switch {
	case h.Name == "" || h.Value == "":
		return errors.New(`must be in quotes and like "Name: value", "Name: file:/path" or "Name: credential:NAME"`)
	case isFile && !filepath.IsAbs(file):
		return fmt.Errorf("%s: file: must be followed by an absolute path", h.Name)
	case isCredential &&
		(credential != filepath.Base(credential) || !filepath.IsLocal(credential) || credential == "."):
		return fmt.Errorf("%s: credential: must be followed by a name without a slash", h.Name)
	case h.Value == hiddenValue:
		return fmt.Errorf("%s: has the placeholder of attestd config show; write the value", h.Name)
	}
	return nil
}
