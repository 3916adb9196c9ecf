package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/storetest"
)

const (
	keptRecords = 40 // records that a journal keeps after a loss
	lostRecords = 7
)

// lostJournal makes a data_dir whose journal lost published records, and returns the log's key.
func lostJournal(t *testing.T, dir string) journal.LogKey {
	t.Helper()
	key, secret, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, archive.LogKeyFile), []byte(secret+"\n"))
	j := filepath.Join(dir, archive.StoreFile)
	var older []byte
	for _, n := range []int{keptRecords, lostRecords} {
		store, err := bolt.Open(j, bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if _, _, err := store.Journal().Append(t.Context(), storetest.Record(t, "key")); err != nil {
				t.Fatal(err)
			}
		}
		checkpoint, err := store.Journal().Checkpoint(t.Context())
		if err == nil {
			err = highwater.Write(filepath.Join(dir, highwater.FileName), checkpoint)
		}
		if err == nil {
			err = store.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if older == nil {
			if older, err = os.ReadFile(j); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, j, older)
	return key
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// acceptLoss is the command on a data_dir. With arguments for strace, it runs under strace.
func acceptLoss(dir string, strace ...string) *exec.Cmd {
	return onFolder(dir, append(strace, "attestd", "log", "accept-loss", "--reason", "a test"))
}

// inFolder is a command of attestd on a data_dir.
func inFolder(dir string, args ...string) *exec.Cmd {
	return onFolder(dir, append([]string{"attestd"}, args...))
}

func onFolder(dir string, args []string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "ATTESTD_DATA_DIR="+dir, "ATTESTD_ADMIN_SOCKET="+filepath.Join(dir, "admin.sock"),
		"ATTESTD_CONFIG="+filepath.Join(dir, "attestd.yaml"))
	return cmd
}

// A SIGKILL before any call that changes a name or syncs leaves either the old journal unchanged or the whole new one.
// The next start and the same command continue from both.
func TestDrillAcceptLossIsKilledAtEachStep(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("no strace: packaging/deps.sh installs it")
	}
	base := t.TempDir()
	write(t, filepath.Join(base, "attestd.yaml"), nil)
	old := lostJournal(t, base)
	seen := make(map[bool]int) // kills before and after the new journal was in place
	for _, call := range []string{"linkat", "renameat", "mkdirat", "unlinkat", "fsync", "fdatasync"} {
		for n := 1; ; n++ {
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
				t.Fatal(err)
			}
			chmodAll(t, dir)
			cmd := acceptLoss(dir, "strace", "-f", "-qq", "-o", os.DevNull, "-e", "trace="+call, "-e",
				"inject="+call+":signal=KILL:when="+strconv.Itoa(n))
			cmd.Env = append(cmd.Env, "GOMAXPROCS=1") // strace counts the calls of each thread
			out, err := cmd.CombinedOutput()
			if err == nil {
				break // no call left
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok ||
				exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s %d: %v: %s", call, n, err, out)
			}
			seen[wholeOrAsBefore(t, dir, old, n%2 == 0)]++
		}
	}
	t.Logf("%d kills before the new journal was in place, %d after", seen[false], seen[true])
	if seen[false] < 3 || seen[true] < 3 {
		t.Error("those are too few")
	}
}

// wholeOrAsBefore checks the state after a kill, and repeats the command or starts from it. It reports whether the new
// journal is there.
func wholeOrAsBefore(t *testing.T, dir string, old journal.LogKey, start bool) (isNew bool) {
	t.Helper()
	log, events, err := bolt.Beginning(filepath.Join(dir, archive.StoreFile))
	if err != nil {
		t.Fatal(err)
	}
	isNew = log != journal.LogName(old.Verifier)
	if isNew != (len(events) == 1) {
		t.Fatalf("the journal is of %s, with %d events", log, len(events))
	}
	if start {
		store := openAsDaemon(t, dir)
		if lost := store.Guard.Loss() != nil; lost == isNew {
			t.Errorf("lost: %v, and the new journal is in place: %v", lost, isNew)
		}
		checkStore(t, store, isNew)
	}
	if out, err := acceptLoss(dir).CombinedOutput(); (err == nil) == isNew || isNew &&
		!bytes.Contains(out, []byte("no loss to accept")) {
		t.Errorf("the command again, with the new journal in place %v: %v: %s", isNew, err, out)
	}
	store := openAsDaemon(t, dir)
	if loss := store.Guard.Loss(); loss != nil {
		t.Error(loss)
	}
	checkStore(t, store, true)
	if left, _ := filepath.Glob(filepath.Join(dir, ".continue-*")); left != nil && !isNew {
		t.Errorf("left: %v", left)
	}
	return isNew
}

func openAsDaemon(t *testing.T, dir string) *daemon.Store {
	t.Helper()
	c := &config.Config{DataDir: dir}
	store, err := daemon.OpenStore(c, daemon.StoreOptions{Watch: true})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// checkStore audits the journal and closes the store.
func checkStore(t *testing.T, store *daemon.Store, isNew bool) {
	t.Helper()
	want := int64(keptRecords)
	if isNew {
		want++
	}
	report, err := store.Journal.Verify(t.Context(), audit.Options{})
	if err != nil || !report.OK() || report.Size != want {
		t.Errorf("%+v (%v)", report, err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

func chmodAll(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Chmod(filepath.Join(dir, e.Name()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The old log's key signs no new record, whichever old files are put back.
func TestTheOldLogKeySignsNothingAgain(t *testing.T) {
	t.Parallel()
	for name, putBack := range map[string]func(t *testing.T, dir string, old map[string][]byte){
		"nothing": func(*testing.T, string, map[string][]byte) {},
		"the old key": func(t *testing.T, dir string, old map[string][]byte) {
			write(t, filepath.Join(dir, archive.LogKeyFile), old[archive.LogKeyFile])
		},
		"the old key and journal": func(t *testing.T, dir string, old map[string][]byte) {
			write(t, filepath.Join(dir, archive.LogKeyFile), old[archive.LogKeyFile])
			write(t, filepath.Join(dir, archive.StoreFile), old[archive.StoreFile])
		},
		"all of it": func(t *testing.T, dir string, old map[string][]byte) {
			for name, content := range old {
				write(t, filepath.Join(dir, name), content)
			}
		},
		"the old key and journal, without a mark": func(t *testing.T, dir string, old map[string][]byte) {
			write(t, filepath.Join(dir, archive.LogKeyFile), old[archive.LogKeyFile])
			write(t, filepath.Join(dir, archive.StoreFile), old[archive.StoreFile])
			if err := os.Remove(filepath.Join(dir, highwater.FileName)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, filepath.Join(dir, "attestd.yaml"), nil)
			old := lostJournal(t, dir)
			before := make(map[string][]byte)
			for _, name := range []string{archive.LogKeyFile, archive.StoreFile, highwater.FileName} {
				content, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				before[name] = content
			}
			if out, err := acceptLoss(dir).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			putBack(t, dir, before)
			store, err := daemon.OpenStore(&config.Config{DataDir: dir}, daemon.StoreOptions{Watch: true})
			if err != nil {
				if !strings.Contains(err.Error(), "retired") {
					t.Errorf("refused, but for %v", err)
				}
				return
			}
			signsAs(t, store, old, name)
		})
	}
}

// signsAs checks that the old log's key does not sign appended records.
func signsAs(t *testing.T, store *daemon.Store, old journal.LogKey, name string) {
	t.Helper()
	if strings.Contains(name, "journal") || name == "all of it" {
		t.Errorf("it opens")
	}
	if _, _, err := store.Journal.Append(t.Context(), storetest.Record(t, "key")); err != nil {
		t.Error(err)
	}
	checkpoint, err := store.Journal.Checkpoint(t.Context())
	if err != nil {
		t.Error(err)
	}
	if _, err := journal.OpenCheckpoint(checkpoint, old.Verifier); err == nil {
		t.Error("the old key has signed")
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// lost SOCKET waits until the daemon has noticed that the journal lost published records.
func lost(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: lost SOCKET")
	}
	daemon := client.NewAdmin(ts.MkAbs(args[0]))
	defer daemon.Close()
	for deadline := time.Now().Add(daemontest.Patience); ; {
		status, err := daemon.Status(context.Background())
		if err == nil && strings.Contains(status.Failing["journal"], "fewer records than the published checkpoint") {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%+v, %v", status, err)
		}
		time.Sleep(10 * time.Millisecond) // between two polls
	}
}
