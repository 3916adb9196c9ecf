package api

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// AdminOptions are what an Admin needs.
type AdminOptions struct {
	Attestor  *appliance.Attestor
	HSMStatus func(ctx context.Context) (any, error) // answered as JSON at /hsm
	// Reload loads the configuration again and returns the names of values that changed but need a restart. An error
	// means that all stays as it was. Nil means that it cannot.
	Reload func() (needRestart []string, err error)
	// Backup writes a consistent copy of keys and journal, as an archive. Nil means that it cannot.
	Backup  func(ctx context.Context, w io.Writer) error
	Version string
	Index   index.Index // the replica; nil where there is none
	// Follower keeps Index in step with Upstream; both are nil where it follows none.
	Follower *follower.Follower
	Upstream follower.Upstream
	// ReplicaReady is as in Options.
	ReplicaReady func() error
	// Routes are served beside the admin's own. Their Scope is ignored.
	Routes []Route

	Logger *slog.Logger     // slog.Default
	Now    func() time.Time // time.Now
}

// Admin is what the operator's commands talk to while the daemon runs. It asks for no key: whoever may open its socket
// is the operator; see ListenAdmin.
type Admin struct {
	*httpServer
	opts     AdminOptions
	attestor *appliance.Attestor
	started  time.Time
	routes   []Route

	streams    context.Context // of long answers; they end at Shutdown, which cannot wait for an audit
	endStreams context.CancelFunc
}

const (
	adminReadTimeout  = 10 * time.Second
	adminIdleTimeout  = time.Minute
	adminWriteTimeout = 30 * time.Second // for each piece of an answer: a stream may take hours, a stuck reader may not
	adminTimeout      = 30 * time.Second // for what is not a stream
	adminBodyLimit    = 64 << 10
)

// NewAdmin returns an admin server that is ready to Serve.
func NewAdmin(opts AdminOptions) *Admin {
	setDefault(&opts.Logger, slog.Default())
	if opts.Now == nil {
		opts.Now = time.Now
	}
	a := &Admin{opts: opts, attestor: opts.Attestor, started: opts.Now()}
	a.streams, a.endStreams = context.WithCancel(context.Background())
	a.httpServer = newHTTPServer(httpOptions{
		Logger: opts.Logger.With("socket", "admin"), Now: opts.Now, ShowCauses: true,
		ReadTimeout: adminReadTimeout, IdleTimeout: adminIdleTimeout, EachWriteTimeout: adminWriteTimeout,
	})
	a.routes = slices.Concat(a.ownRoutes(), a.replicaRoutes(), opts.Routes)
	for _, r := range a.routes {
		a.mount(r)
	}
	a.start()
	return a
}

func (a *Admin) ownRoutes() []Route {
	return []Route{
		{Method: fiber.MethodPost, Path: "/keys", BodyLimit: adminBodyLimit, Handler: a.createKey},
		{Method: fiber.MethodGet, Path: "/keys", Handler: a.listKeys},
		{Method: fiber.MethodPost, Path: "/keys/:id/revoke", Handler: a.revokeKey},
		{Method: fiber.MethodGet, Path: "/log/records", Handler: a.records},
		{Method: fiber.MethodGet, Path: "/log/records/:id", Handler: a.record},
		{Method: fiber.MethodGet, Path: "/log/records/:id/proof", Handler: a.prove},
		{Method: fiber.MethodGet, Path: "/log/entries", Handler: a.entries},
		{Method: fiber.MethodGet, Path: "/log/checkpoint", Handler: a.checkpoint},
		{Method: fiber.MethodPost, Path: "/log/verify", BodyLimit: adminBodyLimit, Handler: a.verify},
		{Method: fiber.MethodGet, Path: "/hsm", Handler: a.hsm},
		{Method: fiber.MethodGet, Path: "/status", Handler: a.status},
		{Method: fiber.MethodPost, Path: "/reload", Handler: a.reload},
		{Method: fiber.MethodGet, Path: "/backup", Handler: a.backup},
	}
}

// Serve answers on the listener until Shutdown, and then returns nil.
func (a *Admin) Serve(ln net.Listener) error { return a.serve(ln) }

// Shutdown stops accepting, ends streams, lets other requests finish and returns; when ctx ends first, with its error.
func (a *Admin) Shutdown(ctx context.Context) error {
	a.endStreams()
	return a.shutdown(ctx)
}

func (a *Admin) mount(r Route) {
	a.app.Add(r.Method, r.Path, func(c *fiber.Ctx) error {
		x := exchangeOf(c.Context())
		x.route = r.Path
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
