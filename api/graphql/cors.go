package graphql

import (
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v2"
)

const allowedMethods = "GET, POST, OPTIONS"

// preflightMaxAge is how long a browser may remember a preflight's answer, in seconds.
const preflightMaxAge = "86400"

// allowOrigin lets pages read the answer (the Fetch standard's CORS protocol). No credentials are allowed, so any
// origin may be.
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

// preflight answers OPTIONS: what methods there are, and what a page may send.
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
