package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/hsm"
)

// asksUpstream says whether there is an upstream to ask, by the follower or for clients.
func (c *config) asksUpstream() bool {
	return c.GraphQL.Upstream != "" && c.GraphQL.Source != sourceOff
}

// follows says whether the replica is kept in step with an upstream.
func (c *config) follows() bool {
	return c.GraphQL.Upstream != "" && c.GraphQL.Source == sourceReplica
}

// upstreamShown is the upstream's address as it is logged and shown: what follows a question mark may be a key.
func (c *config) upstreamShown() string {
	address, _, _ := strings.Cut(c.GraphQL.Upstream, "?")
	return address
}

// validateUpstream checks what can be checked of graphql.upstream and what belongs to it without opening anything.
func (c *config) validateUpstream(check func(ok bool, format string, args ...any)) {
	g := c.GraphQL
	check(g.Upstream != "" || g.Source != sourceProxy, "graphql.upstream: graphql.source proxy needs the address of the endpoint to forward to")
	for i, h := range g.UpstreamHeaders {
		if err := h.check(); err != nil {
			check(false, "graphql.upstream_headers: entry %d: %s", i+1, err)
		}
	}
	check(g.UpstreamTimeout > 0, "graphql.upstream_timeout: must be more than zero")
	check(g.UpstreamRate != appliance.Rate{}, "graphql.upstream_rate: has no default to fall back to; give a rate such as 10/s, or unlimited")
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"poll_interval", g.PollInterval}, {"refresh_interval", g.RefreshInterval}} {
		check(d.value >= minInterval, "graphql.%s: must be at least %s", d.name, minInterval)
	}
	check(g.Overlap > 0, "graphql.overlap: must be more than zero")
	check(g.MaxLag >= 0, "graphql.max_lag: must not be negative; 0s bears any lag")
	check(g.MaxLag <= 0 || c.follows(), "graphql.max_lag: needs graphql.source replica and graphql.upstream; without, the lag is never known")
	check(g.MaxLag <= 0 || g.MaxLag > g.PollInterval, "graphql.max_lag: must be more than graphql.poll_interval, within which nothing is asked")
	check(g.Fallback == "" || g.Fallback == sourceProxy, "graphql.fallback: %q is not proxy or empty", g.Fallback)
	check(g.Fallback == "" || c.follows(), "graphql.fallback: needs graphql.source replica and graphql.upstream")
	check(g.StaleIfError >= 0, "graphql.stale_if_error: must not be negative; 0s serves nothing past its ttl")
}

// minInterval keeps a mistyped interval from flooding the upstream.
const minInterval = 100 * time.Millisecond

// header is a header of each request to the upstream, "Name: value". The value may be where it is kept instead:
// file:/path or credential:NAME, as pin-source has them.
type header struct{ name, value string }

const (
	keptInFile       = "file:"
	keptInCredential = "credential:"
)

// UnmarshalText takes any text; check says what is wrong with it.
func (h *header) UnmarshalText(text []byte) error {
	name, value, _ := strings.Cut(string(text), ":")
	*h = header{strings.TrimSpace(name), strings.TrimSpace(value)}
	return nil
}

// String does not show a value, but where it is kept.
func (h header) String() string {
	if h.isKept() {
		return h.name + ": " + h.value
	}
	return h.name + ": " + hiddenValue
}

const hiddenValue = "(hidden)"

func (h header) isKept() bool {
	return strings.HasPrefix(h.value, keptInFile) || strings.HasPrefix(h.value, keptInCredential)
}

// check never repeats what may be a secret.
func (h header) check() error {
	file, isFile := strings.CutPrefix(h.value, keptInFile)
	credential, isCredential := strings.CutPrefix(h.value, keptInCredential)
	switch {
	case h.name == "" || h.value == "":
		return errors.New(`must be in quotes and like "Name: value", "Name: file:/path" or "Name: credential:NAME"`)
	case isFile && !filepath.IsAbs(file):
		return fmt.Errorf("%s: file: must be followed by an absolute path", h.name)
	case isCredential && (credential != filepath.Base(credential) || !filepath.IsLocal(credential) || credential == "."):
		return fmt.Errorf("%s: credential: must be followed by a name without a slash", h.name)
	case h.value == hiddenValue:
		return fmt.Errorf("%s: attestd config show has hidden the value; put it here again", h.name)
	}
	return nil
}

// checkUpstream checks what the client of an upstream refuses.
func checkUpstream(c *config) error {
	var failures []error
	if g := c.GraphQL; g.Upstream != "" {
		if err := upstream.CheckURL(g.Upstream, g.UpstreamAllowHTTP); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream: %w", err))
		}
	}
	for i, h := range c.GraphQL.UpstreamHeaders {
		if h.check() != nil {
			continue // which is told already
		}
		if err := upstream.CheckHeaders(http.Header{h.name: {h.value}}); err != nil {
			failures = append(failures, fmt.Errorf("graphql.upstream_headers: entry %d: %w", i+1, err))
		}
	}
	return errors.Join(failures...)
}

// headerFile is the file that a header's value is kept in; "" where it is in the configuration itself. A credential is a file
// only for the service itself.
func headerFile(h header) (string, error) {
	if !h.isKept() {
		return "", nil
	}
	return hsm.URI{PINSource: h.value}.PINFile()
}

// readHeader returns a header's value.
func readHeader(h header) (string, error) {
	path, err := headerFile(h)
	if err != nil || path == "" {
		return h.value, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return value, upstream.CheckHeaders(http.Header{h.name: {value}})
}

// checkUpstreamReferences checks what graphql.upstream and what belongs to it point at, as far as anybody may who may not
// read the secrets.
func checkUpstreamReferences(c *config) error {
	if !c.asksUpstream() {
		return nil
	}
	for _, h := range c.GraphQL.UpstreamHeaders {
		if path, err := headerFile(h); err == nil && path != "" {
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("graphql.upstream_headers: %s: %w", h.name, err)
			}
		}
	}
	_, err := upstreamClient(c, "", nil, nil)
	return err
}

// upstreamClient returns a client of the upstream. URL and headers are checked already, so what can fail is the file of
// authorities.
func upstreamClient(c *config, version string, headers http.Header, registry *prometheus.Registry) (*upstream.Client, error) {
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

// openUpstream returns a client of the upstream for this version of attestd, whose metrics go to the registry unless that is
// nil. The headers only the daemon's user may be able to read.
func openUpstream(c *config, version string, registry *prometheus.Registry) (*upstream.Client, error) {
	headers := make(http.Header)
	for _, h := range c.GraphQL.UpstreamHeaders {
		value, err := readHeader(h)
		if err != nil {
			return nil, fmt.Errorf("graphql.upstream_headers: %s: %w", h.name, err)
		}
		headers.Add(h.name, value)
	}
	return upstreamClient(c, version, headers, registry)
}

// followerOptions are those of a follower of graphql.upstream.
func followerOptions(c *config, idx index.Index, from follower.Upstream, log *slog.Logger) follower.Options {
	g := c.GraphQL
	rate := g.UpstreamRate
	if rate == appliance.Unlimited {
		rate = appliance.Rate{} // which the follower has no bound for
	}
	return follower.Options{
		Index: idx, Upstream: from, Address: c.upstreamShown(), Log: log,
		PollInterval: g.PollInterval, RefreshInterval: g.RefreshInterval, Overlap: g.Overlap, Rate: rate,
	}
}

// openUpstream leaves r.upstream nil where there is none, and r.follower where nothing is followed.
func (r *running) openUpstream() (err error) {
	if !r.config.asksUpstream() {
		return nil
	}
	if r.upstream, err = openUpstream(r.config, r.options.version, r.registry); err != nil {
		return err
	}
	if r.config.follows() {
		r.follower = follower.New(followerOptions(r.config, r.replica, r.upstream, r.logger))
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
		r.logger.Info("following the upstream", "upstream", r.config.upstreamShown(), "fallback", r.config.GraphQL.Fallback)
		done.Go(func() { r.keepFollowing(ctx) })
	case r.upstream != nil:
		r.logger.Info("forwarding GraphQL to the upstream", "upstream", r.config.upstreamShown())
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
