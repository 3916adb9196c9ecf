package api

import (
	"slices"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"
)

// AnyOrigin stands for all origins in Route.Origins and Options.Origins.
const AnyOrigin = "*"

const (
	// preflightMaxAge is how long a browser may cache the answer to a preflight, in seconds.
	preflightMaxAge = "86400"
	// exposedHeaders are the answer headers that a page may read in addition to the CORS-safelisted ones.
	exposedHeaders = "Age, Cache-Status, ETag, Idempotent-Replayed, RateLimit, RateLimit-Policy, Retry-After, WWW-Authenticate, X-Request-Id"
)

// pages maps a path to the origins whose pages may read its answers, including errors (CORS protocol of the Fetch
// standard). Cookies and other browser credentials are neither allowed nor accepted, so a page can read no more than
// its own server could.
type pages struct {
	exact    map[string]*readers
	prefixes []*readers // for route patterns, longest prefix first
}

// readers holds the origins that may read one path.
type readers struct {
	route   string
	prefix  string
	origins []string
	methods string
}

func newPages(routes []Route) *pages {
	p := &pages{exact: make(map[string]*readers)}
	for _, r := range routes {
		if len(r.Origins) == 0 || !slices.Contains([]string{fiber.MethodGet, fiber.MethodPost}, r.Method) {
			continue
		}
		path := p.of(r)
		path.methods += r.Method + ", "
	}
	slices.SortFunc(p.prefixes, func(a, b *readers) int { return len(b.prefix) - len(a.prefix) })
	return p
}

// of returns the readers of a route's path. All methods of a path share them.
func (p *pages) of(r Route) *readers {
	for _, known := range p.prefixes {
		if known.route == r.Path {
			return known
		}
	}
	if known := p.exact[r.Path]; known != nil {
		return known
	}
	made := &readers{route: r.Path, origins: r.Origins}
	if pattern := strings.IndexAny(r.Path, ":*"); pattern >= 0 {
		made.prefix = r.Path[:pattern]
		p.prefixes = append(p.prefixes, made)
	} else {
		p.exact[r.Path] = made
	}
	return made
}

// find returns the readers of the requested path, or nil if no page may read it.
func (p *pages) find(rctx *fasthttp.RequestCtx) *readers {
	path := rctx.URI().PathOriginal()
	if found := p.exact[string(path)]; found != nil {
		return found
	}
	for _, candidate := range p.prefixes {
		if strings.HasPrefix(string(path), candidate.prefix) {
			return candidate
		}
	}
	return nil
}

// allow sets the headers that let permitted pages read the answer.
func (p *pages) allow(rctx *fasthttp.RequestCtx) {
	if p == nil {
		return
	}
	origin := rctx.Request.Header.Peek(fiber.HeaderOrigin)
	if found := p.find(rctx); found != nil && (len(origin) > 0 || !rctx.IsOptions()) {
		found.allow(&rctx.Response.Header, string(origin))
	}
}

func (r *readers) allow(h *fasthttp.ResponseHeader, origin string) {
	if slices.Contains(r.origins, AnyOrigin) {
		allowAny(h)
		return
	}
	h.Add(fiber.HeaderVary, fiber.HeaderOrigin)
	if slices.Contains(r.origins, origin) {
		h.Set(fiber.HeaderAccessControlAllowOrigin, origin)
		h.Set(fiber.HeaderAccessControlExposeHeaders, exposedHeaders)
	}
}

func allowAny(h *fasthttp.ResponseHeader) {
	h.Set(fiber.HeaderAccessControlAllowOrigin, AnyOrigin)
	h.Set(fiber.HeaderAccessControlExposeHeaders, exposedHeaders)
}

// preflight answers a CORS preflight request. It is free of charge: the browser sends no API key with it, and would
// report a refusal to the page as a network failure.
func (p *pages) preflight(rctx *fasthttp.RequestCtx, x *exchange) bool {
	asked := &rctx.Request.Header
	if p == nil || !rctx.IsOptions() || len(asked.Peek(fiber.HeaderAccessControlRequestMethod)) == 0 {
		return false
	}
	found := p.find(rctx)
	if found == nil {
		return false
	}
	x.route = found.route
	h := &rctx.Response.Header
	h.Add(fiber.HeaderVary, fiber.HeaderAccessControlRequestHeaders)
	h.Set(fiber.HeaderAllow, found.methods+fiber.MethodOptions)
	rctx.Response.SetStatusCode(fiber.StatusNoContent)
	if len(h.Peek(fiber.HeaderAccessControlAllowOrigin)) == 0 {
		return true
	}
	h.Set(fiber.HeaderAccessControlAllowMethods, found.methods+fiber.MethodOptions)
	h.Set(fiber.HeaderAccessControlMaxAge, preflightMaxAge)
	if names := asked.Peek(fiber.HeaderAccessControlRequestHeaders); len(names) > 0 {
		h.SetBytesV(fiber.HeaderAccessControlAllowHeaders, names)
	}
	return true
}
