package graphql

import (
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v2"
)

const allowedMethods = "GET, POST, OPTIONS"

// preflightMaxAge is how long a browser may cache the answer to a preflight, in seconds.
const preflightMaxAge = "86400"

// allowOrigin lets pages read the answer (CORS protocol of the Fetch standard). Credentials are never allowed, so any origin
// is safe.
func (e *Endpoint) allowOrigin(c *fiber.Ctx) {
	h := &c.Response().Header
	if len(e.origins) == 0 {
		h.Set(fiber.HeaderAccessControlAllowOrigin, "*")
	} else {
		h.Add(fiber.HeaderVary, fiber.HeaderOrigin)
		origin := c.Get(fiber.HeaderOrigin)
		if !slices.Contains(e.origins, origin) {
			return
		}
		h.Set(fiber.HeaderAccessControlAllowOrigin, origin)
	}
	h.Set(fiber.HeaderAccessControlExposeHeaders, "Age, Retry-After")
}

// preflight answers OPTIONS.
func (e *Endpoint) preflight(c *fiber.Ctx) error {
	c.Set(fiber.HeaderAllow, allowedMethods)
	if c.Get(fiber.HeaderAccessControlRequestMethod) != "" && len(c.Response().Header.Peek(fiber.HeaderAccessControlAllowOrigin)) > 0 {
		c.Set(fiber.HeaderAccessControlAllowMethods, allowedMethods)
		c.Set(fiber.HeaderAccessControlMaxAge, preflightMaxAge)
		c.Response().Header.Add(fiber.HeaderVary, fiber.HeaderAccessControlRequestHeaders)
		if asked := c.Get(fiber.HeaderAccessControlRequestHeaders); asked != "" {
			c.Set(fiber.HeaderAccessControlAllowHeaders, asked)
		}
	}
	return c.SendStatus(http.StatusNoContent)
}
