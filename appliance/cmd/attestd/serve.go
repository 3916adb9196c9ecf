package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/store/bolt"
)

func newServe(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until SIGTERM or SIGINT; then finish what was accepted, and exit 0.
Exit status 3 says that the token refused the PIN: it is never tried a second time, since tokens lock.`,
		Example: "  attestd serve --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := make(map[string]any)
			if listen != "" {
				flags["server.listen"] = listen
			}
			c, err := a.config(flags)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c, newLogger(c, a.err), nil)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address and port of the API; goes over server.listen")
	return cmd
}

// newLogger writes text to a terminal and JSON elsewhere, unless told.
func newLogger(c *config, w io.Writer) *slog.Logger {
	var level slog.Level
	must(level.UnmarshalText([]byte(c.Log.Level))) // validated
	opts := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "text" || c.Log.Format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// running is the daemon's parts, for as long as it runs.
type running struct {
	config   *config
	logger   *slog.Logger
	store    *bolt.Store
	replica  *bolt.Replica // nil where graphql.source is off
	signer   *hsm.Signer
	attestor *appliance.Attestor
	logKey   appliance.LogKey
	address  net.Addr // where the API listens
	metrics  net.Addr // nil where there are none
	registry *prometheus.Registry
	started  time.Time
}

// serve runs the daemon until ctx ends or a part of it fails. It calls ready, if not nil, once all listen.
func serve(ctx context.Context, c *config, logger *slog.Logger, ready func(*running) error) (err error) {
	r := &running{config: c, logger: logger, started: time.Now(), registry: prometheus.NewRegistry()}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.open(ctx); err != nil {
		return err
	}
	servers, err := r.listen(ctx)
	if err != nil {
		return err
	}
	failed := make(chan error, len(servers))
	for _, s := range servers {
		go func() { failed <- s.Serve() }()
	}
	if ready != nil {
		if err := ready(r); err != nil {
			return err
		}
	}
	r.announce()
	err = r.wait(ctx, failed)
	r.logger.Info("stopping: finishing what was accepted", "timeout", c.Server.ShutdownTimeout.String())
	r.notify(daemon.SdNotifyStopping)
	return errors.Join(err, shutdown(servers, c.Server.ShutdownTimeout))
}

// open opens the store and the HSM.
func (r *running) open(ctx context.Context) (err error) {
	scheme, err := r.config.scheme()
	if err != nil {
		return err
	}
	r.attestor = &appliance.Attestor{Scheme: scheme, Now: time.Now}
	if r.store, r.logKey, err = openStore(r.config, r.logger, r.attestor.Signing); err != nil {
		return err
	}
	r.attestor.Keys, r.attestor.Journal = r.store.Keys(), r.store.Journal()
	if r.config.GraphQL.Source == sourceReplica {
		if r.replica, err = openReplica(r.config); err != nil {
			return err
		}
	}
	opts, err := hsmOptions(r.config, r.logger)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, hsmStartTimeout)
	defer cancel()
	if r.signer, err = hsm.Open(ctx, opts); err != nil {
		return withRemedy(err)
	}
	r.attestor.Signer = r.signer
	r.measure()
	return nil
}

// hsmStartTimeout bounds how long opening the token may take; a network HSM may need seconds.
const hsmStartTimeout = time.Minute

func hsmOptions(c *config, logger *slog.Logger) (hsm.Options, error) {
	uri, err := hsm.ParseURI(c.HSM.URI)
	if err != nil {
		return hsm.Options{}, fmt.Errorf("hsm.uri: %w", err)
	}
	return hsm.Options{URI: uri, Sessions: c.HSM.Sessions, AllowExtractable: c.HSM.AllowExtractable, Logger: logger}, nil
}

// server is one listener and what serves it.
type server struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error
	shutdown func(context.Context) error
}

// Serve serves until shutdown, and returns nil then.
func (s server) Serve() error {
	if err := s.serve(s.listener); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// listen opens all sockets before anything is served, so that a taken port is found at once. The API's server is the
// first to be shut down.
func (r *running) listen(ctx context.Context) (servers []server, err error) {
	defer func() {
		if err != nil {
			for _, s := range servers {
				_ = s.listener.Close() // what failed before says more
			}
		}
	}()
	certificates, err := r.tls()
	if err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", r.config.Server.Listen)
	if err != nil {
		return nil, fmt.Errorf("server.listen: %w", err)
	}
	r.address = l.Addr()
	reads, err := r.graphqlRoutes()
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	public := api.New(r.apiOptions(certificates, reads))
	servers = append(servers, server{"api", l, public.Serve, public.Shutdown})

	l, err = api.ListenAdmin(r.config.Admin.Socket)
	if err != nil {
		return servers, fmt.Errorf("admin.socket: %w", err)
	}
	admin := api.NewAdmin(r.adminOptions())
	servers = append(servers, server{"admin", l, admin.Serve, admin.Shutdown})

	if r.config.Metrics.Listen == "" {
		return servers, nil
	}
	l, err = listen.Listen(ctx, "tcp", r.config.Metrics.Listen)
	if err != nil {
		return servers, fmt.Errorf("metrics.listen: %w", err)
	}
	r.metrics = l.Addr()
	metrics := api.NewMetrics(r.registry)
	return append(servers, server{"metrics", l, metrics.Serve, metrics.Shutdown}), nil
}

// tls returns nil where the API is served in plain.
func (r *running) tls() (*tls.Config, error) {
	files := r.config.Server.TLS
	if files.Cert == "" {
		return nil, nil
	}
	certificates, err := api.TLSConfig(files.Cert, files.Key, files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %w", err)
	}
	return certificates, nil
}

func (r *running) apiOptions(certificates *tls.Config, reads []api.Route) api.Options {
	s := r.config.Server
	return api.Options{
		Attestor:        r.attestor,
		LogVerifier:     r.logKey.VerifierText,
		DefaultRate:     r.config.Limits.DefaultRate,
		AnonymousRate:   r.config.Limits.AnonymousRate,
		AttestBodyLimit: int64(s.AttestBodyLimit),
		RequestTimeout:  s.RequestTimeout,
		ReadTimeout:     s.ReadTimeout,
		WriteTimeout:    s.WriteTimeout,
		IdleTimeout:     s.IdleTimeout,
		TrustedProxies:  s.TrustedProxies,
		TLS:             certificates,
		Routes:          reads,
		Logger:          r.logger,
		Registry:        r.registry,
		Now:             time.Now,
	}
}

func (r *running) adminOptions() api.AdminOptions {
	o := api.AdminOptions{
		Attestor:  r.attestor,
		HSMStatus: func(ctx context.Context) (any, error) { return r.signer.Status(ctx) },
		Version:   version(),
		Logger:    r.logger,
	}
	if r.replica != nil { // a nil *Replica would be an Index that is not nil
		o.Index = r.replica
	}
	return o
}

// announce tells the log and the service manager that requests are answered.
func (r *running) announce() {
	r.logger.Info("ready", "version", version(), "listen", r.address.String(), "signer", r.signer.Address().String(),
		"scheme", string(r.attestor.Scheme.Name), "records", r.records(), "startup", time.Since(r.started).Round(time.Millisecond).String())
	r.notify(daemon.SdNotifyReady)
}

// records is how many attestations the journal has; 0 where it cannot be read.
func (r *running) records() int64 {
	checkpoint, err := r.store.Journal().Checkpoint(context.Background())
	if err != nil {
		return 0
	}
	tree, err := appliance.OpenCheckpoint(checkpoint, r.logKey.Verifier)
	if err != nil {
		return 0
	}
	return tree.N
}

// notify tells the service manager, if there is one.
func (r *running) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		r.logger.Warn("the service manager could not be told", "state", state, "error", err.Error())
	}
}

// wait returns nil when ctx ends, and an error when a server or the store's disk fails before that.
func (r *running) wait(ctx context.Context, failed <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		if err == nil {
			err = errors.New("a server stopped by itself")
		}
		return err
	case err := <-r.store.Failed():
		return fmt.Errorf("the journal's disk failed; what was answered is safe, and nothing more is signed: %w", err)
	}
}

// shutdown stops the servers in order, within one deadline.
func shutdown(servers []server, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var failures []error
	for _, s := range servers {
		if err := s.shutdown(ctx); err != nil {
			failures = append(failures, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	return errors.Join(failures...)
}

// close closes what open opened, the HSM first: no signature is made that the store cannot take.
func (r *running) close() error {
	var failures []error
	if r.signer != nil {
		failures = append(failures, r.signer.Close())
	}
	if r.replica != nil {
		failures = append(failures, r.replica.Close())
	}
	if r.store != nil {
		failures = append(failures, r.store.Close())
	}
	return errors.Join(failures...)
}
