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
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/history"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/stop"
	"github.com/attestd/attestd/appliance/webhooks"
)

// AdminOptions configure an Admin.
type AdminOptions struct {
	Attestor  *attest.Attestor
	HSMStatus func(ctx context.Context) (any, error) // answers GET /hsm
	Stop      *stop.Switch                           // nil means that attesting cannot be paused
	// Cluster returns the status of the appliances that share the store. Nil means that this appliance is alone.
	Cluster func(ctx context.Context) (wire.Cluster, error)
	// Reload loads the configuration again, on behalf of the caller named by. It returns the changed settings that need
	// a restart. After an error the old configuration stays in effect. Nil means that reloading is not supported.
	Reload func(by string) (needRestart []string, err error)
	// Backup writes an archive with a consistent copy of keys and journal. Nil means that backups are not supported.
	Backup func(ctx context.Context, w io.Writer) error
	// BackupFile is the file with the time of the last complete backup; "" keeps the time in memory. BackupMaxAge is the
	// age above which a backup is late; 0 accepts any.
	BackupFile   string
	BackupMaxAge time.Duration
	// Report makes a signed audit report. Nil means that reports are not supported.
	Report func(ctx context.Context, o report.Options) (report.Signed, error)
	Events *journal.Events // records the operators' actions; nil records none
	// Streams has the events for the operators' streams; nil means that the daemon has none.
	Streams *events.Hub
	Sinks   func() []sinks.Status // the states of audit.sinks; nil means no sinks
	// Webhooks are the webhooks of the appliances that share the store; nil means that the daemon has none.
	Webhooks *webhooks.Hooks
	Version  string
	Reads    wire.ReadsStatus // the source of query answers; the handler fills in Replica
	// Surroundings returns the parts of the status that lie outside this server. It must be quick. Nil leaves them
	// empty.
	Surroundings func() wire.Surroundings
	Activity     *Activity        // of the public server; nil if it keeps none
	History      *history.History // nil if the daemon keeps none
	// Settings returns the values in effect. Doctor returns its findings, in the form that 'attestd doctor -o json'
	// prints. ConsoleLink makes a sign-in link for the console with the given role. If one of them is nil, its route
	// answers CodeNotFound.
	Settings    func() []wire.Setting
	Doctor      func(ctx context.Context) any
	ConsoleLink func(role, by string) (wire.ConsoleLink, error)
	// LogVerifier is the log's verifier key; see Options.
	LogVerifier string
	Replica     index.Index // nil if the daemon has no replica
	// Follower keeps Replica in step with Upstream. Both are nil if the replica follows no upstream.
	Follower *follower.Follower
	Upstream follower.Upstream
	// Chain watches contracts, and Redemptions stores the redemptions that it has read. Both are nil if no contract is
	// watched.
	Chain *chain.Watchtower
	// Indexer reads chains into Replica; nil if graphql.source is not chains.
	Indexer      Indexer
	Verifier     Verifier // checks packets against chains; nil if indexer.chains is empty
	Redemptions  chain.Store
	ReplicaReady func() error // see Options
	Witnesses    Witnesses    // nil means no witnesses
	Quorum       Quorum       // nil means that this appliance signs alone
	Routes       []Route      // additional routes; their Scope and Rate are ignored

	Logger *slog.Logger     // nil means slog.Default
	Now    func() time.Time // nil means time.Now
}

// Admin serves the operator's commands while the daemon runs. It requires no API key, because only the operator can
// open its socket; see ListenAdmin.
type Admin struct {
	*httpServer
	opts     AdminOptions
	attestor *attest.Attestor
	started  time.Time
	routes   []Route
	lag      lagHistory // of the replica's follower

	audited     atomic.Pointer[wire.Audit] // the last complete audit; nil before the first
	backups     backups
	quorumSeen  seen[quorum.Status]
	clusterSeen seen[[]health.Finding]
	peopleSeen  seen[[]approval.Approver]

	// streams is the parent of the streams' contexts. Shutdown cancels it, because it cannot wait for an audit to
	// finish.
	streams    context.Context
	endStreams context.CancelFunc
}

const (
	adminReadTimeout = 10 * time.Second
	adminIdleTimeout = time.Minute
	// Of one write: a stream may take hours, but a client may not stop reading.
	adminWriteTimeout = 30 * time.Second
	adminTimeout      = 30 * time.Second // of a request that is not a stream
	adminBodyLimit    = 64 << 10
	adminConnections  = 1024
)

// NewAdmin returns an admin server that is ready to Serve.
func NewAdmin(opts AdminOptions) *Admin {
	opts.Logger, opts.Now = orDefaults(opts.Logger, opts.Now)
	a := &Admin{opts: opts, attestor: opts.Attestor, started: opts.Now()}
	a.backups.open(opts.BackupFile, opts.Logger)
	a.streams, a.endStreams = context.WithCancel(context.Background())
	a.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger.With("socket", "admin"), Now: opts.Now, ShowCauses: true,
		ReadTimeout: adminReadTimeout, IdleTimeout: adminIdleTimeout, EachWriteTimeout: adminWriteTimeout,
		Connections: connectionLimits{Most: adminConnections},
	})
	a.routes = slices.Concat(a.ownRoutes(), a.replicaRoutes(), a.chainRoutes(), a.indexerRoutes(), a.proofRoutes(),
		a.quorumRoutes(), a.consoleRoutes(), a.approvalRoutes(), a.webhookRoutes(), opts.Routes)
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
		{Method: fiber.MethodPost, Path: "/log/report", BodyLimit: adminBodyLimit, Handler: a.report},
		{Method: fiber.MethodGet, Path: "/hsm", Handler: a.hsm},
		{Method: fiber.MethodGet, Path: "/status", Probe: true, Handler: a.status},
		{Method: fiber.MethodGet, Path: "/activity", Handler: a.activity},
		{Method: fiber.MethodGet, Path: "/history", Handler: a.history},
		{Method: fiber.MethodGet, Path: "/events", Handler: a.events},
		{Method: fiber.MethodGet, Path: "/cluster", Handler: a.cluster},
		{Method: fiber.MethodGet, Path: "/sinks", Handler: a.sinks},
		{Method: fiber.MethodPost, Path: "/reload", Handler: a.reload},
		{Method: fiber.MethodGet, Path: "/stop", Handler: a.stopped},
		{Method: fiber.MethodPost, Path: "/pause", BodyLimit: adminBodyLimit, Handler: a.pause},
		{Method: fiber.MethodPost, Path: "/resume", Handler: a.resume},
		{Method: fiber.MethodGet, Path: "/backup", Handler: a.backup},
		{Method: fiber.MethodGet, Path: "/profiles/:name", Handler: a.profile},
	}
}

// Serve serves on the listener until Shutdown and then returns nil.
func (a *Admin) Serve(ln net.Listener) error { return a.serve(ln) }

// Shutdown stops accepting connections, ends streams and waits for other requests. If ctx ends first, Shutdown cuts
// those requests off and returns the error of ctx.
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

// recordTimeout bounds how long keep waits for the journal. Without a journal, the event is recorded later.
const recordTimeout = time.Second

// recordFirst appends an event to the journal before the action that it describes. If recordFirst fails, the action
// must not be done.
func (a *Admin) recordFirst(ctx context.Context, c *fiber.Ctx, kind journal.EventKind,
	details map[string]string) error {
	return a.opts.Events.Append(ctx, journal.Event{Kind: kind, By: callerOf(c), Details: details})
}

// recordOrQueue is recordFirst for actions that must work even while the journal is unavailable. The event then waits
// in memory.
func (a *Admin) recordOrQueue(c *fiber.Ctx, kind journal.EventKind, details map[string]string) error {
	if err := a.opts.Events.RecordOrQueue(journal.Event{Kind: kind, By: callerOf(c), Details: details}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.base, recordTimeout)
	defer cancel()
	a.opts.Events.Flush(ctx)
	return nil
}
