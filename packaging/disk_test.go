//go:build packages

package packaging

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// disk is a small disk for a machine: a file system in a file on a tmpfs. If the tmpfs is full, writes to the disk fail
// at fsync, as on a broken disk.
type disk struct {
	memory  string // mount point of the tmpfs on this machine
	device  string // /dev/loopN
	missing string // why no loop device is available, as in some containers; empty if one is
}

// newDisk makes a disk with an empty file system.
func newDisk(t *testing.T) *disk {
	t.Helper()
	need(t, "losetup", "mkfs.ext4", "fallocate")
	memory, err := os.MkdirTemp("", "attestd-disk-")
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{memory: memory}
	t.Cleanup(func() { d.throwAway(t) })
	host(t, "mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", memory)
	host(t, "truncate", "-s", "160M", d.image())
	host(t, "mkfs.ext4", "-q", "-E", "lazy_itable_init=0", d.image())
	device, err := tryHost(t, "losetup", "--find", "--show", d.image())
	if err != nil {
		d.missing = "no disk can be made of a file here: " + device
		return d
	}
	d.device = strings.TrimSpace(device)
	return d
}

func (d *disk) image() string { return filepath.Join(d.memory, "image") }

func (d *disk) throwAway(t *testing.T) {
	if d.device != "" {
		// The test's context has ended.
		if out, err := exec.CommandContext(context.Background(), "losetup", "--detach",
			d.device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v\n%s", d.device, err, out)
		}
	}
	_ = syscall.Unmount(d.memory, syscall.MNT_DETACH) // it may not have been mounted
	if err := os.Remove(d.memory); err != nil {
		t.Error(err)
	}
}

// mount mounts the empty disk in a running machine.
func (d *disk) mount(t *testing.T, m *machine, at string) {
	t.Helper()
	node := "/dev/" + filepath.Base(d.device)
	m.run(t, "[ -e "+node+" ] || mknod "+node+" b 7 "+strings.TrimPrefix(node, "/dev/loop"))
	m.run(t, "mount "+node+" "+at+" && rmdir "+at+"/lost+found")
}

// fail makes every write to the disk fail from now on. It discards the disk's content and fills the tmpfs.
func (d *disk) fail(t *testing.T) {
	t.Helper()
	host(t, "sync")
	host(t, "fallocate", "--punch-hole", "--offset", "0", "--length", "160M", d.image())
	out, err := tryHost(t, "dd", "if=/dev/zero", "of="+filepath.Join(d.memory, "filler"), "bs=64k")
	if err == nil {
		t.Fatalf("%s does not fill up: %s", d.memory, out)
	}
}
