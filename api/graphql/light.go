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

// This file reduces the size of answers on the wire with content codings and validators (RFC 9110, sections 8.4, 8.8
// and 13). Both take an execution slot. If no slot becomes free in time, the answer is usually sent unchanged.
// Compressing secrets together with attacker-chosen text reveals the secrets (BREACH). Answers to queries contain no
// secrets, and only they are compressed.

// codedBytes is the minimum size of compressed answers. A smaller answer fits into one packet anyway.
const codedBytes = 1 << 10

// codingOf returns the coding that the client accepts; see coding.Choose.
func codingOf(c *fiber.Ctx) (coding.Coding, bool) {
	return coding.Choose(list(c, fiber.HeaderAcceptEncoding))
}

// list returns the value of a list header. It joins all lines of the header, because a proxy may have split one line
// into several (RFC 9110, section 5.3).
func list(c *fiber.Ctx, name string) string {
	lines := c.Request().Header.PeekAll(name)
	if len(lines) < 2 {
		return c.Get(name)
	}
	return string(bytes.Join(lines, []byte(", ")))
}

func notAcceptable() *document.Error {
	return document.NewError(CodeNotAcceptable, "the supported content codings are identity, gzip, br and zstd")
}

// code returns the coding for a body of the given size, or Identity.
func code(c *fiber.Ctx, size int) coding.Coding {
	chosen, plain := codingOf(c)
	if plain && size < codedBytes {
		return coding.Identity
	}
	return chosen
}

// encode returns a coded body as a response that counts against the budget.
func (e *Endpoint) encode(ctx context.Context, body pieces, chosen coding.Coding) (response, *document.Error) {
	if err := e.executions.wait(ctx); err != nil {
		return response{}, err
	}
	defer e.executions.end()
	w := e.newWriter()
	defer w.drop()
	to := &pieceWriter{writer: w, piece: w.next(nil)}
	if err := e.encoders.Encode(to, chosen, body); err != nil {
		return response{}, overloaded() // encoding fails only for lack of budget
	}
	coded := w.finish(to.piece)
	if !w.taken {
		return response{}, overloaded()
	}
	return coded, nil
}

var errNoBudget = errors.New("not enough memory for the compressed response")

// pieceWriter writes into the pieces of a writer.
type pieceWriter struct {
	*writer
	piece []byte // nil if the budget is exhausted
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

// coded returns the response in the coding for the client. If it returns another response, it releases r.
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
	if r.held != nil { // otherwise other requests may send r, too
		e.reuse(r)
	}
	setCoding(c, chosen)
	return small, nil
}

// setCoding sets Content-Encoding, and makes the ETag weak, because another encoder may produce other bytes.
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

// codedEntry returns a cached answer in a coding, and caches the coded answer by its content, so that it serves all
// entries with the same content. Concurrent calls share the work. It returns nil if no execution slot or budget is
// available.
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
		coded := &cacheEntry{kept: kept{body: e.cacheable(small)}, tag: entry.tag, stored: e.cache.now(),
			ttl: entry.ttl}
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

// validate sets the ETag of an answer that is not cached, and reports whether the client already has the answer. It
// applies to a GET, and to a POST with any If-None-Match. Other requests do not pay for the hash.
func (e *Endpoint) validate(c *fiber.Ctx, r response) bool {
	asked := list(c, fiber.HeaderIfNoneMatch)
	whole := r.status == statusOK && len(r.errors) == 0 || r.status == statusForwarded &&
		r.upstream.Status == http.StatusOK
	if !whole || !isGet(c) && asked == "" || e.executions.wait(c.UserContext()) != nil {
		return false
	}
	tag := tagOf(r.body)
	e.executions.end()
	c.Set(fiber.HeaderETag, tag)
	c.Set(fiber.HeaderCacheControl, e.caching("no-cache"))
	return matches(asked, tag)
}

// notModified answers 304 for a body of the given size. RFC 9110 allows 304 only for GET and HEAD. A POST with
// If-None-Match gets it too, because queries are reads by either method. The ETag is weak if the full answer's would be
// (section 15.4.5). With a strong ETag, a cache would not find its stored coded answer (RFC 9111, section 4.3.4).
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

// caching returns a Cache-Control value. It is private if answers require an API key.
func (e *Endpoint) caching(directives string) string {
	if e.keyed {
		return "private, " + directives
	}
	return directives
}

// vary names the request headers that the answer depends on.
func (e *Endpoint) vary(c *fiber.Ctx) {
	c.Vary(fiber.HeaderAccept, fiber.HeaderAcceptEncoding)
	if e.keyed {
		c.Vary("X-Api-Key")
	}
}
