package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// twoTokens configures the appliance's token twice: first through another module, then through SoftHSM itself.
func (d *daemonProcess) twoTokens(tb testing.TB, first string) {
	tb.Helper()
	module, err := softhsm.Module()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(d.dir, "attestd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	before, after, _ := strings.Cut(string(text), `uri: "`)
	uri, after, found := strings.Cut(after, `"`)
	changed := fmt.Sprintf("%suris: [%q, %q]%s", before, strings.Replace(uri, module, first, 1), uri, after)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil || !found || !strings.Contains(changed, first) {
		tb.Fatalf("%s does not name %s: %v", path, module, err)
	}
}

// tokens asks the daemon for the states of its tokens.
func (d *daemonProcess) tokens(tb testing.TB) []hsm.Standing {
	tb.Helper()
	var status hsm.Status
	if err := json.Unmarshal([]byte(d.run(tb, "hsm", "status", "--output", "json")), &status); err != nil ||
		len(status.Tokens) != 2 {
		tb.Fatalf("%+v, %v", status, err)
	}
	return status.Tokens
}

// awaitToken waits until a token has a state, such as hsm.TokenSigns.
func (d *daemonProcess) awaitToken(tb testing.TB, position int, state string) {
	tb.Helper()
	await(tb, fmt.Sprintf("token %d: %s", position, state), func() (bool, string) {
		return d.tokens(tb)[position-1].State == state, string(d.events())
	})
}

// tokens SOCKET STATE… waits until the daemon's tokens have these states, in their order.
func tokenStates(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 3 {
		ts.Fatalf("usage: tokens SOCKET STATE STATE...")
	}
	daemon := client.NewAdmin(ts.MkAbs(args[0]))
	defer daemon.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // between two polls
		var status hsm.Status
		ts.Check(daemon.HSMStatus(context.Background(), &status))
		var states []string
		for _, token := range status.Tokens {
			states = append(states, token.State)
		}
		if slices.Equal(states, args[1:]) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the tokens are %q", states)
		}
	}
}

// awaitEvent waits until the journal has an event of kind.
func (d *daemonProcess) awaitEvent(tb testing.TB, kind string) {
	tb.Helper()
	await(tb, "the journal has "+kind, func() (bool, string) {
		return strings.Contains(d.run(tb, "log", "list", "--events"), " "+kind+" "), string(d.events())
	})
}

// The first of two tokens is killed, hangs or is cut off, and returns. Every request is answered. The journal has all
// answers, and events of the token's loss and return.
func TestDrillTheSecondTokenAttestsWhileTheFirstFails(t *testing.T) {
	t.Parallel()
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"killed", "hanging", "cut off"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemonFolder(t)
			d.configure(longRequests)
			var end, mend func()
			if name == "cut off" {
				server := hsmtest.NewServer(t, module, softhsm.ConfVariable+"="+filepath.Join(d.dir, softhsm.ConfName))
				d.environ = append(d.environ, server.Env...)
				d.twoTokens(t, server.Module)
				end, mend = server.Kill, server.Start
			} else {
				faults := hsmtest.NewFaults(t, module)
				d.workerUses(faults.Module)
				d.twoTokens(t, faults.Module)
				end, mend = func() { faults.Set("C_Sign", hsmtest.Fault{Hang: true}) }, faults.Clear
			}
			secondSigns := func() { d.awaitToken(t, 2, hsm.TokenSigns) }
			if name == "killed" {
				end, secondSigns = func() {}, func() { // a new worker takes under 0.2 s, so kill repeatedly
					await(t, "token 2: "+hsm.TokenSigns, func() (bool, string) {
						all := d.tokens(t)
						if worker := all[0].Worker; all[1].State != hsm.TokenSigns && worker > 0 {
							_ = syscall.Kill(worker, syscall.SIGKILL) // fails if it has exited already
						}
						return all[1].State == hsm.TokenSigns, string(d.events())
					})
				}
			}
			d.start(t)
			defer d.kill(t)
			answered, outage := attestWhile(t, d, 8, func() {
				d.awaitToken(t, 1, hsm.TokenSigns)
				d.awaitToken(t, 2, hsm.TokenReady)
				end()
				secondSigns()
				mend()
				d.awaitToken(t, 1, hsm.TokenSigns)
			})
			d.awaitEvent(t, "hsm_lost")
			d.awaitEvent(t, "hsm_found")
			recorded := exported(t, d)
			for _, a := range answered {
				if r, ok := recorded[a.ID]; !ok || r.Attestation != a {
					t.Errorf("attestation %s was answered but is not in the journal: %+v", a.ID, r)
				}
			}
			// Requests go to the second token after an eighth of the timeout of a call.
			if outage > longestGap {
				t.Errorf("nothing was attested for %s\n%s", outage, d.events())
			}
			t.Logf("%d attestations answered, the longest gap %s", len(answered), outage.Round(time.Millisecond))
		})
	}
}
