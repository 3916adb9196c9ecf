package api

import (
	"strings"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// tileHeight is the height of tiles in C2SP tlog-tiles. A full tile has 256 hashes.
const tileHeight = 8

// checkpoint is GET /log/checkpoint (C2SP tlog-checkpoint): where there are witnesses, the newest that a quorum has cosigned.
func (s *Server) checkpoint(c *fiber.Ctx) error {
	ctx := s.deadlines.context()
	signed, err := published(ctx, s.attestor.Journal, s.opts.Witnesses)
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
	// Paths in C2SP tlog-tiles are those of package tlog without the height.
	t, err := tlog.ParseTilePath("tile/8/" + path)
	if err != nil || t.H != tileHeight || t.L < 0 {
		return noTile
	}
	ctx := s.deadlines.context()
	hashes, err := s.attestor.Journal.Tile(ctx, t)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType(fiber.MIMEOctetStream)
	c.Set(fiber.HeaderCacheControl, tileCaching(t))
	return c.Send(hashes)
}

// tileCaching returns the Cache-Control of a tile. No tile ever changes, but a partial one is of no use once the tree has
// grown.
func tileCaching(t tlog.Tile) string {
	if t.W == 1<<tileHeight {
		return "public, max-age=31536000, immutable"
	}
	return "public, max-age=60"
}
