// Package graphiql serves the playground: GraphiQL, bundled from npm at build time and embedded, so that exploring
// the data needs nothing but the appliance. Built without Node.js, it serves a page that says how to get it.
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

// Options configures the playground.
type Options struct {
	// Endpoint is the path of the GraphQL endpoint on the same host; empty means /v1/graphql.
	Endpoint string
}

// Built reports whether this binary contains the playground, rather than the page that says how to get it.
func Built() bool {
	_, err := fs.Stat(dist, "dist/index.html")
	return err == nil
}

// New returns the handler of the playground. Mount it at GET /graphiql and at GET /graphiql/assets/*. A name that is
// not an asset's is a 404 *fiber.Error.
func New(o Options) fiber.Handler { return newHandler(dist, o) }

func newHandler(files fs.FS, o Options) fiber.Handler {
	if o.Endpoint == "" {
		o.Endpoint = "/v1/graphql"
	}
	page := newPage(files, o.Endpoint)
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

// secure sets what both the page and its assets carry; a worker is bound by the policy of its own script's response.
func secure(c *fiber.Ctx) {
	c.Set(fiber.HeaderContentSecurityPolicy, contentSecurityPolicy)
	c.Set(fiber.HeaderXContentTypeOptions, "nosniff")
	c.Set(fiber.HeaderReferrerPolicy, "no-referrer")
	c.Set("Cross-Origin-Opener-Policy", "same-origin")
	c.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// page is the HTML document. It is small, and revalidated on every load, so that an upgrade shows at once.
type page struct {
	body []byte
	etag string
}

func newPage(files fs.FS, endpoint string) page {
	body, err := fs.ReadFile(files, "dist/index.html")
	if err != nil {
		body = fallback
	}
	body = bytes.ReplaceAll(body, []byte("{{endpoint}}"), []byte(html.EscapeString(endpoint)))
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

// asset is a file whose name carries a hash of its content, so that it may be kept for ever. It is held in memory as
// embedded: compressed.
type asset struct {
	contentType string
	brotli      []byte
	gzip        []byte
	etag        string // of the content, without the mark of the encoding
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

// loadAssets reads what build.mjs embedded. A build without the playground has none.
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

// contentType does not ask the machine's mime tables for the types that a browser refuses to guess.
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

// bestEncoding picks the smallest form that the client accepts by name. A client that says nothing gets the plain
// form: fiber's own negotiation would send it brotli.
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

// matches compares as RFC 9110 section 13.1.2 asks: weakly, against each tag of the list.
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
