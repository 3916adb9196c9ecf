package drills

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// The follower is killed a hundred times while it reads. In the end it has the rows of the upstream, without gaps or
// repeats. If it completes early, it starts again with an empty replica.
func TestDrillASyncThatIsKilledAtAnyMomentGoesOnWhereItWas(t *testing.T) {
	const kills, transfers = 100, "20000"
	program := daemontest.Program(t)
	up := daemontest.NewUpstream(t, transfers, program)
	d := daemontest.NewReplica(t, up.URL)
	d.Program = program
	random := rand.New(rand.NewPCG(1, 2))
	records, completed := 0, 0
	complete := func() {
		t.Helper()
		var difference string
		if records, difference = daemontest.Compare(t, up, d); difference != "" {
			t.Fatal(difference)
		}
		completed++
	}
	for killed := 0; killed < kills; {
		if syncUntilKilled(t, d, 20*time.Millisecond+time.Duration(random.Int64N(int64(380*time.Millisecond)))) {
			killed++
			continue
		}
		complete()
		if err := os.Remove(d.Replica()); err != nil {
			t.Fatal(err)
		}
	}
	out := d.Run(t, "replica", "sync")
	complete()
	t.Logf("%d kills, %d times to the end with %d records; at last: %s", kills, completed, records, out)
}

// syncUntilKilled returns false if the sync completed before the kill.
func syncUntilKilled(t *testing.T, d *daemontest.Daemon, after time.Duration) (killed bool) {
	t.Helper()
	cmd := d.Command("replica", "sync")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if err != nil && cmd.ProcessState.ExitCode() >= 0 {
		t.Fatalf("it ended by itself: %v\n%s", err, stderr.String())
	}
	return err != nil
}
