// Package console is the operator's web console. It serves pages over the admin socket's requests to signed-in users,
// on its own listener. It offers nothing beyond the attestd command, because it sends the same requests.
package console

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/time/rate"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// Options configure a Console.
type Options struct {
	// Dial connects to the admin socket's handler inside the process; see api.Inside.
	Dial func(ctx context.Context) (net.Conn, error)
	// URL is the console's URL for browsers, such as http://127.0.0.1:9465, without a path. Links begin with it.
	URL *url.URL
	// Hosts are additional host names of the console. Requests for other names are refused, so that no other site can
	// point its own name at the console's address (DNS rebinding).
	Hosts   []string
	Parts   []Part           // the parts that are configured: there is a page for each
	Quorum  bool             // other appliances sign with this one: there is a page for them
	Indexer bool             // the daemon reads chains into its replica: there is a page for them
	OIDC    *OIDC            // nil disables OIDC
	TLS     *tls.Config      // nil means plain HTTP
	Logger  *slog.Logger     // nil means slog.Default
	Now     func() time.Time // nil means time.Now
}

const (
	readTimeout    = 30 * time.Second // of a request, and of an answer that is not a stream
	headerTimeout  = 10 * time.Second // of a TLS handshake, and of the headers of a request
	idleTimeout    = time.Minute
	maxHeaderBytes = 16 << 10
	maxForm        = 64 << 10 // of a request body, in bytes
)

// Console serves the console. It is safe for concurrent use.
type Console struct {
	opts     Options
	logger   *slog.Logger
	now      func() time.Time
	sessions *sessions
	attempts *rate.Limiter // of invalid links
	admin    *http.Transport
	known    *http.ServeMux
	pages    []page
	looks    looks
	doctor   doctor
	provider *provider // nil without OIDC
	server   *http.Server
}

// New returns a console that is ready to Serve.
func New(o Options) (*Console, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &Console{
		opts: o, logger: o.Logger.With("socket", "console"), now: o.Now, sessions: newSessions(o.Now),
		attempts: rate.NewLimiter(rate.Every(2*time.Second), 10),
		admin: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return o.Dial(ctx)
		}, IdleConnTimeout: idleTimeout},
		known: newKnown(), pages: pages(o.Quorum, o.Indexer, o.Parts),
		provider: newProvider(o.OIDC, o.URL.JoinPath("oidc", "callback").String(), o.Now),
	}
	var err error
	if c.looks, err = newLooks(c.pages); err != nil {
		return nil, err
	}
	c.server = &http.Server{
		Handler: c.counted(c.protected(c.routes())), ConnContext: withConnection, TLSConfig: o.TLS,
		ErrorLog:          slog.NewLogLogger(c.logger.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: readTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
	}
	return c, nil
}

// Serve serves on the listener until Shutdown and then returns nil.
func (c *Console) Serve(l net.Listener) (err error) {
	l = newListener(l)
	if c.opts.TLS != nil {
		err = c.server.ServeTLS(l, "", "")
	} else {
		err = c.server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown ends all sessions and their live streams, and waits for other requests. If ctx ends first, it returns the
// error of ctx.
func (c *Console) Shutdown(ctx context.Context) error {
	c.sessions.finishAll()
	err := c.server.Shutdown(ctx)
	c.admin.CloseIdleConnections()
	return err
}

// Link returns a link that signs one user in to the console, with the given role. by names the user that made the link.
//
// Errors: CodeInvalidField.
func (c *Console) Link(role, by string) (wire.ConsoleLink, error) {
	r, err := ParseRole(role)
	if err != nil {
		return wire.ConsoleLink{}, appliance.Errorf(appliance.CodeInvalidField, "%s", err).In("role")
	}
	token, expires := c.sessions.invite(r, by)
	c.logger.Info("console: created a link", "role", role, "by", by)
	return wire.ConsoleLink{URL: c.opts.URL.JoinPath("link", token).String(), Role: role, Expires: expires.UTC()}, nil
}
