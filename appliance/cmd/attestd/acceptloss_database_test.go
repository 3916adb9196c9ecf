package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// lostDatabase makes a data_dir, and a database that lost records which were published. lose makes the database lose
// them again. settle waits until the database has processed everything that a killed process sent.
func lostDatabase(t *testing.T, dir string) (storeURL string, old journal.LogKey, lose, settle func()) {
	t.Helper()
	old, secret, err := journal.NewLogKey("example.com/attestd")
	ok(t, err)
	write(t, filepath.Join(dir, "attestd.yaml"), nil)
	write(t, filepath.Join(dir, archive.LogKeyFile), []byte(secret+"\n"))
	d := postgrestest.NewDatabase(t)
	storeURL = daemontest.InitStore(t, d.Server, d.Database)
	store, err := postgres.Open(storeURL, postgres.Options{Signer: old.Signer, Verifier: old.Verifier})
	ok(t, err)
	appendTo := func(n int) {
		for range n {
			_, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key"))
			ok(t, err)
		}
	}
	appendTo(keptRecords)
	tables := []string{"log_head", "records", "hashes"}
	for _, table := range tables {
		d.Exec(t, "CREATE TABLE kept_"+table+" AS TABLE "+table)
	}
	appendTo(lostRecords)
	published, err := store.Journal().Checkpoint(t.Context())
	ok(t, err)
	ok(t, highwater.Write(filepath.Join(dir, highwater.FileName), published))
	ok(t, store.Close())
	lose = func() {
		for _, table := range tables {
			d.Exec(t, "DELETE FROM "+table, "INSERT INTO "+table+" SELECT * FROM kept_"+table)
		}
	}
	settle = func() {
		daemontest.Await(t, "the connections have ended", func() (bool, string) {
			left := d.Query(t,
				"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = '"+daemontest.Role+"'")
			return left == "0", left
		})
	}
	return storeURL, old, lose, settle
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A SIGKILL before any write to the database or to a file leaves either the old journal unchanged or the whole new one.
func TestDrillAcceptLossInADatabaseIsKilledAtEachStep(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("no strace: packaging/deps.sh installs it")
	}
	base := t.TempDir()
	storeURL, old, lose, settle := lostDatabase(t, base)
	// seen counts the kills before and after the database had the new journal.
	seen := make(map[bool]int)
	for call, every := range map[string]int{"write": 4, "linkat": 1, "renameat": 1, "unlinkat": 1, "fsync": 1} {
		// of some 20
		for n := 1; ; n += every {
			lose()
			dir := filepath.Join(t.TempDir(), "data")
			ok(t, os.CopyFS(dir, os.DirFS(base)))
			chmodAll(t, dir)
			cmd := acceptLoss(dir, "strace", "-f", "-qq", "-o", os.DevNull, "-e", "trace="+call, "-e",
				"inject="+call+":signal=KILL:when="+strconv.Itoa(n))
			// GOMAXPROCS: strace counts the calls of each thread.
			cmd.Env = append(cmd.Env, "GOMAXPROCS=1", "ATTESTD_STORE_URL="+storeURL)
			out, err := cmd.CombinedOutput()
			if err == nil {
				break // no call left
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok ||
				exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s %d: %v: %s", call, n, err, out)
			}
			settle()
			seen[goesOn(t, dir, storeURL, old)]++
		}
	}
	t.Logf("%d kills before the database had the new journal, %d after", seen[false], seen[true])
	if seen[false] < 3 || seen[true] < 3 {
		t.Error("those are too few")
	}
}

// goesOn checks the state after a kill, continues from it, and reports whether the database had the new journal. If it
// had, the next start puts the new key in place, and the one after that signs. Otherwise, the same command is repeated.
func goesOn(t *testing.T, dir, storeURL string, old journal.LogKey) (isNew bool) {
	t.Helper()
	log, err := postgres.LogOf(t.Context(), storeURL)
	ok(t, err)
	isNew = log != journal.LogName(old.Verifier)
	c := &config.Config{DataDir: dir}
	c.Store.URL = config.DatabaseURL(storeURL)
	if isNew {
		startOnce(t, c, old)
	} else {
		cmd := acceptLoss(dir)
		cmd.Env = append(cmd.Env, "ATTESTD_STORE_URL="+storeURL)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("the command again: %v: %s", err, out)
		}
	}
	store, err := daemon.OpenStore(c, daemon.StoreOptions{Watch: true})
	ok(t, err)
	if loss := store.Guard.Loss(); loss != nil {
		t.Error(loss)
	}
	checkStore(t, store, true)
	return isNew
}

// startOnce opens the store of a member, which puts the new log's key in place, and closes it.
func startOnce(t *testing.T, c *config.Config, old journal.LogKey) {
	t.Helper()
	key, err := archive.ReadLogKey(c.DataDir)
	ok(t, err)
	followed := make(chan error, 1)
	if journal.LogName(key.Verifier) != journal.LogName(old.Verifier) {
		followed <- nil // the command was killed after that step
	}
	store, err := daemon.OpenStore(c,
		daemon.StoreOptions{Watch: true, Continued: func(_ journal.LogKey, secret string) {
			followed <- archive.ReplaceLogKey(c.DataDir, old, secret)
		}})
	ok(t, err)
	select {
	case err := <-followed:
		ok(t, err)
	case <-time.After(daemontest.Patience):
		t.Fatal("it does not follow")
	}
	ok(t, store.Close())
}
