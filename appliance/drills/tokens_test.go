package drills

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// twoTokens configures the appliance's token twice: first through another module, then through SoftHSM itself.
func twoTokens(tb testing.TB, d *daemontest.Daemon, first string) {
	tb.Helper()
	module, err := softhsm.Module()
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(d.Dir, "attestd.yaml")
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
func tokens(tb testing.TB, d *daemontest.Daemon) []hsm.Standing {
	tb.Helper()
	var status hsm.Status
	if err := json.Unmarshal([]byte(d.Run(tb, "hsm", "status", "--output", "json")), &status); err != nil ||
		len(status.Tokens) != 2 {
		tb.Fatalf("%+v, %v", status, err)
	}
	return status.Tokens
}

// awaitToken waits until a token has a state, such as hsm.TokenSigns.
func awaitToken(tb testing.TB, d *daemontest.Daemon, position int, state string) {
	tb.Helper()
	daemontest.Await(tb, fmt.Sprintf("token %d: %s", position, state), func() (bool, string) {
		return tokens(tb, d)[position-1].State == state, string(d.Events())
	})
}

// awaitEvent waits until the journal has an event of kind.
func awaitEvent(tb testing.TB, d *daemontest.Daemon, kind string) {
	tb.Helper()
	daemontest.Await(tb, "the journal has "+kind, func() (bool, string) {
		return strings.Contains(d.Run(tb, "log", "list", "--events"), " "+kind+" "), string(d.Events())
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
			d := daemontest.New(t)
			d.Configure(daemontest.LongRequests)
			var end, mend func()
			if name == "cut off" {
				server := hsmtest.NewServer(t, module, softhsm.ConfVariable+"="+filepath.Join(d.Dir, softhsm.ConfName))
				d.Environ = append(d.Environ, server.Env...)
				twoTokens(t, d, server.Module)
				end, mend = server.Kill, server.Start
			} else {
				faults := hsmtest.NewFaults(t, module)
				d.WorkerUses(faults.Module)
				twoTokens(t, d, faults.Module)
				end, mend = func() { faults.Set("C_Sign", hsmtest.Fault{Hang: true}) }, faults.Clear
			}
			secondSigns := func() { awaitToken(t, d, 2, hsm.TokenSigns) }
			if name == "killed" {
				end, secondSigns = func() {}, func() { // a new worker takes under 0.2 s, so kill repeatedly
					daemontest.Await(t, "token 2: "+hsm.TokenSigns, func() (bool, string) {
						all := tokens(t, d)
						if worker := all[0].Worker; all[1].State != hsm.TokenSigns && worker > 0 {
							_ = syscall.Kill(worker, syscall.SIGKILL) // fails if it has exited already
						}
						return all[1].State == hsm.TokenSigns, string(d.Events())
					})
				}
			}
			d.Start(t)
			defer d.Kill(t)
			answered, outage := d.AttestWhile(t, 8, func() {
				awaitToken(t, d, 1, hsm.TokenSigns)
				awaitToken(t, d, 2, hsm.TokenReady)
				end()
				secondSigns()
				mend()
				awaitToken(t, d, 1, hsm.TokenSigns)
			})
			awaitEvent(t, d, "hsm_lost")
			awaitEvent(t, d, "hsm_found")
			recorded := d.Records(t)
			for _, a := range answered {
				if r, ok := recorded[a.ID]; !ok || r.Attestation != a {
					t.Errorf("attestation %s was answered but is not in the journal: %+v", a.ID, r)
				}
			}
			// Requests go to the second token after an eighth of the timeout of a call.
			if outage > longestGap {
				t.Errorf("nothing was attested for %s\n%s", outage, d.Events())
			}
			t.Logf("%d attestations answered, the longest gap %s", len(answered), outage.Round(time.Millisecond))
		})
	}
}
