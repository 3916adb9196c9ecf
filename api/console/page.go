package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
)

// page is one page of the console. It renders the template templates/NAME.html, with the module static/NAME.js if that
// file exists.
type page struct {
	name   string
	path   string
	title  string // in the navigation
	least  Role
	routes []route
}

// route is a method and a path (http.ServeMux) with its minimum role and handler. An error becomes an error page.
type route struct {
	pattern string
	least   Role
	serve   func(w http.ResponseWriter, v *visit) error
}

// pages returns all pages, in the order of the navigation.
func pages(withQuorum, withIndexer bool, parts []Part) []page {
	all := []page{overviewPage(), attestationsPage(), activityPage(), keysPage(), approvalsPage()}
	if withQuorum {
		all = append(all, quorumPage())
	}
	all = append(all, replicaPage())
	if withIndexer {
		all = append(all, indexerPage())
	}
	all = append(all, auditPage(), webhooksPage(), operationsPage())
	return append(append(all, partPages(parts)...), settingsPage())
}

// visit is a request of a signed-in user.
type visit struct {
	*http.Request
	Principal
	// Admin sends requests to the admin socket on behalf of the principal, as far as its role allows.
	Admin   *client.Admin
	Expires time.Time // of the session
	console *Console
	ended   context.Context // ends with the session
	streams *atomic.Int32   // open streams of the session
	page    page
}

func (c *Console) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, p := range c.pages {
		for _, r := range p.routes {
			mux.Handle(r.pattern, c.signedIn(p, r))
		}
	}
	mux.HandleFunc("GET /sign-in", c.showSignIn)
	mux.HandleFunc("POST /sign-in", c.signIn)
	mux.HandleFunc("GET /link/{token}", c.showLink)
	mux.HandleFunc("POST /sign-out", c.signOut)
	if c.provider != nil {
		mux.HandleFunc("GET /oidc", c.beginOIDC)
		mux.HandleFunc("GET /oidc/callback", c.endOIDC)
	}
	mux.HandleFunc("GET /static/{version}/{name}", c.looks.static)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c.problem(w, r, http.StatusNotFound, "Page not found.")
	})
	return mux
}

// signedIn serves a route to signed-in users with a sufficient role.
func (c *Console) signedIn(p page, of route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := c.session(r)
		if s == nil {
			c.askToSignIn(w, r)
			return
		}
		v := &visit{Request: r, Principal: s.Principal, Expires: s.expires, console: c, ended: s.ended,
			streams: &s.streams, page: p}
		v.Admin = client.NewAdminOver(adminTransport{next: c.admin, known: c.known, who: s.Principal, now: c.now})
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		err := errRole
		if s.Role >= max(of.least, p.least) {
			err = of.serve(w, v)
		}
		if err != nil {
			c.failed(w, v, err)
		}
	})
}

// failed answers with the page for an error.
func (c *Console) failed(w http.ResponseWriter, v *visit, err error) {
	problem, isProblem := errors.AsType[*client.Problem](err)
	tooLarge, isTooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case errors.Is(err, errRole):
		c.problem(w, v.Request, http.StatusForbidden, fmt.Sprintf("Your role, %s, does not allow this.", v.Role))
	case errors.Is(err, errStale):
		c.writeSignIn(w, v.Request, http.StatusForbidden, signInData{Next: v.page.path, Again: true, Role: v.Role})
	case isProblem:
		c.problem(w, v.Request, problem.Status, problem.Detail)
	case isTooLarge:
		c.problem(w, v.Request, http.StatusRequestEntityTooLarge,
			fmt.Sprintf("The form is larger than %d bytes.", tooLarge.Limit))
	case v.Context().Err() != nil: // the client has disconnected
	default:
		c.logger.Error("console: a page failed", "path", v.URL.Path, "error", err.Error())
		c.problem(w, v.Request, http.StatusInternalServerError,
			"The appliance failed to answer. Its log has the reason.")
	}
}

// show answers with the visit's page.
func (v *visit) show(w http.ResponseWriter, data any) error {
	return v.console.looks.write(w, http.StatusOK, v.page.name, view{
		Title: v.page.title, Page: v.page.name, path: v.page.path, pages: v.console.pages, Who: &v.Principal, Expires: v.Expires,
		Now: v.console.now(), Data: data,
	})
}

// download answers with a file that produce writes, however long it takes, until the session ends. An error before the
// first byte becomes a page. A later one cuts the connection, so that no incomplete file looks complete.
func (v *visit) download(w http.ResponseWriter, produce func(ctx context.Context) error, begun func() bool) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(v.Context())
	defer cancel()
	defer context.AfterFunc(v.ended, cancel)()
	err := produce(ctx)
	if err != nil && begun() {
		panic(http.ErrAbortHandler)
	}
	return err
}

// redirect sends the browser to another page with GET, after a form.
func (v *visit) redirect(w http.ResponseWriter, path string) error {
	http.Redirect(w, v.Request, path, http.StatusSeeOther)
	return nil
}

const (
	streamWriteTimeout = 30 * time.Second
	// streamPulse is the interval of the events that show live.js and proxies that an idle stream is alive.
	streamPulse = 10 * time.Second
)

var errStreams = &client.Problem{Problem: wire.Problem{
	Status: http.StatusTooManyRequests,
	Detail: fmt.Sprintf("You already have %d live pages open: close one of them.", mostStreams),
}}

// stream answers with server-sent events (HTML, section 9.2) until produce returns, the client disconnects, or the
// session ends. The end of the session sends an event named end. send encodes data as JSON, and may be called from one
// goroutine.
func (v *visit) stream(w http.ResponseWriter,
	produce func(ctx context.Context, send func(event string, data any) error) error) error {
	defer v.streams.Add(-1)
	if v.streams.Add(1) > mostStreams {
		return errStreams
	}
	ctx, cancel := context.WithCancel(v.Context())
	var pulse sync.WaitGroup
	defer pulse.Wait()
	defer cancel()
	defer context.AfterFunc(v.ended, cancel)()
	out := &eventWriter{w: w, control: http.NewResponseController(w)}
	// During the handler, net/http reads only to detect that the client disconnects.
	_ = out.control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	if err := out.write(": attestd\n\n"); err != nil {
		return nil
	}
	pulse.Go(func() { out.pulse(ctx) })
	err := produce(ctx, func(event string, data any) error {
		line, err := json.Marshal(data)
		if err != nil {
			return err
		}
		return out.write("event: " + event + "\ndata: " + string(line) + "\n\n")
	})
	if v.ended.Err() != nil {
		_ = out.write("event: end\ndata: null\n\n")
	} else if err != nil && ctx.Err() == nil {
		v.console.logger.Warn("console: a stream ended", "path", v.URL.Path, "error", err.Error())
	}
	return nil
}

// eventWriter writes to a stream from two goroutines.
type eventWriter struct {
	mu      sync.Mutex
	w       http.ResponseWriter
	control *http.ResponseController
}

func (e *eventWriter) write(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.control.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.control.Flush()
}

func (e *eventWriter) pulse(ctx context.Context) {
	beat := time.NewTicker(streamPulse)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if e.write("event: still\ndata: null\n\n") != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// problem answers with an error page.
func (c *Console) problem(w http.ResponseWriter, r *http.Request, status int, text string) {
	view := view{Title: http.StatusText(status), Page: "problem", Now: c.now(), Data: text}
	if s := c.session(r); s != nil {
		view.pages, view.Who, view.Expires = c.pages, &s.Principal, s.expires
	}
	c.write(w, status, "problem", view)
}

// write answers with a page. It fails only because of a defect.
func (c *Console) write(w http.ResponseWriter, status int, name string, v view) {
	if err := c.looks.write(w, status, name, v); err != nil {
		c.logger.Error("console: a page failed", "error", err.Error())
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// askToSignIn redirects a page load to the sign-in page. It answers other requests with 401.
func (c *Console) askToSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Dest") != "empty" {
		http.Redirect(w, r, "/sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return
	}
	c.writeSignIn(w, r, http.StatusUnauthorized, signInData{Next: "/"})
}

// followLive streams the part "live" of the page whenever it changes. read returns its data.
func (v *visit) followLive(w http.ResponseWriter, interval time.Duration,
	read func(ctx context.Context) (any, error)) error {
	return v.stream(w, func(ctx context.Context, send func(event string, data any) error) error {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		last := ""
		for {
			data, err := read(ctx)
			if err != nil {
				return err
			}
			now, err := v.console.looks.part(v.page.name, "live", data)
			if err != nil {
				return err
			}
			if now != last {
				last = now
				if err := send("live", now); err != nil {
					return err
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}
