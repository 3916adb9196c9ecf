package api

import (
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/api/landing"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	landingPath    = "/"
	referencePath  = "/docs"
	proofPath      = "/log/proof"
	playgroundPath = "/graphiql"
)

// front caches the contents of the landing page for readyFor, so that requests cannot multiply the work.
type front struct {
	mu    sync.Mutex
	shown wire.Landing
	at    time.Time // when shown was made
}

// landing is GET /: an HTML page, or JSON if the Accept header prefers it.
func (s *Server) landing(c *fiber.Ctx) error {
	c.Vary(fiber.HeaderAccept)
	shown := s.showFront()
	if c.Accepts(fiber.MIMETextHTML, fiber.MIMEApplicationJSON) == fiber.MIMEApplicationJSON {
		c.Set(fiber.HeaderCacheControl, "no-cache")
		return sendJSON(c, fiber.StatusOK, shown)
	}
	page, err := landing.Page(shown)
	if err != nil {
		return err
	}
	return sendPage(c, page)
}

// lastProof is GET /log/proof.
func (s *Server) lastProof(c *fiber.Ctx) error {
	last := s.showFront().LastAttestation
	if last == nil {
		return appliance.Errorf(appliance.CodeNotFound, "an attestation with a public proof does not exist yet")
	}
	c.Set(fiber.HeaderCacheControl, "no-cache")
	return sendJSON(c, fiber.StatusOK, last)
}

func (s *Server) favicon(c *fiber.Ctx) error {
	c.Context().Response.Header.SetContentType("image/svg+xml")
	c.Set(fiber.HeaderCacheControl, "public, max-age=86400")
	c.Set(fiber.HeaderContentSecurityPolicy, "default-src 'none'")
	return c.Send(landing.Favicon)
}

// codedReference renders the API reference once.
var codedReference = sync.OnceValues(func() ([]byte, error) { return landing.Reference(openAPI) })

// reference is GET /docs.
func (s *Server) reference(c *fiber.Ctx) error {
	page, err := codedReference()
	if err != nil {
		return err
	}
	return sendPage(c, page)
}

func sendPage(c *fiber.Ctx, page []byte) error {
	c.Set(fiber.HeaderCacheControl, "no-cache")
	c.Set(fiber.HeaderContentSecurityPolicy, landing.Policy())
	c.Set(fiber.HeaderReferrerPolicy, "no-referrer")
	c.Set("Cross-Origin-Opener-Policy", "same-origin")
	c.Context().Response.Header.SetContentType(fiber.MIMETextHTMLCharsetUTF8)
	return c.Send(page)
}

func (s *Server) showFront() wire.Landing {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	if age := s.now().Sub(s.front.at); s.front.at.IsZero() || age < 0 || age >= readyFor {
		s.front.shown, s.front.at = s.lookAtFront(), s.now()
	}
	return s.front.shown
}

func (s *Server) lookAtFront() wire.Landing {
	ctx := s.deadlines.context()
	health := s.ready.now()
	l := wire.Landing{
		Name: s.origin, Ready: health.Status == "ok", Failing: health.Failing,
		SignerAddress: s.attestor.DefaultKey().Signer.Address(), Scheme: s.attestor.Scheme.Name,
		Links: wire.LandingLinks{Reference: referencePath, OpenAPI: "/openapi.yaml", Checkpoint: "/log/checkpoint"},
	}
	if slices.ContainsFunc(s.routes, func(r Route) bool { return r.Path == playgroundPath }) {
		l.Links.Playground = playgroundPath
	}
	if s.opts.Console != nil {
		l.Links.Console = s.opts.Console()
	}
	signed, err := published(ctx, s.attestor.Journal, s.opts.Witnesses)
	if err != nil {
		return l
	}
	_, tree, err := journal.ReadCheckpoint(signed) // our own checkpoint: its signature needs no check
	if err != nil {
		return l
	}
	l.Checkpoint = &wire.LandingCheckpoint{Size: tree.N, RootHash: hex.EncodeToString(tree.Hash[:])}
	l.LastAttestation = s.lastAttestation(ctx, tree, signed)
	return l
}

// lastAttestation returns the newest attestation under a checkpoint, or nil if none exists or can be read.
func (s *Server) lastAttestation(ctx context.Context, tree tlog.Tree, signed []byte) *wire.LastAttestation {
	newest, err := s.attestor.Journal.List(ctx,
		journal.Query{AttestationsOnly: true, Before: tree.N, Limit: 1})
	if err != nil || len(newest) == 0 || tree.N == 0 {
		return nil
	}
	proof, err := journal.ProveAt(ctx, s.attestor.Journal, newest[0].Index, tree, signed)
	if err != nil {
		return nil
	}
	last := &wire.LastAttestation{
		Index: proof.Index, TreeSize: proof.TreeSize, LeafHash: hex.EncodeToString(proof.LeafHash),
		RootHash: hex.EncodeToString(tree.Hash[:]),
		Path:     []string{}, Checkpoint: string(signed), Proof: proofPath,
	}
	for _, h := range proof.Hashes {
		last.Path = append(last.Path, hex.EncodeToString(h))
	}
	return last
}
