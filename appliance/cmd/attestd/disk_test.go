package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/disk/disktest"
)

// onDisk moves the appliance's data to a disk that can fail.
func onDisk(t *testing.T, d *daemontest.Daemon, values ...string) *disktest.Disk {
	t.Helper()
	disk := disktest.Mount(t)
	moveData(t, d, disk.Backing)
	d.Configure(append(values, "ATTESTD_DATA_DIR="+disk.Dir)...)
	return disk
}

// moveData copies the appliance's data to another folder.
func moveData(t *testing.T, d *daemontest.Daemon, folder string) {
	t.Helper()
	for _, name := range []string{archive.StoreFile, archive.LogKeyFile} {
		text, err := os.ReadFile(filepath.Join(d.Dir, "data", name))
		if err == nil {
			err = files.Write(filepath.Join(folder, name), text, 0o600) // synced
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// attestation requests an attestation and returns it, or the code of the refusal.
func attestation(t *testing.T, d *daemontest.Daemon) (a appliance.Attestation, status int, code string) {
	t.Helper()
	resp, body := d.Ask(t, http.MethodPost, "/functions/v1/attest", d.Token,
		strings.NewReader(`{"unspendableAddress":"`+devUnspendable+`","beneficiary":"`+devBeneficiary+`"}`))
	var answer struct {
		appliance.Attestation
		Code string `json:"code"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%s %s: %v", resp.Status, body, err)
	}
	return answer.Attestation, resp.StatusCode, answer.Code
}

// reads waits until requests that need no disk are answered: an earlier attestation, and GraphQL.
func readsBack(t *testing.T, d *daemontest.Daemon, made appliance.Attestation) {
	t.Helper()
	daemontest.Await(t, "the attestation of before", func() (bool, string) {
		resp, body := d.Ask(t, http.MethodGet, "/functions/v1/attest/"+made.ID.String(), d.Token, nil)
		return resp.StatusCode == http.StatusOK, resp.Status + body
	})
	const query = `{"query":"{ v2_transfers(args: {p_limit: 3}) { sort_order } }"}`
	daemontest.Await(t, "GraphQL", func() (bool, string) {
		resp, body := d.Ask(t, http.MethodPost, daemon.GraphQLPath, "", strings.NewReader(query))
		return resp.StatusCode == http.StatusOK && !strings.Contains(body, "errors"), resp.Status + body
	})
}

// Only attesting stops, and it continues without a restart.
func TestADiskThatTakesNoWrites(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]disktest.Faults{
		"a write finds no space":             {Write: syscall.ENOSPC},
		"a write is over the quota":          {Write: syscall.EDQUOT},
		"the kernel has made it read-only":   {Write: syscall.EROFS},
		"there is less than min_free":        {Full: true},
		"each sync takes longer than a call": {SyncDelay: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			code := string(appliance.CodeJournalUnavailable)
			disk := onDisk(t, d)
			if faults.SyncDelay > 0 {
				code = string(appliance.CodeTimeout)
				d.Configure("ATTESTD_SERVER_REQUEST_TIMEOUT=500ms")
			}
			d.Start(t)
			defer d.Kill(t)
			var made appliance.Attestation
			daemontest.Await(t, "it attests while the disk is well", func() (ok bool, now string) {
				var status int
				made, status, now = attestation(t, d)
				return status == http.StatusOK, now
			})
			disk.Fail(faults)
			// The state of the disk is cached for 100 ms.
			daemontest.Await(t, "attesting is refused", func() (bool, string) {
				_, status, _ := attestation(t, d)
				return status == http.StatusServiceUnavailable, http.StatusText(status)
			})
			for range 2 {
				if _, status, got := attestation(t, d); status != http.StatusServiceUnavailable || got != code {
					t.Errorf("status %d, code %q, want 503 %s", status, got, code)
				}
				readsBack(t, d, made)
			}
			disk.Fail(disktest.Faults{})
			daemontest.Await(t, "it attests again", func() (bool, string) {
				_, status, code := attestation(t, d)
				return status == http.StatusOK, code
			})
			if d.Cmd.ProcessState != nil {
				t.Error("the daemon ended")
			}
			if out := d.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
				t.Error(out)
			}
		})
	}
}

// After a failed sync, the contents of the disk are unknown: the process exits, for the service manager to restart it.
// The disk has lost the unsynced data, while the kernel's cache still has it.
func TestADiskThatFailsToSync(t *testing.T) {
	t.Parallel()
	wal := bolt.WALPath(archive.StoreFile)
	for name, test := range map[string]struct {
		disktest.Faults
		answered bool // the next attestation is still answered: the fault is in a later step
	}{
		"of the records":            {disktest.Faults{Sync: syscall.EIO, SyncOf: wal}, false},
		"of the records, for space": {disktest.Faults{Sync: syscall.ENOSPC, SyncOf: wal}, false},
		"of all":                    {disktest.Faults{Sync: syscall.EIO}, false},
		"of the file to which they are brought from the write-ahead log": {disktest.Faults{Sync: syscall.EIO,
			SyncOf: archive.StoreFile}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			disk := onDisk(t, d)
			d.Start(t)
			c, err := client.New(d.URL, d.Token, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var answered []appliance.Attestation
			for range 5 {
				a, err := c.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{})
				if err != nil {
					t.Fatal(err)
				}
				answered = append(answered, a)
			}
			disk.Fail(test.Faults)
			unknown := 0 // recorded attestations without an answer, since the daemon may exit before sending it
			switch a, err := c.Attest(t.Context(), daemontest.RandomRequest(), client.AttestOptions{}); {
			case err == nil && test.answered:
				answered = append(answered, a)
			case err == nil:
				t.Error("what was not synced was answered")
			case test.answered:
				unknown = 1
			}
			ended := d.Cmd.Wait()
			if exit, failed := errors.AsType[*exec.ExitError](ended); !failed || exit.ExitCode() != exitFailure {
				t.Fatalf("it ended with %v, want status 1, on which systemd starts it again\n%s", ended, d.Log())
			}
			if log := string(d.Log()); !strings.Contains(log, "issued attestations are safe") {
				t.Errorf("the log:\n%s", log)
			}

			disk.Fail(disktest.Faults{})
			d.Start(t)
			defer d.Kill(t)
			attests(t, d)
			recorded(t, d, answered, unknown)
		})
	}
}

// recorded checks that the journal is whole, and has the answered attestations, one more, and at most the unknown ones.
func recorded(t *testing.T, d *daemontest.Daemon, answered []appliance.Attestation, unknown int) {
	t.Helper()
	if out := d.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
		t.Error(out)
	}
	recorded := d.Records(t)
	for _, a := range answered {
		if recorded[a.ID].Attestation != a {
			t.Errorf("%s was answered, and is lost", a.ID)
		}
	}
	if more := len(recorded) - len(answered) - 1; more < 0 || more > unknown {
		t.Errorf("%d records: the one whose sync failed is among them, though it is not on the disk", len(recorded))
	}
}

// The kernel makes a real file system in a file read-only, as after a disk fault.
func TestTheKernelMakesTheDiskReadOnly(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	image, data := filepath.Join(t.TempDir(), "image"), t.TempDir()
	mount := []string{"mount", "-o", "loop", image, data}
	for _, args := range [][]string{{"truncate", "-s", "64M", image}, {"mkfs.ext4", "-q", image}, mount} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system can be made of a file here: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { must(exec.Command("umount", data).Run()) })
	moveData(t, d, data)
	d.Configure("ATTESTD_DATA_DIR="+data, "ATTESTD_JOURNAL_MIN_FREE=1MiB")
	d.Start(t)
	made, status, code := attestation(t, d)
	if status != http.StatusOK {
		t.Fatalf("status %d, code %q\n%s", status, code, d.Log())
	}
	if out, err := exec.Command("mount", "-o", "remount,abort", data).CombinedOutput(); err != nil {
		d.Kill(t)
		t.Skipf("this kernel does not do so when asked: %v: %s", err, out)
	}
	for range 3 {
		if _, status, code := attestation(t, d); status != http.StatusServiceUnavailable ||
			code != string(appliance.CodeJournalUnavailable) {
			t.Errorf("status %d, code %q", status, code)
		}
		readsBack(t, d, made)
	}
	d.Kill(t) // remounting such a file system requires that no process has it open
	for _, args := range [][]string{{"umount", data}, mount} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	d.Start(t)
	defer d.Kill(t)
	attests(t, d)
	if out := d.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
		t.Error(out)
	}
}
