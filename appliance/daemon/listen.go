package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/hsm/sandbox"
)

// servers are what the daemon serves: the API, the console, the admin socket and the metrics.
type servers struct {
	all          []server // in the order in which they are shut down
	public       *api.Server
	certificates *api.Certificates // nil if the API is served without TLS
	address      net.Addr          // where the API listens
	metrics      net.Addr          // nil if metrics are off
	console      *url.URL          // its address for browsers; nil if the console is off
}

// server is a listener with its server.
type server struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error
	shutdown func(context.Context) error
}

// Serve serves until shutdown, and then returns nil.
func (s server) Serve() error {
	if err := s.serve(s.listener); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// alreadyShut is the shutdown of further listeners of the same server.
func alreadyShut(context.Context) error { return nil }

// serve starts all servers. failed receives the result of each when it ends.
func (s *servers) serve() (failed <-chan error) {
	ended := make(chan error, len(s.all))
	for _, one := range s.all {
		go func() { ended <- one.Serve() }()
	}
	return ended
}

// shutdown stops all servers in order, within one deadline.
func (s *servers) shutdown(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var failures []error
	for _, one := range s.all {
		if err := one.shutdown(ctx); err != nil {
			failures = append(failures, fmt.Errorf("stop %s: %w", one.name, err))
		}
	}
	return errors.Join(failures...)
}

// listen opens all sockets before any is served, so that a port in use is an error at once. The API's server is shut
// down first.
func (r *running) listen(ctx context.Context) (err error) {
	s := &r.servers
	defer func() {
		if err != nil {
			for _, one := range s.all {
				_ = one.listener.Close() // the earlier error says more
			}
		}
	}()
	if err := r.loadCertificates(); err != nil {
		return err
	}
	r.streams = r.offeredEvents()
	routes, err := r.reads.routes(r.attestor.Active, r.streams)
	if err != nil {
		return err
	}
	if s.public, err = api.New(r.apiOptions(routes)); err != nil {
		return err
	}
	listeners, err := r.listenAPI(ctx)
	if err != nil {
		return err
	}
	for i, l := range listeners {
		one := server{"api", l, s.public.Serve, s.public.Shutdown}
		if i > 0 {
			one.shutdown = alreadyShut // the first listener's shutdown ends all
		}
		s.all = append(s.all, one)
	}
	s.address = listeners[0].Addr()

	l, err := api.ListenAdmin(r.config.Admin.Socket, r.refuseLibrary)
	if err != nil {
		return fmt.Errorf("admin.socket: %w", err)
	}
	inside := api.NewInside()
	options := r.adminOptions()
	if err := r.listenConsole(ctx, inside, &options); err != nil {
		return errors.Join(err, l.Close())
	}
	admin := api.NewAdmin(options)
	r.registry.MustRegister(checkMetrics(admin.Checks))
	// after the console, which uses the admin socket's server
	s.all = append(s.all, server{"admin", l, admin.Serve, admin.Shutdown},
		server{"admin", inside, admin.Serve, alreadyShut})

	if r.config.Metrics.Listen == "" {
		return nil
	}
	if l, err = new(net.ListenConfig).Listen(ctx, "tcp", r.config.Metrics.Listen); err != nil {
		return fmt.Errorf("metrics.listen: %w", err)
	}
	s.metrics = l.Addr()
	metrics := api.NewMetrics(r.registry)
	s.all = append(s.all, server{"metrics", l, metrics.Serve, metrics.Shutdown})
	return nil
}

// refuseLibrary refuses the HSM's library, and all processes that it has started, at the admin socket.
func (r *running) refuseLibrary(pid int) error {
	marked, err := sandbox.Marked(pid)
	if marked {
		err = fmt.Errorf("process %d is the HSM's library", pid)
		r.logger.Error(
			"the HSM's library tried to use the admin socket and was refused; the library is not trustworthy: replace it, and the attestor key", "pid", pid)
	}
	return err
}

// listenAPI returns the sockets from the service manager, or a listener at server.listen.
func (r *running) listenAPI(ctx context.Context) ([]net.Listener, error) {
	if n := len(r.options.Sockets); n > 0 {
		for i, l := range r.options.Sockets {
			if l == nil {
				return nil, fmt.Errorf("socket activation: file descriptor %d is not a listening stream socket", i+3)
			}
		}
		return r.options.Sockets, checkListeners(r.config, r.options.Sockets)
	}
	l, err := Listen(ctx, r.config.Server.Listen)
	if err != nil {
		return nil, fmt.Errorf("server.listen: %w", err)
	}
	if err := checkListeners(r.config, []net.Listener{l}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return []net.Listener{l}, nil
}

// Listen opens the API's port. The error wraps syscall.EADDRINUSE if another program uses the port.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil,
			fmt.Errorf("%s: in use by another program (find it with: ss -ltnp): %w", address, syscall.EADDRINUSE)
	case errors.Is(err, syscall.EACCES):
		return nil,
			fmt.Errorf("listen on %s: %w: a port below 1024 needs CAP_NET_BIND_SERVICE, which attestd.service has",
				address, syscall.EACCES)
	}
	var why *os.SyscallError
	if errors.As(err, &why) {
		err = fmt.Errorf("listen on %s: %w", address, why.Err)
	}
	return l, err
}

// loadCertificates leaves servers.certificates nil if the API is served without TLS.
func (r *running) loadCertificates() (err error) {
	files := r.config.Server.TLS
	if files.Cert == "" {
		return nil
	}
	if r.servers.certificates, err = api.LoadCertificates(files.Cert, files.Key, files.ClientCA); err != nil {
		return fmt.Errorf("server.tls: %w", err)
	}
	return nil
}

func (r *running) apiOptions(reads []api.Route) api.Options {
	s := r.config.Server
	var certificates *tls.Config
	if r.servers.certificates != nil {
		certificates = r.servers.certificates.Config()
	}
	return api.Options{
		Attestor:        r.attestor,
		LogVerifier:     r.store.LogKey.VerifierText,
		Coordinators:    coordinators(r.config),
		Version:         r.options.Version,
		DefaultRate:     r.config.Limits.DefaultRate,
		AnonymousRate:   r.config.Limits.AnonymousRate,
		LogRate:         r.config.Limits.LogRate,
		ErrorRate:       r.config.Limits.ErrorRate,
		AttestBodyLimit: int64(s.AttestBodyLimit),
		RequestTimeout:  s.RequestTimeout,
		ReadTimeout:     s.ReadTimeout,
		WriteTimeout:    s.WriteTimeout,
		IdleTimeout:     s.IdleTimeout,
		Origins:         s.Origins,
		TrustedProxies:  s.TrustedProxies,

		MaxConnections:           r.maxConnections(),
		MaxConnectionsPerAddress: s.MaxConnectionsPerAddress,
		AnonymousIdleTimeout:     s.AnonymousIdleTimeout,

		TLS:          certificates,
		SharedRates:  r.store.Rates,
		Routes:       reads,
		Events:       r.streams,
		ReplicaReady: r.reads.ready(),
		ChainReady:   r.tower.ready(),
		Witnesses:    r.witnesses,
		Trace:        r.tracing.forRequests(),
		Console:      func() string { return r.surroundings().Console },
		Logger:       r.logger,
		AccessLog:    r.options.AccessLog,
		Registry:     r.registry,
		HSM: func() api.HSMUse {
			u := r.signer.usage()
			return api.HSMUse{InUse: u.InUse, Signatures: u.Signatures, SignTime: u.SignTime}
		},
		Now: time.Now,
	}
}

// otherDescriptors is the number of file descriptors for everything except connections of the API: files, HSM, admin
// socket, upstream.
const otherDescriptors = 256

// maxConnections returns server.max_connections, or less if the limit of open files is too low.
func (r *running) maxConnections() int {
	most := r.config.Server.MaxConnections
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Cur >= uint64(most+otherDescriptors) {
		return most
	}
	room := max(int(files.Cur)-otherDescriptors, int(files.Cur)/4, 1)
	r.logger.Warn(
		"server.max_connections exceeds the limit of open files: raise LimitNOFILE= of the unit (ulimit -n), or lower server.max_connections",
		"server.max_connections", most, "open_files", files.Cur, "connections", room)
	return room
}
