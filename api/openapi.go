package api

import (
	_ "embed"

	"github.com/gofiber/fiber/v2"
)

//go:embed openapi.yaml
var openAPI []byte

func (s *Server) openAPI(c *fiber.Ctx) error {
	c.Context().Response.Header.SetContentType("application/yaml") // RFC 9512
	c.Set(fiber.HeaderCacheControl, "no-cache")
	return c.Send(openAPI)
}
