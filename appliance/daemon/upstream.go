package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/hsm"
)

// HeaderFile returns the path of the file with a header's value, "" if the value is in the configuration itself. Only
// the service can read a credential.
func HeaderFile(h config.Header) (string, error) {
	if !h.Kept() {
		return "", nil
	}
	return hsm.URI{PINSource: h.Value}.PINFile()
}

// readHeader returns a header's value.
func readHeader(h config.Header) (string, error) {
	path, err := HeaderFile(h)
	if err != nil || path == "" {
		return h.Value, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return value, upstream.CheckHeaders(http.Header{h.Name: {value}})
}

// upstreamClient returns a client of the upstream. URL and headers are validated already, so only the file of
// certificate authorities can cause an error.
func upstreamClient(c *config.Config, version string, headers http.Header,
	registry *prometheus.Registry) (*upstream.Client, error) {
	g := c.GraphQL
	o := upstream.Options{
		URL: g.Upstream, Headers: headers, CAFile: g.UpstreamCA, AllowHTTP: g.UpstreamAllowHTTP,
		Timeout:   g.UpstreamTimeout,
		UserAgent: "attestd/" + version,
	}
	if registry != nil { // a nil *Registry in a Registerer is not nil
		o.Registry = registry
	}
	client, err := upstream.New(o)
	if err != nil {
		return nil, fmt.Errorf("graphql.upstream_ca: %w", err)
	}
	return client, nil
}

// OpenUpstream returns a client of the upstream for this version of attestd. Its metrics go to the registry, unless
// that is nil. Only the daemon's user may be able to read the headers.
func OpenUpstream(c *config.Config, version string, registry *prometheus.Registry) (*upstream.Client, error) {
	headers := make(http.Header)
	for _, h := range c.GraphQL.UpstreamHeaders {
		value, err := readHeader(h)
		if err != nil {
			return nil, fmt.Errorf("graphql.upstream_headers: %s: %w", h.Name, err)
		}
		headers.Add(h.Name, value)
	}
	return upstreamClient(c, version, headers, registry)
}

// FollowerOptions returns the options of a follower of graphql.upstream. Packets are not checked against their chains.
func FollowerOptions(c *config.Config, idx index.Index, from follower.Upstream, log *slog.Logger) follower.Options {
	g := c.GraphQL
	rate := g.UpstreamRate
	if rate == appliance.Unlimited {
		rate = appliance.Rate{} // the follower has no bound then
	}
	return follower.Options{
		Index: idx, Upstream: from, Address: c.UpstreamShown(), Log: log,
		PollInterval: g.PollInterval, RefreshInterval: g.RefreshInterval, Overlap: g.Overlap, Rate: rate,
	}
}

// openUpstream opens the client of the upstream, and the follower if the replica follows it.
func (r *reads) openUpstream() (err error) {
	if !r.config.AsksUpstream() {
		return nil
	}
	if r.upstream, err = OpenUpstream(r.config, r.version, r.registry); err != nil {
		return err
	}
	if r.config.Follows() {
		o := FollowerOptions(r.config, r.replica, r.upstream, r.logger)
		if r.config.GraphQL.Verify == config.VerifyChain {
			o.Chains = r.verifier
		}
		r.follower = follower.New(o)
	}
	return nil
}

// followAgain is the delay before a failed follower is started again.
const followAgain = time.Minute

// keepFollowing follows until ctx ends, and restarts a failed follower. Attestations do not need it, and reads continue
// from the existing replica.
func (r *reads) keepFollowing(ctx context.Context) {
	for {
		err := r.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		r.logger.Error("the follower failed and will be restarted; the replica is served as it is",
			"in", followAgain.String(), "error", fmt.Sprint(err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(followAgain):
		}
	}
}

// followOnce calls Follower.Run and recovers from a panic, because the process also signs.
func (r *reads) followOnce(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return r.follower.Run(ctx)
}
