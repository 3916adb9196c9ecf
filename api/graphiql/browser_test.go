package graphiql_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphiql"
	"github.com/attestd/attestd/api/graphql/clienttest"
	"github.com/attestd/attestd/api/landing"
)

// TestPlaygroundInChromium runs the playground in a real browser, with the real endpoint over generated data.
// browser_test.mjs holds the checks. TEST_SCREENSHOTS names a folder for screenshots.
func TestPlaygroundInChromium(t *testing.T) {
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, clienttest.Chromium(), "install chromium (make deps)")
	clienttest.Require(t, "./node_modules/playwright-core", "run npm ci in api/graphiql (make playground)")
	clienttest.Require(t, "./dist/index.html", "build the playground (make playground)")
	if !graphiql.Built() {
		t.Fatal("dist/index.html exists, and is not embedded")
	}
	t.Setenv("CHROMIUM", clienttest.Chromium())

	args := []string{clienttest.Serve(t, func(app *fiber.App) {
		playground := graphiql.New(graphiql.Options{Endpoint: "/v1/graphql"})
		app.Get("/graphiql", playground)
		app.Get("/graphiql/assets/*", playground)
		app.Post("/v1/graphql", guard)
		app.Get("/favicon.svg", func(c *fiber.Ctx) error { return c.Type("svg").Send(landing.Favicon) })
	})}
	if folder := os.Getenv("TEST_SCREENSHOTS"); folder != "" {
		args = append(args, folder)
	}
	clienttest.Node(t, "browser_test.mjs", args...)
}

// guard requires a key for the one query that the browser sends with it.
func guard(c *fiber.Ctx) error {
	if bytes.Contains(c.Request().Body(), []byte("query Secret")) && c.Get("x-api-key") != "opensesame" {
		return c.Status(fiber.StatusUnauthorized).JSON(fiber.Map{"errors": []fiber.Map{{"message": "no key"}}})
	}
	return c.Next()
}
