// Package clienttest runs programs that people use against the real GraphQL endpoint over generated data: published
// clients from npm here, a browser in package graphiql's tests. They run under Node.js, which the product never needs.
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

// Transfers is how many transfers Serve generates: enough to reach back so far that some have timed out.
const Transfers = 20_000

// Serve answers GraphQL at /v1/graphql over generated data, and whatever else routes adds, on a socket of this machine
// until the test ends. It returns the base URL. A nil routes adds nothing.
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
	err = dataset.Generate(ctx, dataset.GenerateOptions{Transfers: Transfers, Seed: 1, Now: time.Now()}, func(rows []index.Row) error {
		_, err := replica.Write(ctx, index.Batch{Rows: rows})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return replica
}

// Require skips the test and names the file or program that is missing: a path, or a program's name. Where the test's
// tools are promised, as in CI, TEST_REQUIRE_CLIENTS=1 makes that a failure.
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

// Node runs a script of the current folder and fails the test when the script does.
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

// Chromium is the browser of this machine: what CHROMIUM names, or where systems have it.
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
