package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm"
)

// signedby FILE NAME expects an attestation signed by the attestor key NAME.
func signedBy(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 2 {
		ts.Fatalf("usage: signedby FILE NAME")
	}
	var a appliance.Attestation
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &a))
	ts.Check(a.Verify())
	var status hsm.Status
	command := exec.Command("attestd", "hsm", "status", "--output", "json")
	command.Env = []string{"PATH=" + ts.Getenv("PATH"), "ATTESTD_CONFIG=" + ts.Getenv("ATTESTD_CONFIG"),
		"ATTESTD_ADMIN_SOCKET=" + ts.Getenv("ATTESTD_ADMIN_SOCKET")}
	out, err := command.Output()
	ts.Check(err)
	ts.Check(json.Unmarshal(out, &status))
	i := slices.IndexFunc(status.Keys, func(k hsm.NamedStatus) bool { return k.Name == args[1] })
	if i < 0 || *status.Keys[i].Key.Address != a.SignerAddress {
		ts.Fatalf("%s was signed by %s, not by %s of %s", args[0], a.SignerAddress, args[1], out)
	}
}

// walk N runs console block N of docs/rotation.md, with its folders in $WORK and attestd reload
// instead of systemctl. It fails if the block is missing.
func walk(ts *testscript.TestScript, negated bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: walk N")
	}
	number, err := strconv.Atoi(args[0])
	ts.Check(err)
	text, err := os.ReadFile("../../../docs/rotation.md")
	ts.Check(err)
	blocks := consoleBlock.FindAllStringSubmatch(string(text), -1)
	if number > len(blocks) {
		if !negated {
			ts.Fatalf("docs/rotation.md has %d blocks", len(blocks))
		}
		return
	}
	typed := strings.NewReplacer("/etc/attestd/", ts.MkAbs("etc")+"/", "/root/", ts.MkAbs("root")+"/",
		"systemctl reload attestd", "attestd reload",
		"key bind ID", `key bind "$(attestd key list | awk '$2 == "first" { print $1 }')"`).Replace(
		prompt.ReplaceAllString(blocks[number-1][1], ""))
	ts.Check(ts.Exec("bash", "-e", "-o", "pipefail", "-c", typed))
	if negated {
		ts.Fatalf("docs/rotation.md has more blocks than are typed")
	}
}

var (
	consoleBlock = regexp.MustCompile("(?s)```console\n(.*?)```")
	prompt       = regexp.MustCompile(`(?m)^ *# `)
)

// configureKeys sets hsm.keys. It replaces the previous setting of the token.
func configureKeys(tb testing.TB, d *daemontest.Daemon, keys ...config.AttestorKey) {
	tb.Helper()
	path := filepath.Join(d.Dir, "attestd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	var written strings.Builder
	config.WriteKeys(&written, keys)
	changed := tokenSettings.ReplaceAllLiteralString(string(text), "hsm:\n"+written.String())
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil || !strings.Contains(changed, written.String()) {
		tb.Fatalf("%s names no token: %v", path, err)
	}
}

// tokenSettings matches the token settings of a configuration that attestd dev has written.
var tokenSettings = regexp.MustCompile(`(?m)^hsm: .*\n|^hsm:\n(?:^  .*\n)+`)

// keyStatuses returns the daemon's attestor keys.
func keyStatuses(tb testing.TB, d *daemontest.Daemon) (keys []hsm.NamedStatus) {
	tb.Helper()
	var status hsm.Status
	if err := json.Unmarshal([]byte(d.Run(tb, "hsm", "status", "--output", "json")), &status); err != nil {
		tb.Fatal(err)
	}
	return status.Keys
}

// otherKey makes another key, in the token of the first or in its own, and returns its configuration.
func otherKey(tb testing.TB, d *daemontest.Daemon, first config.AttestorKey, ownToken bool) config.AttestorKey {
	tb.Helper()
	next := config.AttestorKey{Name: "next", State: attest.AttestorKeyActive}
	uri, err := hsm.ParseURI(first.URI)
	if err != nil {
		tb.Fatal(err)
	}
	uri.Object = "next"
	if ownToken {
		uri.Token = "second"
	}
	next.URI = uri.String()
	make := d.Command("hsm", "init", "--output", "json")
	make.Env = append(make.Env, "ATTESTD_CONFIG="+os.DevNull, "ATTESTD_HSM_URI="+next.URI)
	out, err := make.Output()
	var made hsm.InitResult
	if err == nil {
		err = json.Unmarshal(out, &made)
	}
	if err != nil || made.TokenCreated != ownToken {
		tb.Fatalf("%s, %v", out, err)
	}
	next.Address = made.Key.Address.String()
	return next
}

// An attestor key is replaced under load, in one token or by a key in another, without a restart. Every request is
// answered and signed by the active key, and all are in the journal.
func TestAnAttestorKeyIsChangedUnderLoadWithoutAFailedRequest(t *testing.T) {
	t.Parallel()
	for name, ownToken := range map[string]bool{"in one token": false, "into another token": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			d.Program = daemontest.Raced(t)
			source := config.Source{File: filepath.Join(d.Dir, "attestd.yaml")}
			c, err := source.Load(nil)
			if err != nil {
				t.Fatal(err)
			}
			first := config.AttestorKey{Name: "first", State: attest.AttestorKeyActive, URI: c.HSM.URI}
			next := otherKey(t, d, first, ownToken)
			d.Configure(daemontest.LongRequests)
			d.Start(t)
			defer d.Kill(t)
			first.Address = d.Address(t)
			d.AttestWhile(t, 2, func() {})
			retiring := first
			retiring.State = attest.AttestorKeyRetiring
			answered, outage := d.AttestWhile(t, 8, func() {
				for _, keys := range [][]config.AttestorKey{{first}, {first, next}, {retiring, next}, {next}} {
					configureKeys(t, d, keys...)
					d.Run(t, "reload")
					if got := keyStatuses(t, d); len(got) != len(keys) || !got[len(keys)-1].Ready {
						t.Errorf("%d keys, not %d: %+v", len(got), len(keys), got)
					}
				}
			})
			recorded, by := d.Records(t), make(map[string]int)
			for _, a := range answered {
				by[a.SignerAddress.String()]++
				if r, ok := recorded[a.ID]; !ok || r.Attestation != a || a.Verify() != nil {
					t.Errorf("attestation %s was answered but is not in the journal: %+v", a.ID, r)
				}
			}
			if by[first.Address] == 0 || len(by) > 2 || by[first.Address]+by[next.Address] != len(answered) {
				t.Errorf("signed by %v, want by %s, then by %s", by, first.Address, next.Address)
			}
			if got := d.Address(t); got != next.Address {
				t.Errorf("%s signs, not %s", got, next.Address)
			}
			t.Logf("%d attestations, by %v, the longest gap %s", len(answered), by, outage.Round(time.Millisecond))
		})
	}
}

// An additional attestor key has lost its token. The daemon starts and is ready. Requests that are bound to the key
// wait, and the key signs once its token is back. Without the default key, the daemon does not start.
func TestAKeyWhoseTokenIsAwayHoldsNobodyElseUp(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	source := config.Source{File: filepath.Join(d.Dir, "attestd.yaml")}
	c, err := source.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	first := config.AttestorKey{Name: "first", State: attest.AttestorKeyActive, URI: c.HSM.URI}
	d.Start(t)
	first.Address = d.Address(t)
	d.Kill(t)
	next := otherKey(t, d, first, false)
	configureKeys(t, d, first, next)
	token := strings.TrimSpace(d.Run(t, "key", "create", "--name", "bound", "--attestor", "next"))
	pin, away := filepath.Join(d.Dir, "pin"), filepath.Join(d.Dir, "pin2") // without its PIN, the token is away
	away2 := next
	away2.URI = strings.Replace(next.URI, pin, away, 1)
	configureKeys(t, d, first, away2)
	d.Configure(daemontest.LongRequests)
	d.Start(t)
	defer d.Kill(t)
	if out := d.Run(t, "health", "--ready"); !strings.Contains(out, first.Address) ||
		!strings.Contains(out, "key next: ") {
		t.Errorf("health says %s", out)
	}
	d.AttestWhile(t, 2, func() {})
	bound, err := client.New(d.URL, token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := bound.Attest(soon(t), daemontest.RandomRequest(), client.AttestOptions{}); err == nil {
		t.Errorf("an API key bound to next got %+v", a)
	}
	text, err := os.ReadFile(pin)
	if err == nil {
		err = os.WriteFile(away, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	daemontest.Await(t, "the key is opened", func() (bool, string) { return keyStatuses(t, d)[1].Ready, string(d.Log()) })
	if a, err := bound.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{}); err != nil ||
		a.SignerAddress.String() != next.Address {
		t.Errorf("an API key bound to next got %+v, %v", a, err)
	}
}

// soon is a short context for requests that must not succeed.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
