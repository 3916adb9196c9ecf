// Package clienttest runs real client programs against the real GraphQL endpoint over generated data: published npm
// clients here, and a browser in package graphiql's tests. They run under Node.js, which the product itself never
// needs.
package clienttest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/graphqltest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// Transfers is the number of transfers that Serve generates, enough that some old ones have timed out.
const Transfers = 20_000

// Serve serves GraphQL at /v1/graphql over generated data, on a local socket, until the test ends. routes may add more
// routes, and may be nil. Serve returns the base URL.
func Serve(t testing.TB, routes func(*fiber.App)) string {
	t.Helper()
	endpoint := graphqltest.New(t, graphql.Options{Index: generate(t)})
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true, BodyLimit: 64 << 10})
	if routes != nil {
		routes(app)
	}
	app.All("/v1/graphql", endpoint.Handle)

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

func generate(t testing.TB) *replica.Store {
	t.Helper()
	replica, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Close(); err != nil {
			t.Errorf("close the replica: %v", err)
		}
	})
	ctx := t.Context()
	err = dataset.Generate(ctx, dataset.GenerateOptions{Transfers: Transfers, Seed: 1, Now: time.Now()},
		func(rows []index.Row) error {
			_, err := replica.Write(ctx, index.Batch{Rows: rows})
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	return replica
}

// Require skips the test if a file or a program is missing, and names it. With TEST_REQUIRE_CLIENTS=1, as in CI, the
// test fails instead.
func Require(t testing.TB, file, remedy string) {
	t.Helper()
	var err error
	if filepath.Base(file) == file {
		_, err = exec.LookPath(file)
	} else {
		_, err = os.Stat(file)
	}
	switch {
	case err == nil:
	case os.Getenv("TEST_REQUIRE_CLIENTS") == "1":
		t.Fatalf("needs %s: %s: %v", file, remedy, err)
	default:
		t.Skipf("needs %s: %s", file, remedy)
	}
}

// Node runs a script of the current directory, and fails the test if the script fails.
func Node(t testing.TB, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script}, args...)...)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
}

// Chromium returns the path of the browser: $CHROMIUM, or its usual location.
func Chromium() string {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	for _, path := range []string{"/usr/bin/chromium", "/usr/bin/chromium-browser"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return "/usr/bin/chromium"
}
