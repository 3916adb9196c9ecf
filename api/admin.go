package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/stop"
)

// AdminOptions configure an Admin.
type AdminOptions struct {
	Attestor  *appliance.Attestor
	HSMStatus func(ctx context.Context) (any, error) // the answer of GET /hsm
	Stop      *stop.Switch                           // nil means that attesting cannot be stopped
	// Cluster tells of the appliances that share the store. Nil means that there are none.
	Cluster func(ctx context.Context) (wire.Cluster, error)
	// Reload loads the configuration again and returns the settings that changed but need a restart. After an error the
	// old configuration stays in effect. Nil means that there is no reload.
	// by is who asked for it.
	Reload func(by string) (needRestart []string, err error)
	// Backup writes an archive with a consistent copy of keys and journal. Nil means that there are no backups.
	Backup  func(ctx context.Context, w io.Writer) error
	Events  *appliance.Events     // told what operators do; nil means that nobody is
	Sinks   func() []sinks.Status // how audit.sinks stand; nil means none
	Version string
	Reads   wire.ReadsStatus // what answers queries; its Replica is filled in
	// Surroundings tells what a status has of the daemon beyond this server. It must be quick. Nil means nothing.
	Surroundings func() wire.Surroundings
	Activity     *Activity // of the public server; nil means none
	// Settings are the values in effect, and Doctor is what it finds, as 'attestd doctor -o json' prints it. ConsoleLink makes a link into the
	// console for that role. Each may be nil, which means that there is nothing to ask.
	Settings    func() []wire.Setting
	Doctor      func(ctx context.Context) any
	ConsoleLink func(role, by string) (wire.ConsoleLink, error)
	// LogVerifier is as in Options.
	LogVerifier string
	Replica     index.Index // nil means none
	// Follower keeps Replica in step with Upstream. Both are nil where the replica follows no upstream.
	Follower *follower.Follower
	Upstream follower.Upstream
	// Chain watches contracts, and Redemptions has what it has read. Both are nil where no contract is watched.
	Chain        *chain.Watchtower
	Redemptions  chain.Store
	ReplicaReady func() error // as in Options
	Witnesses    Witnesses    // nil means none
	Routes       []Route      // served beside Admin's own; their Scope and Rate are ignored

	Logger *slog.Logger     // nil means slog.Default
	Now    func() time.Time // nil means time.Now
}

// Admin serves the operator's commands while the daemon runs. It asks for no API key, because only the operator can open
// its socket; see ListenAdmin.
type Admin struct {
	*httpServer
	opts     AdminOptions
	attestor *appliance.Attestor
	started  time.Time
	routes   []Route
	lag      lagHistory // of the replica that follows

	audited atomic.Pointer[wire.Audit] // the last audit; nil before the first

	streams    context.Context // the parent of streams' contexts; cancelled by Shutdown, which cannot wait for an audit
	endStreams context.CancelFunc
}

const (
	adminReadTimeout  = 10 * time.Second
	adminIdleTimeout  = time.Minute
	adminWriteTimeout = 30 * time.Second // of each write: a stream may take hours, a client that stopped reading may not
	adminTimeout      = 30 * time.Second // of a request that is not a stream
	adminBodyLimit    = 64 << 10
	adminConnections  = 1024
)

// NewAdmin returns an admin server that is ready to Serve.
func NewAdmin(opts AdminOptions) *Admin {
	opts.Logger, opts.Now = orDefaults(opts.Logger, opts.Now)
	a := &Admin{opts: opts, attestor: opts.Attestor, started: opts.Now()}
	a.streams, a.endStreams = context.WithCancel(context.Background())
	a.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger.With("socket", "admin"), Now: opts.Now, ShowCauses: true,
		ReadTimeout: adminReadTimeout, IdleTimeout: adminIdleTimeout, EachWriteTimeout: adminWriteTimeout,
		Connections: connectionLimits{Most: adminConnections},
	})
	a.routes = slices.Concat(a.ownRoutes(), a.replicaRoutes(), a.chainRoutes(), a.consoleRoutes(), opts.Routes)
	for _, r := range a.routes {
		a.mount(r)
	}
	a.start()
	if opts.Follower != nil {
		go a.lag.run(a.streams, opts.Follower, opts.Now)
	}
	return a
}

func (a *Admin) ownRoutes() []Route {
	return []Route{
		{Method: fiber.MethodPost, Path: "/keys", BodyLimit: adminBodyLimit, Handler: a.createKey},
		{Method: fiber.MethodGet, Path: "/keys", Handler: a.listKeys},
		{Method: fiber.MethodGet, Path: "/keys/use", Handler: a.keyUse},
		{Method: fiber.MethodPost, Path: "/keys/:id/revoke", Handler: a.revokeKey},
		{Method: fiber.MethodPost, Path: "/keys/:id/bind", BodyLimit: adminBodyLimit, Handler: a.bindKey},
		{Method: fiber.MethodGet, Path: "/log/records", Handler: a.records},
		{Method: fiber.MethodGet, Path: "/log/records/:id", Handler: a.record},
		{Method: fiber.MethodGet, Path: "/log/records/:id/proof", Handler: a.prove},
		{Method: fiber.MethodGet, Path: "/log/records/:id/witnessed", Handler: a.proveWitnessed},
		{Method: fiber.MethodGet, Path: "/log/entries", Handler: a.entries},
		{Method: fiber.MethodGet, Path: "/log/key", Handler: a.logKey},
		{Method: fiber.MethodGet, Path: "/log/checkpoint", Handler: a.checkpoint},
		{Method: fiber.MethodGet, Path: "/log/published", Handler: a.published},
		{Method: fiber.MethodGet, Path: "/log/witnesses", Handler: a.witnesses},
		{Method: fiber.MethodPost, Path: "/log/verify", BodyLimit: adminBodyLimit, Handler: a.verify},
		{Method: fiber.MethodGet, Path: "/hsm", Handler: a.hsm},
		{Method: fiber.MethodGet, Path: "/status", Probe: true, Handler: a.status},
		{Method: fiber.MethodGet, Path: "/activity", Handler: a.activity},
		{Method: fiber.MethodGet, Path: "/cluster", Handler: a.cluster},
		{Method: fiber.MethodGet, Path: "/sinks", Handler: a.sinks},
		{Method: fiber.MethodPost, Path: "/reload", Handler: a.reload},
		{Method: fiber.MethodGet, Path: "/stop", Handler: a.stopped},
		{Method: fiber.MethodPost, Path: "/pause", BodyLimit: adminBodyLimit, Handler: a.pause},
		{Method: fiber.MethodPost, Path: "/resume", Handler: a.resume},
		{Method: fiber.MethodGet, Path: "/backup", Handler: a.backup},
	}
}

// Serve serves on the listener until Shutdown and then returns nil.
func (a *Admin) Serve(ln net.Listener) error { return a.serve(ln) }

// Shutdown stops accepting connections, ends streams and waits for other requests. If ctx ends first, it cuts them off and
// returns the error of ctx.
func (a *Admin) Shutdown(ctx context.Context) error {
	a.endStreams()
	return a.shutdown(ctx)
}

func (a *Admin) mount(r Route) {
	a.app.Add(r.Method, r.Path, func(c *fiber.Ctx) error {
		x := exchangeOf(c.Context())
		x.route, x.probe = r.Path, r.Probe
		if err := checkEncoding(&c.Context().Request.Header); err != nil {
			return err
		}
		if r.BodyLimit > 0 {
			if err := receiveJSON(c, x, r.BodyLimit); err != nil {
				return err
			}
		}
		return r.Handler(c)
	})
}

func (a *Admin) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.base, adminTimeout)
}

// recordTimeout bounds how long keep waits for the event: where the journal is not available, it is recorded later.
const recordTimeout = time.Second

// recordFirst has the journal take what the caller is about to do. After an error it must not be done.
func (a *Admin) recordFirst(ctx context.Context, c *fiber.Ctx, kind appliance.EventKind, details map[string]string) error {
	return a.opts.Events.Append(ctx, appliance.Event{Kind: kind, By: callerOf(c), Details: details})
}

// keep is recordFirst for actions that must be possible while the journal is not available: the event waits in memory then.
func (a *Admin) keep(c *fiber.Ctx, kind appliance.EventKind, details map[string]string) error {
	if err := a.opts.Events.Keep(appliance.Event{Kind: kind, By: callerOf(c), Details: details}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.base, recordTimeout)
	defer cancel()
	a.opts.Events.Flush(ctx)
	return nil
}
