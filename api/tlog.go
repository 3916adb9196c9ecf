package api

import (
	"strings"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
)

// tileHeight is the height of tiles in C2SP tlog-tiles. A full tile has 256 hashes.
const tileHeight = 8

// The log is served under two prefixes (C2SP tlog-tiles). /log serves the current log. Its tiles change when the
// journal continues as another log, so caches must revalidate them. /log/{hash of the log's key} serves one log for
// good: its full tiles never change, and it never serves another log's tiles.

// checkpoint is GET /log/checkpoint and /log/{key}/checkpoint (C2SP tlog-checkpoint). With witnesses, it serves the
// newest checkpoint that a quorum has cosigned.
func (s *Server) checkpoint(c *fiber.Ctx) error {
	ctx := s.deadlines.context()
	signed, err := published(ctx, s.attestor.Journal, s.opts.Witnesses)
	if err != nil {
		return err
	}
	if key := c.Params("key"); key != "" && !s.isLog(key, signed) {
		return noSuchLog(key)
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	c.Set(fiber.HeaderCacheControl, "no-cache")
	return c.Send(signed)
}

// tile is GET /log/tile/{L}/{N}[.p/{W}], and the same under /log/{key} (C2SP tlog-tiles). It serves no entry bundles,
// because entries are secret.
func (s *Server) tile(c *fiber.Ctx) error {
	noTile := appliance.Errorf(appliance.CodeNotFound, "tile not found")
	path, key := c.Params("*"), c.Params("key")
	if strings.HasPrefix(path, "entries/") || strings.HasPrefix(path, "data/") {
		return noTile
	}
	// Paths in C2SP tlog-tiles are the paths of package tlog without the height.
	t, err := tlog.ParseTilePath("tile/8/" + path)
	if err != nil || t.H != tileHeight || t.L < 0 {
		return noTile
	}
	ctx := s.deadlines.context()
	hashes, err := s.attestor.Journal.Tile(ctx, t)
	if err != nil {
		return err
	}
	caching := "no-cache"
	if key != "" {
		// The checkpoint is read after the tile, because another appliance of a shared journal may continue it as
		// another log at any moment.
		signed, err := s.attestor.Journal.Checkpoint(ctx)
		if err != nil {
			return err
		}
		if !s.isLog(key, signed) {
			return noSuchLog(key)
		}
		caching = tileCaching(t)
	}
	c.Context().Response.Header.SetContentType(fiber.MIMEOctetStream)
	c.Set(fiber.HeaderCacheControl, caching)
	return c.Send(hashes)
}

// isLog reports whether key is the hash of this log's key, and this log has signed the checkpoint.
func (s *Server) isLog(key string, signed []byte) bool {
	return key == s.logHash && journal.SignerOf(signed) == s.origin+"+"+s.logHash
}

func noSuchLog(key string) error {
	return appliance.Errorf(appliance.CodeNotFound, "the log with key hash %q is not served. The current log is at "+
		"/log/checkpoint", key)
}

// tileCaching returns the Cache-Control header of one log's tile. A partial tile becomes useless once the tree has
// grown.
func tileCaching(t tlog.Tile) string {
	if t.W == 1<<tileHeight {
		return "public, max-age=31536000, immutable"
	}
	return "public, max-age=60"
}
