package graphiql_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphiql"
)

// The playground in a real browser against a real listener. What it does there is told in browser_test.mjs.
func TestPlaygroundInChromium(t *testing.T) {
	need(t, "node is installed", func() error { _, err := exec.LookPath("node"); return err })
	need(t, "chromium is installed", func() error { _, err := os.Stat(chromium()); return err })
	need(t, "npm ci was run in api/graphiql", func() error { _, err := os.Stat("node_modules/playwright-core"); return err })
	need(t, "the playground is built (make playground)", func() error {
		if !graphiql.Built() {
			return os.ErrNotExist
		}
		return nil
	})

	base := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	args := []string{"browser_test.mjs", base}
	if folder := os.Getenv("ATTESTD_SCREENSHOTS"); folder != "" {
		args = append(args, folder)
	}
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium())
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("browser: %v", err)
	}
}

// need skips the test and names what is missing; where the tests' tools are promised, as in CI, it fails instead.
func need(t *testing.T, what string, have func() error) {
	t.Helper()
	err := have()
	switch {
	case err == nil:
	case os.Getenv("ATTESTD_REQUIRE_CLIENTS") != "":
		t.Fatalf("needs that %s: %v", what, err)
	default:
		t.Skipf("needs that %s: %v", what, err)
	}
}

func chromium() string {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	return "/usr/bin/chromium"
}

// serve starts the playground beside a GraphQL endpoint with data, and returns the base URL.
func serve(t *testing.T) string {
	t.Helper()
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	playground := graphiql.New(graphiql.Options{Endpoint: "/v1/graphql"})
	app.Get("/graphiql", playground)
	app.Get("/graphiql/assets/*", playground)
	app.Post("/v1/graphql", guard, endpoint(t))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener) }()
	t.Cleanup(func() {
		if err := app.ShutdownWithTimeout(5 * time.Second); err != nil {
			t.Errorf("shut down: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}
