// Package graphiql serves the playground: GraphiQL, bundled from npm at build time and embedded, so that it loads no
// files from other hosts. A binary built without Node.js serves a page that explains how to get the playground.
package graphiql

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html"
	"io"
	"io/fs"
	"mime"
	"path"
	"strconv"
	"strings"

	"github.com/gofiber/fiber/v2"
)

// dist is the output of build.mjs: index.html, and each asset as assets/NAME.br and assets/NAME.gz. A build without
// Node.js has only the committed dist/.keep.
//
//go:embed all:dist
var dist embed.FS

//go:embed fallback.html
var fallback []byte

// Inline styles are allowed because the editor, Monaco, writes style elements at run time. Inline scripts are not
// allowed.
const contentSecurityPolicy = "default-src 'none'; " +
	"script-src 'self'; " +
	"style-src 'self' 'unsafe-inline'; " +
	"connect-src 'self'; " +
	"img-src 'self' data:; " +
	"font-src 'self'; " +
	"worker-src 'self'; " +
	"form-action 'none'; " +
	"frame-ancestors 'none'; " +
	"base-uri 'none'"

// Options configure the playground.
type Options struct {
	// Endpoint is the path of the GraphQL endpoint on the same host; empty means /v1/graphql.
	Endpoint string
	// RequiresKey makes the page ask for an API key when it loads. Otherwise the page asks once a query is refused for
	// lack of a key.
	RequiresKey bool
}

// Built reports whether this binary contains the playground, rather than the fallback page.
func Built() bool {
	_, err := fs.Stat(dist, "dist/index.html")
	return err == nil
}

// New returns the handler of the playground, for GET /graphiql and GET /graphiql/assets/*. The handler returns
// fiber.ErrNotFound for an unknown asset.
func New(o Options) fiber.Handler { return newHandler(dist, o) }

func newHandler(files fs.FS, o Options) fiber.Handler {
	if o.Endpoint == "" {
		o.Endpoint = "/v1/graphql"
	}
	page := newPage(files, o)
	assets := loadAssets(files)
	return func(c *fiber.Ctx) error {
		secure(c)
		name := c.Params("*")
		if name == "" {
			return page.send(c)
		}
		asset, ok := assets[name]
		if !ok {
			return fiber.ErrNotFound
		}
		return asset.send(c)
	}
}

// Path is the path of the page.
const Path = "/graphiql"

// Lead redirects to the page from another path.
func Lead(c *fiber.Ctx) error { return c.Redirect(Path, fiber.StatusPermanentRedirect) }

// LeadBrowsers redirects browsers from the endpoint to the page: GET requests without a query string that accept
// text/html. It passes all other requests to the endpoint.
func LeadBrowsers(endpoint fiber.Handler) fiber.Handler {
	return func(c *fiber.Ctx) error {
		asks := c.Context().Request.URI().QueryString()
		if c.Method() != fiber.MethodGet || len(asks) > 0 ||
			!strings.Contains(c.Get(fiber.HeaderAccept), fiber.MIMETextHTML) {
			return endpoint(c)
		}
		c.Vary(fiber.HeaderAccept)
		return c.Redirect(Path, fiber.StatusSeeOther)
	}
}

// secure sets the security headers of the page and of its assets. A worker gets the policy from the response with its
// script.
func secure(c *fiber.Ctx) {
	c.Set(fiber.HeaderContentSecurityPolicy, contentSecurityPolicy)
	c.Set(fiber.HeaderXContentTypeOptions, "nosniff")
	c.Set(fiber.HeaderReferrerPolicy, "no-referrer")
	c.Set("Cross-Origin-Opener-Policy", "same-origin")
	c.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// page is the HTML document. Browsers revalidate it on every load, so that an upgrade takes effect immediately.
type page struct {
	body []byte
	etag string
}

func newPage(files fs.FS, o Options) page {
	body, err := fs.ReadFile(files, "dist/index.html")
	if err != nil {
		body = fallback
	}
	body = bytes.ReplaceAll(body, []byte("{{endpoint}}"), []byte(html.EscapeString(o.Endpoint)))
	body = bytes.ReplaceAll(body, []byte("{{requiresKey}}"), strconv.AppendBool(nil, o.RequiresKey))
	return page{body: body, etag: etag(body)}
}

func (p page) send(c *fiber.Ctx) error {
	c.Set(fiber.HeaderContentType, fiber.MIMETextHTMLCharsetUTF8)
	c.Set(fiber.HeaderCacheControl, "no-cache")
	c.Set(fiber.HeaderETag, p.etag)
	if matches(c.Get(fiber.HeaderIfNoneMatch), p.etag) {
		return c.SendStatus(fiber.StatusNotModified)
	}
	return c.Send(p.body)
}

// asset is a file with a hash of its content in its name, so that browsers may cache it forever. It is kept compressed,
// as embedded.
type asset struct {
	contentType string
	brotli      []byte
	gzip        []byte
	etag        string // without the suffix for the encoding
}

func (a asset) send(c *fiber.Ctx) error {
	c.Set(fiber.HeaderContentType, a.contentType)
	c.Set(fiber.HeaderCacheControl, "public, max-age=31536000, immutable")
	c.Set(fiber.HeaderVary, fiber.HeaderAcceptEncoding)

	encoding := bestEncoding(c.Get(fiber.HeaderAcceptEncoding))
	tag := fmt.Sprintf("%q", a.etag+"-"+encoding)
	c.Set(fiber.HeaderETag, tag)
	if matches(c.Get(fiber.HeaderIfNoneMatch), tag) {
		return c.SendStatus(fiber.StatusNotModified)
	}
	switch encoding {
	case "br":
		c.Set(fiber.HeaderContentEncoding, "br")
		return c.Send(a.brotli)
	case "gzip":
		c.Set(fiber.HeaderContentEncoding, "gzip")
		return c.Send(a.gzip)
	}
	plain, err := gzip.NewReader(bytes.NewReader(a.gzip))
	if err != nil {
		return fmt.Errorf("read embedded asset: %w", err)
	}
	body, err := io.ReadAll(plain)
	if err != nil {
		return fmt.Errorf("read embedded asset: %w", err)
	}
	return c.Send(body)
}

// loadAssets returns the assets by name. A build without the playground has no assets.
func loadAssets(files fs.FS) map[string]asset {
	entries, err := fs.ReadDir(files, "dist/assets")
	if err != nil {
		return nil
	}
	assets := make(map[string]asset, len(entries)/2)
	for _, entry := range entries {
		name, compressed := strings.CutSuffix(entry.Name(), ".gz")
		if !compressed {
			continue
		}
		zipped, errGzip := fs.ReadFile(files, "dist/assets/"+name+".gz")
		brotli, errBrotli := fs.ReadFile(files, "dist/assets/"+name+".br")
		if errGzip != nil || errBrotli != nil {
			continue // incomplete build; the asset is then answered with 404
		}
		assets[name] = asset{contentType: contentType(name), brotli: brotli, gzip: zipped, etag: digest(zipped)}
	}
	return assets
}

// contentType returns the media type of a file. For the common types it does not depend on the MIME tables of the
// machine.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".txt":
		return "text/plain; charset=utf-8"
	case ".ttf":
		return "font/ttf"
	case ".woff2":
		return "font/woff2"
	}
	if known := mime.TypeByExtension(path.Ext(name)); known != "" {
		return known
	}
	return fiber.MIMEOctetStream
}

// bestEncoding returns the best encoding that the client names in Accept-Encoding. A client without Accept-Encoding
// gets identity; fiber's negotiation would choose brotli.
func bestEncoding(accept string) string {
	for _, encoding := range []string{"br", "gzip"} {
		for offer := range strings.SplitSeq(accept, ",") {
			name, weight, _ := strings.Cut(strings.ToLower(strings.TrimSpace(offer)), ";")
			if strings.TrimSpace(name) != encoding {
				continue
			}
			weight = strings.TrimPrefix(strings.TrimSpace(weight), "q=")
			if q, err := strconv.ParseFloat(weight, 64); err != nil || q > 0 {
				return encoding
			}
		}
	}
	return "identity"
}

// matches implements If-None-Match (RFC 9110, section 13.1.2): weak comparison with each tag of the list.
func matches(ifNoneMatch, tag string) bool {
	for candidate := range strings.SplitSeq(ifNoneMatch, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == "*" || candidate == tag {
			return true
		}
	}
	return false
}

func etag(content []byte) string { return fmt.Sprintf("%q", digest(content)) }

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:12])
}
