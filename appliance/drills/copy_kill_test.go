package drills

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// TestDrillAKilledCopyIsContinued moves a journal into a database and back. `store copy`, with and without --prepare,
// is killed at several moments, and repeated. At the end the journal is whole.
func TestDrillAKilledCopyIsContinued(t *testing.T) {
	t.Parallel()
	const records = 12_000 // a dozen imports
	d := daemontest.New(t)
	data, back := filepath.Join(d.Dir, "data"), filepath.Join(d.Dir, "back")
	size := fillJournal(t, data, records)
	server := postgrestest.NewServer(t, postgrestest.Settings{})
	server.Exec(t, postgrestest.Owner, "CREATE DATABASE "+clusterDatabase)
	daemontest.InitStore(t, server, clusterDatabase)
	// another key signed the records that fill the journal
	address := regexp.MustCompile("0x[0-9a-fA-F]{40}").FindString(d.Run(t, "hsm", "status"))
	d.Configure("PGPASSWORD="+daemontest.Password, "ATTESTD_HSM_ADDRESS="+address)
	shared := server.RoleURL(url.User(daemontest.Role), clusterDatabase)
	inTables := func() string {
		return server.Query(t, clusterDatabase, "SELECT count(*) FROM records") +
			server.Query(t, clusterDatabase, "SELECT count(*) FROM api_keys")
	}

	d.Start(t) // --prepare reads the records from the daemon
	into := []string{"--from", "bolt:" + data, "--to", shared}
	kills := killedCopies(t, d, inTables, append(into, "--prepare")...)
	d.Kill(t)
	kills += killedCopies(t, d, inTables, into...)
	size = wantWhole(t, d, size, "ATTESTD_STORE_URL="+shared)

	inFolder := func() string { return folderState(t, back) }
	outOf := []string{"--from", shared, "--to", "bolt:" + back}
	kills += killedCopies(t, d, inFolder, append(outOf, "--prepare")...)
	kills += killedCopies(t, d, inFolder, outOf...)
	wantWhole(t, d, size, "ATTESTD_STORE_URL=", "ATTESTD_DATA_DIR="+back)
	t.Logf("%d kills", kills)
	if kills < 4 {
		t.Errorf("only %d copies were killed: the others ended first", kills)
	}
}

// killedCopies runs `store copy` again and again until a run ends by itself. It kills the first run after the first
// change of the target, the second one after two changes, the third one after four. It returns the number of kills.
func killedCopies(t *testing.T, d *daemontest.Daemon, target func() string, args ...string) (kills int) {
	t.Helper()
	for changes := 1; ; changes *= 2 {
		cmd := d.Command(append([]string{"store", "copy"}, args...)...)
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		if err, byItself := killedAfter(cmd, ended, target, changes); byItself {
			if err != nil {
				t.Fatalf("after %d kills, attestd store copy %v: %v\n%s", kills, args, err, output.String())
			}
			return kills
		}
		kills++
	}
}

// killedAfter kills a command after some changes of its target, unless it ends by itself before.
func killedAfter(cmd *exec.Cmd, ended chan error, target func() string, changes int) (err error, byItself bool) {
	for last, seen := target(), 0; seen < changes; {
		select {
		case err := <-ended:
			return err, true
		case <-time.After(time.Millisecond): // between two polls
		}
		if now := target(); now != last {
			last = now
			seen++
		}
	}
	_ = cmd.Process.Kill() // fails if it has ended by itself just now
	err = <-ended
	return err, cmd.ProcessState.Exited()
}

// folderState changes with each write to a folder's files. A folder that does not exist has the empty state.
func folderState(t *testing.T, dir string) string {
	t.Helper()
	var state strings.Builder
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if stat, err := e.Info(); err == nil { // else it was removed just now
			fmt.Fprintln(&state, e.Name(), stat.Size(), stat.ModTime())
		}
	}
	return state.String()
}

// wantWhole verifies the journal of a store. It must have at least size leaves. It returns their number.
func wantWhole(t *testing.T, d *daemontest.Daemon, size int64, store ...string) (leaves int64) {
	t.Helper()
	other := *d
	other.Environ = append(append([]string(nil), d.Environ...), store...)
	signer := storetest.Record(t, "any").SignerAddress.String()
	if out := other.Run(t, "log", "verify", "--signer", signer); !strings.Contains(out, "Journal integrity: verified") {
		t.Error(out)
	}
	leaves = int64(strings.Count(other.Run(t, "log", "export"), "\n"))
	if leaves < size {
		t.Errorf("%d leaves of %d arrived", leaves, size)
	}
	return leaves
}

// fillJournal appends records to the journal of an appliance that does not run. It returns the number of leaves.
func fillJournal(tb testing.TB, dataDir string, records int) int64 {
	tb.Helper()
	key, err := archive.ReadLogKey(dataDir)
	if err != nil {
		tb.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(dataDir, archive.StoreFile),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		tb.Fatal(err)
	}
	defer store.Close()
	tree, err := archive.TreeOf(tb.Context(), store.Journal(), key.Verifier)
	if err != nil {
		tb.Fatal(err)
	}
	began, first := time.Now().UTC().Truncate(time.Microsecond), tree.N // the precision of timestamptz
	for end := tree.N + int64(records); first < end; {
		var leaves [][]byte
		for len(leaves) < 1000 && first+int64(len(leaves)) < end {
			r := storetest.Record(tb, "aaaaaaaaaaaaaaaa")
			r.Time = began.Add(time.Duration(first+int64(len(leaves))) * time.Microsecond)
			leaf, err := journal.EncodeLeaf(r)
			if err != nil {
				tb.Fatal(err)
			}
			leaves = append(leaves, leaf)
		}
		if err := store.Import(tb.Context(), first, leaves); err != nil {
			tb.Fatal(err)
		}
		first += int64(len(leaves))
	}
	return first
}
