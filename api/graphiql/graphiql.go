// Package graphiql serves the playground: GraphiQL, bundled from npm at build time and embedded, so that it loads nothing from
// other hosts. A binary that was built without Node.js serves a page that says how to get it.
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

// dist is what build.mjs writes: index.html, and each asset as assets/NAME.br and assets/NAME.gz. A build without
// Node.js has only the committed dist/.keep.
//
//go:embed all:dist
var dist embed.FS

//go:embed fallback.html
var fallback []byte

// The styles are inline because the editor, Monaco, writes style elements as it runs; scripts never are.
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
	// RequiresKey has the page ask for an API key at once. Without it, it asks once a query was refused for want of one.
	RequiresKey bool
}

// Built reports whether this binary contains the playground, rather than the page that says how to get it.
func Built() bool {
	_, err := fs.Stat(dist, "dist/index.html")
	return err == nil
}

// New returns the handler of the playground, for GET /graphiql and GET /graphiql/assets/*. It returns fiber.ErrNotFound for an
// unknown asset.
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

// Path is the page's.
const Path = "/graphiql"

// Lead answers a request for the page by another name.
func Lead(c *fiber.Ctx) error { return c.Redirect(Path, fiber.StatusPermanentRedirect) }

// LeadBrowsers leads a person who has opened the endpoint itself in a browser to the page, and leaves all else to the endpoint: a
// client asks something, or for no HTML.
func LeadBrowsers(endpoint fiber.Handler) fiber.Handler {
	return func(c *fiber.Ctx) error {
		asks := c.Context().Request.URI().QueryString()
		if c.Method() != fiber.MethodGet || len(asks) > 0 || !strings.Contains(c.Get(fiber.HeaderAccept), fiber.MIMETextHTML) {
			return endpoint(c)
		}
		c.Vary(fiber.HeaderAccept)
		return c.Redirect(Path, fiber.StatusSeeOther)
	}
}

// secure sets the headers of the page and of its assets. A worker has the policy that its own script was served with.
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

// asset is a file with a hash of its content in its name, so that browsers may cache it for ever. It is kept compressed, as
// embedded.
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

// loadAssets returns the assets by name. A build without the playground has none.
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
			continue // half a build; the page then shows the browser's 404
		}
		assets[name] = asset{contentType: contentType(name), brotli: brotli, gzip: zipped, etag: digest(zipped)}
	}
	return assets
}

// contentType returns the media type of a file. The types that browsers do not guess do not depend on the MIME tables of the
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

// bestEncoding returns the best encoding that the client accepts by name. A client without Accept-Encoding gets identity;
// fiber's negotiation would choose brotli.
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
