package api

import (
	"strings"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// tileHeight is that of C2SP tlog-tiles: 256 hashes.
const tileHeight = 8

// checkpoint is GET /log/checkpoint (C2SP tlog-checkpoint).
func (s *Server) checkpoint(c *fiber.Ctx) error {
	signed, err := s.attestor.Journal.Checkpoint(s.base)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	c.Set(fiber.HeaderCacheControl, "no-cache")
	return c.Send(signed)
}

// tile is GET /log/tile/{L}/{N}[.p/{W}] (C2SP tlog-tiles). There are no entry bundles: entries are secret.
func (s *Server) tile(c *fiber.Ctx) error {
	noTile := appliance.Errorf(appliance.CodeNotFound, "there is no such tile")
	path := c.Params("*")
	if strings.HasPrefix(path, "entries/") || strings.HasPrefix(path, "data/") {
		return noTile
	}
	// Go's tile paths differ from C2SP's only in naming the height.
	t, err := tlog.ParseTilePath("tile/8/" + path)
	if err != nil || t.H != tileHeight || t.L < 0 {
		return noTile
	}
	hashes, err := s.attestor.Journal.Tile(s.base, t)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType(fiber.MIMEOctetStream)
	c.Set(fiber.HeaderCacheControl, tileCaching(t))
	return c.Send(hashes)
}

// tileCaching: a full tile never changes. A partial one does not either, but it is of no use once the tree has grown.
func tileCaching(t tlog.Tile) string {
	if t.W == 1<<tileHeight {
		return "public, max-age=31536000, immutable"
	}
	return "public, max-age=60"
}
