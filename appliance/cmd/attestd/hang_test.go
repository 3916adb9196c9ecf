package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/disk/disktest"
)

// If the configuration has become a FIFO, its open never returns. The daemon still attests, and SIGTERM ends it.
func TestAReloadThatHangsDelaysNeitherAttestingNorTheEnd(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	d.Start(t)
	path := filepath.Join(d.Dir, "attestd.yaml")
	rename(t, path)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(t, syscall.SIGHUP)
	daemontest.Await(t, "the reload waits for the FIFO", func() (bool, string) {
		// A non-blocking open to write succeeds once another process opens the FIFO to read.
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return false, err.Error()
		}
		t.Cleanup(func() { f.Close() }) // the reload reads, and does not end
		return true, ""
	})
	if _, status, code := attestation(t, d); status != http.StatusOK {
		t.Errorf("status %d, %s", status, code)
	}
	d.Signal(t, syscall.SIGTERM)
	if err := d.Cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, d.Log())
	}
}

// A start does not wait for a policy that is a FIFO, but reports it.
func TestAPolicyThatIsNoFileIsRefused(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	path := filepath.Join(d.Dir, "policy")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Configure("ATTESTD_ATTESTATION_POLICY=" + path)
	out, err := d.Command("serve").CombinedOutput()
	if err == nil || !strings.Contains(string(out), path+" is p---------; set it to a regular file") {
		t.Errorf("%v: %s", err, out)
	}
}

// A disk whose syncs do not return is a failed check of doctor, which ends.
func TestDrillDoctorEndsOnADiskThatHangs(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	disk := onDisk(t, d)
	disk.Fail(disktest.Faults{SyncDelay: 10 * time.Minute})
	out, err := d.Command("doctor").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "hangs: no result of a write and its sync after") {
		t.Errorf("%v:\n%s", err, out)
	}
}
