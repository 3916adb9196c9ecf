package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/store/replica"
)

func newServe(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground until SIGTERM or SIGINT; then finish what was accepted, and exit 0.
Exit status 3 says that the token refused the PIN: it is never tried a second time, since tokens lock.

SIGHUP loads the configuration again, as 'attestd reload' does. Sockets that systemd hands over (attestd.socket) serve the
API instead of server.listen.`,
		Example: "  attestd serve --config /etc/attestd/attestd.yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := make(map[string]any)
			if listen != "" {
				flags["server.listen"] = listen
			}
			sockets, err := activation.Listeners()
			if err != nil {
				return fmt.Errorf("socket activation: %w", err)
			}
			load := func() (*config.Config, error) { return a.config(flags) }
			c, err := load()
			if err != nil {
				return err
			}
			if err := requireSetup(&a.source, c); err != nil {
				return err
			}
			level := new(slog.LevelVar)
			return serve(cmd.Context(), c, newLeveledLogger(c, a.err, level), serveOptions{load: load, level: level, sockets: sockets, version: version()})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address and port of the API; goes over server.listen")
	return cmd
}

// newLogger writes text to a terminal and JSON elsewhere, unless told.
func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	return newLeveledLogger(c, w, new(slog.LevelVar))
}

// newLeveledLogger is newLogger with a level that can be changed later.
func newLeveledLogger(c *config.Config, w io.Writer, level *slog.LevelVar) *slog.Logger {
	level.Set(c.Level())
	opts := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "text" || c.Log.Format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// serveOptions are what serve can do without.
type serveOptions struct {
	version string                         // of attestd, as it is logged and shown
	ready   func(nowReady) error           // called once all listen
	load    func() (*config.Config, error) // reads the configuration again; without it there is no reload
	level   *slog.LevelVar                 // of the logger; without it the level stays
	sockets []net.Listener                 // serve the API instead of server.listen
}

// nowReady is what can be told of a daemon that answers requests.
type nowReady struct {
	api       net.Addr
	metrics   net.Addr // nil where there are none
	signer    appliance.Address
	publicKey []byte // uncompressed
}

// journalStore is what the daemon needs of the store of keys and journal, beside appliance.Keys and appliance.Journal.
type journalStore interface {
	// Failed receives once when the store no longer trusts its disk, and refuses all writes from then on. The daemon ends,
	// to be started again.
	Failed() <-chan error
	// Responds returns nil once the part that writes has answered, be it with an error. It returns an error where ctx ended
	// before: a restart may help.
	Responds(ctx context.Context) error
	archive.Snapshotter
	io.Closer
}

// running is the daemon's parts, for as long as it runs.
type running struct {
	config   *config.Config
	options  serveOptions
	logger   *slog.Logger
	store    journalStore
	replica  *replica.Kept      // nil where graphql.source is not replica
	upstream *upstream.Client   // nil where there is none
	follower *follower.Follower // of upstream, into replica; nil where nothing is followed
	signer   *hsm.Signer
	attestor *appliance.Attestor
	logKey   appliance.LogKey
	public   *api.Server
	address  net.Addr // where the API listens
	metrics  net.Addr // nil where there are none
	registry *prometheus.Registry
	started  time.Time

	certificates *api.Certificates // nil where the API is served in plain
	reloading    sync.Mutex        // held by a reload
}

// What the garbage collector is told. Little is live, so that by default it collects many times a second. With five times the
// live heap before it collects, not twice, an answer of 100 packets takes 10 % less CPU (3.0 ms of 3.3), an attestation as much as
// before. The limit, beside the answers that GraphQL may keep, then holds what the process allocates (RssAnon) at 250 MB while 32
// clients ask for such pages, instead of 550 MB. GOGC and GOMEMLIMIT in the environment override both.
const (
	gcPercent   = 400
	memoryLimit = 192 << 20
)

func tuneMemory(c *config.Config) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit + int64(c.GraphQL.CacheSize))
	}
}

// serve runs the daemon until ctx ends or a part of it fails.
func serve(ctx context.Context, c *config.Config, logger *slog.Logger, o serveOptions) (err error) {
	tuneMemory(c)
	r := &running{config: c, options: o, logger: logger, started: time.Now(), registry: prometheus.NewRegistry()}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // from the start: unhandled, it would end the process
	defer signal.Stop(hangup)
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
	if o.ready != nil {
		if err := o.ready(nowReady{r.address, r.metrics, r.signer.Address(), r.signer.PublicKey()}); err != nil {
			return err
		}
	}
	r.announce()
	watching, endWatch := context.WithCancel(context.WithoutCancel(ctx)) // also while what was accepted is finished
	defer endWatch()
	go r.watchdog(watching)
	defer r.follow(ctx)() // ends before the replica is closed
	err = r.wait(ctx, failed, hangup)
	r.logger.Info("stopping: finishing what was accepted", "timeout", c.Server.ShutdownTimeout.String())
	r.notify(daemon.SdNotifyStopping)
	return errors.Join(err, shutdown(servers, c.Server.ShutdownTimeout))
}

// open opens the store and the HSM.
func (r *running) open(ctx context.Context) (err error) {
	scheme, err := r.config.Scheme()
	if err != nil {
		return err
	}
	r.attestor = &appliance.Attestor{Scheme: scheme, Now: time.Now}
	screened, err := readScreening(r.config)
	if err != nil {
		return err
	}
	r.attestor.Screen(screened)
	opened, key, err := openStore(r.config, r.logger, r.attestor.Signing)
	if err != nil {
		return err
	}
	r.store, r.logKey = opened, key
	r.attestor.Keys, r.attestor.Journal = opened.Keys(), opened.Journal()
	if r.config.GraphQL.Source == config.FromReplica {
		r.replica = keepReplica(r.config, r.logger)
	}
	if err := r.openUpstream(); err != nil {
		return err
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

func hsmOptions(c *config.Config, logger *slog.Logger) (hsm.Options, error) {
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
	if err := r.loadCertificates(); err != nil {
		return nil, err
	}
	reads, err := r.graphqlRoutes()
	if err != nil {
		return nil, err
	}
	if r.public, err = api.New(r.apiOptions(reads)); err != nil {
		return nil, err
	}
	listeners, err := r.listenAPI(ctx)
	if err != nil {
		return nil, err
	}
	for i, l := range listeners {
		s := server{"api", l, r.public.Serve, r.public.Shutdown}
		if i > 0 {
			s.shutdown = func(context.Context) error { return nil } // the first ends all
		}
		servers = append(servers, s)
	}
	r.address = listeners[0].Addr()

	l, err := api.ListenAdmin(r.config.Admin.Socket)
	if err != nil {
		return servers, fmt.Errorf("admin.socket: %w", err)
	}
	admin := api.NewAdmin(r.adminOptions())
	servers = append(servers, server{"admin", l, admin.Serve, admin.Shutdown})

	if r.config.Metrics.Listen == "" {
		return servers, nil
	}
	l, err = new(net.ListenConfig).Listen(ctx, "tcp", r.config.Metrics.Listen)
	if err != nil {
		return servers, fmt.Errorf("metrics.listen: %w", err)
	}
	r.metrics = l.Addr()
	metrics := api.NewMetrics(r.registry)
	return append(servers, server{"metrics", l, metrics.Serve, metrics.Shutdown}), nil
}

// listenAPI returns the sockets that the service manager handed over, else one at server.listen.
func (r *running) listenAPI(ctx context.Context) ([]net.Listener, error) {
	if n := len(r.options.sockets); n > 0 {
		for i, l := range r.options.sockets {
			if l == nil {
				return nil, fmt.Errorf("socket activation: file descriptor %d is not a listening stream socket", i+3)
			}
		}
		return r.options.sockets, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", r.config.Server.Listen)
	if err != nil {
		return nil, fmt.Errorf("server.listen: %w", err)
	}
	return []net.Listener{l}, nil
}

// loadCertificates leaves r.certificates nil where the API is served in plain.
func (r *running) loadCertificates() (err error) {
	files := r.config.Server.TLS
	if files.Cert == "" {
		return nil
	}
	if r.certificates, err = api.LoadCertificates(files.Cert, files.Key, files.ClientCA); err != nil {
		return fmt.Errorf("server.tls: %w", err)
	}
	return nil
}

func (r *running) apiOptions(reads []api.Route) api.Options {
	s := r.config.Server
	var certificates *tls.Config
	if r.certificates != nil {
		certificates = r.certificates.Config()
	}
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
		ReplicaReady:    r.replicaReady(),
		Logger:          r.logger,
		Registry:        r.registry,
		Now:             time.Now,
	}
}

func (r *running) adminOptions() api.AdminOptions {
	o := api.AdminOptions{
		Attestor:  r.attestor,
		HSMStatus: func(ctx context.Context) (any, error) { return r.signer.Status(ctx) },
		Reload:    r.reload,
		Backup: func(_ context.Context, w io.Writer) error {
			return archive.Write(w, r.store, filepath.Join(r.config.DataDir, archive.LogKeyFile), r.options.version, time.Now())
		},
		ReplicaReady: r.replicaReady(),
		Version:      r.options.version,
		Logger:       r.logger,
	}
	if r.replica != nil { // a nil *Replica would be an Index that is not nil
		o.Replica = r.replica
	}
	if r.follower != nil {
		o.Follower, o.Upstream = r.follower, r.upstream
	}
	return o
}

// announce tells the log and the service manager that requests are answered.
func (r *running) announce() {
	r.logger.Info("ready", "version", r.options.version, "listen", r.address.String(), "signer", r.signer.Address().String(),
		"scheme", string(r.attestor.Scheme.Name), "records", r.records(), "startup", time.Since(r.started).Round(time.Millisecond).String())
	r.notify(daemon.SdNotifyReady)
}

// records is how many attestations the journal has; 0 where it cannot be read.
func (r *running) records() int64 {
	checkpoint, err := r.attestor.Journal.Checkpoint(context.Background())
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

// wait returns nil when ctx ends, and an error when a server or the store's disk fails before that. Until then it
// reloads at each hangup.
func (r *running) wait(ctx context.Context, failed <-chan error, hangup <-chan os.Signal) error {
	for {
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
		case <-hangup:
			_, _ = r.reload() // logs how it went
		}
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
