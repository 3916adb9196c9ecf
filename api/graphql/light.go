package graphql

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/coding"
	"github.com/attestd/attestd/api/graphql/document"
)

// What is here makes answers light on the wire: content codings and validators (RFC 9110, sections 8.4, 8.8 and 13). Both take a
// processor in turn, as executing does; where that takes too long, the answer is sent as it is. To compress beside what an attacker
// chooses gives secrets away (BREACH): answers to queries have none, and nothing else is compressed.

// codedBytes is from how many bytes on an answer is compressed: it fits a packet either way below.
const codedBytes = 1 << 10

// codingOf is what the client takes; see coding.Choose.
func codingOf(c *fiber.Ctx) (coding.Coding, bool) {
	return coding.Choose(list(c, fiber.HeaderAcceptEncoding))
}

// list returns a field whose value is a list: all its lines, for what is between may have made several of one (RFC 9110, section 5.3).
func list(c *fiber.Ctx, name string) string {
	lines := c.Request().Header.PeekAll(name)
	if len(lines) < 2 {
		return c.Get(name)
	}
	return string(bytes.Join(lines, []byte(", ")))
}

func notAcceptable() *document.Error {
	return document.NewError(CodeNotAcceptable, "the answer can be without a content coding, or in gzip, br or zstd")
}

// code returns the coding in which a body of that size goes to the client, Identity for none.
func code(c *fiber.Ctx, size int) coding.Coding {
	chosen, plain := codingOf(c)
	if plain && size < codedBytes {
		return coding.Identity
	}
	return chosen
}

// encode returns a body in that coding, as a response that holds its bytes of the budget.
func (e *Endpoint) encode(ctx context.Context, body pieces, chosen coding.Coding) (response, *document.Error) {
	if err := e.executions.wait(ctx); err != nil {
		return response{}, err
	}
	defer e.executions.end()
	w := e.newWriter()
	defer w.drop()
	to := &pieceWriter{writer: w, piece: w.next(nil)}
	if err := e.encoders.Encode(to, chosen, body); err != nil {
		return response{}, overloaded() // nothing else fails
	}
	coded := w.take(to.piece)
	if !w.taken {
		return response{}, overloaded()
	}
	return coded, nil
}

var errNoBudget = errors.New("no room for the coded answer")

// pieceWriter writes into the pieces of a writer.
type pieceWriter struct {
	*writer
	piece []byte // nil where the budget has none
}

func (w *pieceWriter) Write(p []byte) (written int, err error) {
	for w.piece != nil && len(p) > 0 {
		n := min(len(p), cap(w.piece)-len(w.piece))
		w.piece = append(w.piece, p[:n]...)
		p, written = p[n:], written+n
		if len(w.piece) == cap(w.piece) {
			w.piece = w.next(w.piece)
		}
	}
	if w.piece == nil {
		return written, errNoBudget
	}
	return written, nil
}

// coded returns the response as the client takes it. What r holds is given back if another is returned.
func (e *Endpoint) coded(c *fiber.Ctx, r response) (response, *document.Error) {
	chosen := code(c, r.body.size())
	if chosen == coding.Identity {
		return r, nil
	}
	small, err := e.encode(c.UserContext(), r.body, chosen)
	if err != nil {
		if _, plain := codingOf(c); plain {
			return r, nil
		}
		return r, err
	}
	small.status = r.status
	if r.held != nil { // else others may send it, too
		e.reuse(r)
	}
	setCoding(c, chosen)
	return small, nil
}

// setCoding says that the body is coded, and makes its validator a weak one: another encoder may write other bytes.
func setCoding(c *fiber.Ctx, chosen coding.Coding) {
	c.Set(fiber.HeaderContentEncoding, string(chosen))
	weaken(c)
}

func weaken(c *fiber.Ctx) {
	h := &c.Response().Header
	if tag := string(h.Peek(fiber.HeaderETag)); strings.HasPrefix(tag, `"`) {
		h.Set(fiber.HeaderETag, "W/"+tag)
	}
}

// codedEntry returns a kept answer in that coding, which is kept as well: by what it says, so that it serves each entry that says
// the same. Concurrent calls share the work. It returns nil where there is no processor or no room.
func (e *Endpoint) codedEntry(ctx context.Context, entry *cacheEntry, chosen coding.Coding) *cacheEntry {
	key := cacheKey(sha256.Sum256([]byte(entry.tag + string(chosen))))
	made, _, _ := e.encodings.Do(string(key[:]), func() (any, error) {
		if known, ok := e.cache.entries.GetIfPresent(key); ok {
			return known, nil
		}
		small, err := e.encode(ctx, entry.body, chosen)
		if err != nil {
			return (*cacheEntry)(nil), nil
		}
		coded := &cacheEntry{kept: kept{body: e.keep(small)}, tag: entry.tag, stored: e.cache.now(), ttl: entry.ttl}
		e.cache.entries.Set(key, coded)
		return coded, nil
	})
	return made.(*cacheEntry)
}

// tagOf returns a strong validator of a body.
func tagOf(body pieces) string {
	h := sha256.New()
	for _, piece := range body {
		h.Write(piece)
	}
	return `"` + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16]) + `"`
}

// validate gives an answer that is not kept its validator, and reports whether the client has it already: for a GET, and for a POST
// that asks by If-None-Match, be it with a tag that fits nothing. Others need not pay for it.
func (e *Endpoint) validate(c *fiber.Ctx, r response) bool {
	asked := list(c, fiber.HeaderIfNoneMatch)
	whole := r.status == statusOK && len(r.errors) == 0 || r.status == statusForwarded && r.upstream.Status == http.StatusOK
	if !whole || !isGet(c) && asked == "" || e.executions.wait(c.UserContext()) != nil {
		return false
	}
	tag := tagOf(r.body)
	e.executions.end()
	c.Set(fiber.HeaderETag, tag)
	c.Set(fiber.HeaderCacheControl, e.caching("no-cache"))
	return matches(asked, tag)
}

// notModified answers that the client has what it asks for, a body of that size. RFC 9110 has that for GET and HEAD alone; a POST
// gets it where it asks, for queries are reads by either method. The validator is that of the answer (section 15.4.5): with a strong
// one, a cache would not find the coded answer that it has (RFC 9111, section 4.3.4).
func notModified(c *fiber.Ctx, size int) error {
	if code(c, size) != coding.Identity {
		weaken(c)
	}
	c.Response().ResetBody()
	c.Status(http.StatusNotModified)
	return nil
}

// matches compares If-None-Match (RFC 9110, section 13.1.2) weakly with a tag.
func matches(ifNoneMatch, tag string) bool {
	for candidate := range strings.SplitSeq(ifNoneMatch, ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == "*" || candidate == tag {
			return true
		}
	}
	return false
}

// caching returns a Cache-Control: private where answers are for those with a key.
func (e *Endpoint) caching(directives string) string {
	if e.keyed {
		return "private, " + directives
	}
	return directives
}

// vary names what of a request decides about its answer.
func (e *Endpoint) vary(c *fiber.Ctx) {
	c.Vary(fiber.HeaderAccept, fiber.HeaderAcceptEncoding)
	if e.keyed {
		c.Vary("X-Api-Key")
	}
}
