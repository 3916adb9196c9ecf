package drills

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
)

// The daemon is killed many times while clients attest. Every answered attestation must be in the journal.
func TestDrillEveryAnsweredAttestationSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	const rounds, clients = 20, 16
	d := daemontest.New(t)
	answered := make(map[uuid.UUID]appliance.Attestation)
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		d.Start(t)
		for _, a := range attestUntilKilled(t, d, clients, 1+random.IntN(300)) {
			answered[a.ID] = a
		}
		// The daemon may have been killed during a commit. The next start must find a whole journal.
		if out := d.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
			t.Fatal(out)
		}
	}
	recorded, leaves := d.Records(t), strings.Count(d.Run(t, "log", "export"), "\n") // with the write-ahead log
	out, held := d.Run(t, "backup", filepath.Join(t.TempDir(), "killed.tar.zst")), 0
	count := strings.ReplaceAll(out[strings.Index(out, ": "):], ",", "") // thousands are grouped
	if _, err := fmt.Sscanf(count, ": %d records", &held); err != nil || held < leaves {
		t.Errorf("of %d leaves, a backup has: %s (%v)", leaves, out, err)
	}
	for id, a := range answered {
		if r, ok := recorded[id]; !ok || r.Attestation != a {
			t.Errorf("attestation %s was answered but is not in the journal: %+v", id, r)
		}
	}
	t.Logf("%d kills, %d attestations answered, %d recorded", rounds, len(answered), len(recorded))
	if len(answered) < rounds {
		t.Errorf("only %d attestations were answered: the test did not load the server", len(answered))
	}
}

// attestUntilKilled attests from several clients, and kills the daemon after killAfter answers. It returns all answers.
func attestUntilKilled(t *testing.T, d *daemontest.Daemon, clients, killAfter int) (answered []appliance.Attestation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	answers := make(chan appliance.Attestation)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := client.New(d.URL, d.Token, client.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for i := 0; ctx.Err() == nil; i++ {
				a, err := c.Attest(ctx, daemontest.RandomRequest(), client.AttestOptions{})
				if err != nil {
					return // the daemon was killed
				}
				answers <- a
			}
		})
	}
	go func() { wg.Wait(); close(answers) }()
	for a := range answers {
		answered = append(answered, a)
		if len(answered) == killAfter {
			d.Kill(t)
			cancel()
		}
	}
	if len(answered) < killAfter {
		t.Fatalf("only %d of %d attestations before the daemon ended\n%s", len(answered), killAfter, d.Log())
	}
	return answered
}
