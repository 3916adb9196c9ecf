package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/hsm"
)

// HeaderFile is the file that a header's value is kept in; "" where it is in the configuration itself. A credential is a file
// only for the service itself.
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

// upstreamClient returns a client of the upstream. URL and headers are checked already, so what can fail is the file of
// authorities.
func upstreamClient(c *config.Config, version string, headers http.Header, registry *prometheus.Registry) (*upstream.Client, error) {
	g := c.GraphQL
	o := upstream.Options{
		URL: g.Upstream, Headers: headers, CAFile: g.UpstreamCA, AllowHTTP: g.UpstreamAllowHTTP, Timeout: g.UpstreamTimeout,
		UserAgent: "attestd/" + version,
	}
	if registry != nil { // a nil *Registry would be a Registerer that is not nil
		o.Registry = registry
	}
	client, err := upstream.New(o)
	if err != nil {
		return nil, fmt.Errorf("graphql.upstream_ca: %w", err)
	}
	return client, nil
}

// OpenUpstream returns a client of the upstream for this version of attestd, whose metrics go to the registry unless that is
// nil. The headers only the daemon's user may be able to read.
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

// FollowerOptions are those of a follower of graphql.upstream.
func FollowerOptions(c *config.Config, idx index.Index, from follower.Upstream, log *slog.Logger) follower.Options {
	g := c.GraphQL
	rate := g.UpstreamRate
	if rate == appliance.Unlimited {
		rate = appliance.Rate{} // which the follower has no bound for
	}
	return follower.Options{
		Index: idx, Upstream: from, Address: c.UpstreamShown(), Log: log,
		PollInterval: g.PollInterval, RefreshInterval: g.RefreshInterval, Overlap: g.Overlap, Rate: rate,
	}
}

// OpenUpstream leaves r.upstream nil where there is none, and r.follower where nothing is followed.
func (r *running) openUpstream() (err error) {
	if !r.config.AsksUpstream() {
		return nil
	}
	if r.upstream, err = OpenUpstream(r.config, r.options.Version, r.registry); err != nil {
		return err
	}
	if r.config.Follows() {
		r.follower = follower.New(FollowerOptions(r.config, r.replica, r.upstream, r.logger))
	}
	return nil
}

// followAgain is how long after a follower that failed another try is made.
const followAgain = time.Minute

// follow keeps the replica in step until ctx ends or the function that it returns is called, which waits for the end. A
// follower that cannot go on takes nothing down with it: attestations do not need it, and reads go on with what there is.
func (r *running) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	switch {
	case r.follower != nil:
		r.logger.Info("following the upstream", "upstream", r.config.UpstreamShown(), "fallback", r.config.GraphQL.Fallback)
		done.Go(func() { r.keepFollowing(ctx) })
	case r.upstream != nil:
		r.logger.Info("forwarding GraphQL to the upstream", "upstream", r.config.UpstreamShown())
	}
	return func() {
		cancel()
		done.Wait()
	}
}

func (r *running) keepFollowing(ctx context.Context) {
	for {
		err := r.followOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		r.logger.Error("the follower ended; the replica is served as it is, and another try is made", "in", followAgain.String(), "error", fmt.Sprint(err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(followAgain):
		}
	}
}

// followOnce is Follower.Run. A defect in it must not take the process down, which also signs.
func (r *running) followOnce(ctx context.Context) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return r.follower.Run(ctx)
}

// replicaReady is nil where no lag is too much. See api.Options.ReplicaReady.
func (r *running) replicaReady() func() error {
	most := r.config.GraphQL.MaxLag
	if most == 0 {
		return nil
	}
	return func() error {
		if r.replica != nil && r.replica.Ready() != nil {
			return r.replica.Ready()
		}
		lag, known := r.follower.Lag()
		switch {
		case !known:
			return appliance.Errorf(appliance.CodeReplicaBehind, "the replica has not been in step with its upstream yet")
		case lag > most:
			return appliance.Errorf(appliance.CodeReplicaBehind, "the replica is %s behind its upstream, and may be %s (graphql.max_lag)", lag.Round(time.Second), most)
		}
		return nil
	}
}
