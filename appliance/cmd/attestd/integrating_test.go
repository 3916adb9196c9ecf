package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/graphql/clienttest"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// nodeTypes declares what the programs use of Node.js.
const nodeTypes = `declare const process: { argv: string[]; env: Record<string, string | undefined> }
type Buffer = Uint8Array
declare module "node:fs" {
  function existsSync(path: string): boolean
  function readFileSync(path: string, encoding: "utf8"): string
  function renameSync(from: string, to: string): void
  function writeFileSync(path: string, text: string): void
}
declare module "node:http" {
  type Request = { headers: Record<string, string | string[] | undefined>; setEncoding(encoding: "utf8"): AsyncIterable<string> }
  type Response = { writeHead(status: number): Response; end(text?: string): void }
  function createServer(on: (request: Request, response: Response) => void): { listen(port: number, host: string): void }
}
`

// examples are the languages of the programs in docs/integrating.md and docs/events.md. Each function turns a program in a folder into a
// command.
var examples = map[string]func(t *testing.T, folder, source string) (command []string){
	"ts": func(t *testing.T, folder, source string) []string {
		compiler, err := filepath.Abs("../../../api/graphql/clienttest/node_modules/typescript/bin/tsc")
		if err != nil {
			t.Fatal(err)
		}
		clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
		clienttest.Require(t, compiler, "make clients")
		written(t, folder, "node.d.ts", nodeTypes)
		file := written(t, folder, "example.mts", source)
		built(t, "node", compiler, "--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution",
			"bundler", "--lib", "es2022,dom",
			"--moduleDetection", "force", file, filepath.Join(folder, "node.d.ts"))
		return []string{"node", filepath.Join(folder, "example.mjs")}
	},
	"python": func(t *testing.T, folder, source string) []string {
		clienttest.Require(t, "python3", "install Python (make test-deps)")
		return []string{"python3", written(t, folder, "example.py", source)}
	},
	"go": func(t *testing.T, folder, source string) []string {
		program := filepath.Join(folder, "example")
		build := []string{"build", "-o", program}
		if info, ok := debug.ReadBuildInfo(); ok &&
			slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
			build = append(build, "-race") // like this test, so that its packages are compiled already
		}
		built(t, "go", append(build, written(t, folder, "example.go", source))...)
		return []string{program}
	},
}

func written(t *testing.T, folder, name, text string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func built(t *testing.T, program string, arguments ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// exampleIn returns the only block in a language of a document, after a heading.
func exampleIn(t *testing.T, document, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/" + document)
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n"+heading+"\n")
	blocks := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(after, -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/%s has %d blocks of %s after %s, want one", document, len(blocks), language, heading)
	}
	return blocks[0][1]
}

// front is a proxy in front of a daemon. It answers the first attestation requests itself.
type front struct {
	first []http.HandlerFunc

	lock sync.Mutex
	keys []string // the idempotency key of each request
}

func (f *front) serve(t *testing.T, daemon string) (address string) {
	t.Helper()
	behind, err := url.Parse(daemon)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/functions/v1/attest" {
			if answer := f.next(r.Header.Get("Idempotency-Key")); answer != nil {
				answer(w, r)
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// next records a request, and returns the handler that answers it: nil for the daemon.
func (f *front) next(key string) http.HandlerFunc {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.keys = append(f.keys, key)
	if len(f.keys) > len(f.first) {
		return nil
	}
	return f.first[len(f.keys)-1]
}

func breaks(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func refuses(status int, code, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "code": code})
	}
}

// The addresses and the id for the examples, and another attestor's key, whose secret is 1.
const (
	unspendableExample = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	beneficiaryExample = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
	otherAddress       = "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf"
	otherPublicKey     = "0x0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
)

// The examples of docs/integrating.md work unchanged: they retry failures with one idempotency key, give up at their
// deadline, and refuse another attestor's signature.
func TestIntegratorsExamplesWork(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Run(t, "replica", "generate", "--transfers", "10")
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	attestor := attestorOf(t, d)
	trusted := []string{"ATTESTOR_PUBLIC_KEY=" + attestor.PublicKey,
		"ATTESTOR_ADDRESS=" + attestor.SignerAddress.String()}
	for language, prepare := range examples {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			command := prepare(t, t.TempDir(), exampleIn(t, "integrating.md", "## The examples", language))
			for _, c := range []struct {
				name     string
				first    []http.HandlerFunc
				apiKey   string
				trusts   []string
				fails    string // expected error; empty if it succeeds
				requests int
			}{
				{"it gets through failures", []http.HandlerFunc{breaks, refuses(429, "rate_limited", "1"),
					refuses(503, "overloaded", "1")}, d.Token, trusted, "", 4},
				{"it waits no longer than its deadline", []http.HandlerFunc{refuses(503, "overloaded", "86400")},
					d.Token, trusted, "overloaded", 1},
				{"it repeats nothing that is refused", nil, "ak_none", trusted, "invalid_api_key", 1},
				{
					"it trusts no other attestor", nil, d.Token,
					[]string{"ATTESTOR_PUBLIC_KEY=" + otherPublicKey, "ATTESTOR_ADDRESS=" + otherAddress},
					"do not use it", 1,
				},
			} {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					f, id := &front{first: c.first}, strings.ReplaceAll(language+" "+c.name, " ", "-")
					environ := append([]string{"ATTESTD_URL=" + f.serve(t, d.URL), "ATTESTD_API_KEY=" + c.apiKey},
						c.trusts...)
					out, complaint, err := integrate(t, command, id, environ)
					if (err != nil) != (c.fails != "") || !strings.Contains(complaint, c.fails) {
						t.Fatalf("%v: %s", err, complaint)
					}
					if len(f.keys) != c.requests || len(slices.Compact(slices.Clone(f.keys))) != 1 || f.keys[0] != id {
						t.Errorf("it asked with the idempotency keys %q, want %d times the same", f.keys, c.requests)
					}
					if c.fails == "" {
						checkIntegrated(t, out, attestor.SignerAddress)
					}
				})
			}
		})
	}
}

// integrate runs an example, and returns its standard output and its error message.
func integrate(t *testing.T, command []string, id string, environ []string) (out []byte, complaint string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0],
		append(command[1:len(command):len(command)], unspendableExample, beneficiaryExample, id)...)
	cmd.Env = append(os.Environ(), environ...)
	cmd.WaitDelay = 5 * time.Second
	out, err = cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		complaint = string(exit.Stderr)
	}
	return out, complaint, err
}

// checkIntegrated expects a good attestation and a transfer, one line each.
func checkIntegrated(t *testing.T, out []byte, signer appliance.Address) {
	t.Helper()
	first, second, _ := strings.Cut(string(out), "\n")
	var a appliance.Attestation
	if err := json.Unmarshal([]byte(first), &a); err != nil || a.Verify() != nil || a.SignerAddress != signer {
		t.Errorf("it printed %s, %v", first, err)
	}
	var transfers []struct {
		SortOrder string `json:"sort_order"`
	}
	if err := json.Unmarshal([]byte(second), &transfers); err != nil || len(transfers) != 1 ||
		transfers[0].SortOrder == "" {
		t.Errorf("it printed the transfers %s, %v", second, err)
	}
}

func attestorOf(t *testing.T, d *daemontest.Daemon) wire.Attestor {
	t.Helper()
	c, err := client.New(d.URL, "", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	attestor, err := c.Attestor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return attestor
}

// api/client/example_test.go is the Go program of docs/integrating.md.
func TestTheClientsExampleIsThatOfTheDocument(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../../../api/client/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("package main\n", "package client_test\n", "func main() {",
		"func Example() {").Replace(exampleIn(t, "integrating.md", "## The examples", "go"))
	if string(example) != want {
		t.Errorf("api/client/example_test.go is not the block of docs/integrating.md, but for package and main")
	}
}
