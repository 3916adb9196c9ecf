package api

import (
	"bytes"
	_ "embed"
	"sync"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/coding"
)

//go:embed openapi.yaml
var openAPI []byte

// codedOpenAPI holds the OpenAPI description in each content coding. It encodes them once, at the first request.
var codedOpenAPI = sync.OnceValue(func() map[coding.Coding][]byte {
	coded := make(map[coding.Coding][]byte)
	var encoders coding.Encoders
	for _, c := range []coding.Coding{coding.Zstd, coding.Gzip, coding.Brotli} {
		var small bytes.Buffer
		if encoders.Encode(&small, c, [][]byte{openAPI}) == nil {
			coded[c] = small.Bytes()
		}
	}
	return coded
})

func (s *Server) openAPI(c *fiber.Ctx) error {
	c.Context().Response.Header.SetContentType("application/yaml") // RFC 9512
	c.Set(fiber.HeaderCacheControl, "no-cache")
	c.Vary(fiber.HeaderAcceptEncoding)
	chosen, _ := coding.Choose(c.Get(fiber.HeaderAcceptEncoding))
	if coded, ok := codedOpenAPI()[chosen]; ok {
		c.Set(fiber.HeaderContentEncoding, string(chosen))
		return c.Send(coded)
	}
	return c.Send(openAPI)
}
