//go:build packages || fresh || opencryptoki

package packaging

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The Debian for packages, and its packages beyond the minimum: attestd's recommendations and the tests' tools.
const (
	suite    = "bookworm"
	included = "systemd,systemd-sysv,softhsm2,ca-certificates,curl,opensc"
)

// cacheDir stores archives of Debian trees between runs, because making one takes a minute and many downloads.
func cacheDir() string {
	if dir := os.Getenv("TEST_MACHINE_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/attestd-test"
}

// machine is a separate Debian: a file tree and, while it is booted, its processes.
type machine struct {
	root    string
	console string // file with its console output
	nspawn  *exec.Cmd
	leader  int      // pid of its process 1 on this machine
	groups  []string // folders of its control groups
}

// newMachine returns a fresh Debian for packages, not booted.
func newMachine(t *testing.T) *machine {
	t.Helper()
	return newTree(t, suite, included)
}

// newTree returns a fresh Debian of a suite with additional packages, not booted.
func newTree(t *testing.T, suite, included string) *machine {
	t.Helper()
	archive := debian(t, suite, included)
	dir, err := os.MkdirTemp(cacheDir(), "machine-")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{root: filepath.Join(dir, "root"), console: filepath.Join(dir, "console")}
	m.groups = controlGroups(t, filepath.Base(dir))
	t.Cleanup(func() {
		if m.nspawn != nil {
			m.off(t)
		}
		for _, group := range m.groups {
			removeGroups(group)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(m.root, 0o755); err != nil {
		t.Fatal(err)
	}
	host(t, "tar", "--extract", "--numeric-owner", "--file="+archive, "--directory="+m.root)
	return m
}

// debian returns the archive of a tree from the cache. If it is missing, debian makes it.
func debian(t *testing.T, suite, included string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may make and boot a Debian tree")
	}
	need(t, "debootstrap")
	archive := filepath.Join(cacheDir(), suite+"-"+strings.ReplaceAll(included, ",", "-")+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	if err := os.MkdirAll(cacheDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	unfinished, err := os.MkdirTemp(cacheDir(), "debootstrap-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(unfinished)
	tree := filepath.Join(unfinished, "root")
	args := []string{"--variant=minbase", "--include=" + included, suite, tree}
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		args = append(args, mirror)
	}
	started := time.Now()
	out, err := exec.CommandContext(t.Context(), "debootstrap", args...).CombinedOutput()
	if err != nil {
		t.Skipf("debootstrap makes no %s tree here: %v\n%s", suite, err, tail(string(out), 15))
	}
	t.Logf("debootstrap took %s", time.Since(started).Round(time.Second))
	host(t, "tar", "--create", "--numeric-owner", "--exclude=./var/cache/apt/archives/*.deb", "--file="+tree+".tar",
		"--directory="+tree, ".")
	if err := os.Rename(tree+".tar", archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

// controlGroups makes control groups for systemd-nspawn below those of this process. Without them, two machines that
// run at once would share groups, and each systemd would find the other's attestd.service.
func controlGroups(t *testing.T, name string) (folders []string) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, mount := range map[string][]string{"name=systemd": {"systemd"}, "": {"unified", "."}}[fields[1]] {
			at := filepath.Join("/sys/fs/cgroup", mount, fields[2])
			if _, err := os.Stat(filepath.Join(at, "cgroup.procs")); err != nil {
				continue
			}
			group := filepath.Join(at, "attestd-"+name)
			if err := os.Mkdir(group, 0o755); err != nil {
				t.Logf("machines that run at once may disturb each other: %v", err)
				continue
			}
			folders = append(folders, group)
		}
	}
	return folders
}

// removeGroups removes a group and its descendants, which must have no processes.
func removeGroups(group string) {
	below, _ := filepath.Glob(group + "/*/cgroup.procs")
	for _, procs := range below {
		removeGroups(filepath.Dir(procs))
	}
	_ = syscall.Rmdir(group)
}

// boot starts the machine and waits until it is up.
func (m *machine) boot(t *testing.T) {
	t.Helper()
	if err := m.tryBoot(t); err != nil {
		t.Fatalf("%v\n%s", err, m.printed(t))
	}
}

// needsBoot skips a test if not even a Debian without attestd boots here, for lack of kernel namespaces or of the right
// to make them.
func needsBoot(t *testing.T) {
	t.Helper()
	need(t, "systemd-nspawn", "nsenter")
	m := newMachine(t)
	if err := m.tryBoot(t); err != nil {
		t.Skipf("systemd-nspawn boots no Debian on this machine: %v\n%s", err, m.printed(t))
	}
	m.off(t)
}

func (m *machine) tryBoot(t *testing.T) error {
	t.Helper()
	mark := rand.Text()
	if err := os.WriteFile(filepath.Join(m.root, "etc/test-machine"), []byte(mark), 0o644); err != nil {
		return err
	}
	console, err := os.OpenFile(m.console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	// The test's context ends before the machine is turned off.
	enter := `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"`
	args := append(append([]string{"-c", enter, "sh"}, m.groups...), "--", "systemd-nspawn", "--directory="+m.root,
		"--boot", "--register=no", "--keep-unit",
		"--private-network", "--console=read-only", "--quiet", "--hostname=appliance", "--link-journal=no")
	m.nspawn = exec.CommandContext(context.Background(), "sh", args...)
	m.nspawn.Stdout, m.nspawn.Stderr = console, console
	if err := m.nspawn.Start(); err != nil {
		m.nspawn = nil
		return err
	}
	ended := make(chan error, 1)
	go func(nspawn *exec.Cmd) { ended <- nspawn.Wait() }(m.nspawn)
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
		select {
		case err := <-ended:
			m.nspawn, m.leader = nil, 0
			return fmt.Errorf("systemd-nspawn: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if m.leader == 0 {
			m.leader = findLeader(mark)
			continue
		}
		// This fails until systemd listens, and then waits for the last job of the boot. "degraded" counts as up.
		out, _ := m.try(t, "systemctl is-system-running --wait")
		if s := strings.TrimSpace(out); s == "running" || s == "degraded" {
			return nil
		}
	}
	return errors.New("the system does not come up")
}

// findLeader returns the pid of process 1 of the machine with this mark, or 0.
func findLeader(mark string) int {
	processes, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range processes {
		status, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		_, after, found := bytes.Cut(status, []byte("\nNSpid:"))
		line, _, _ := bytes.Cut(after, []byte("\n"))
		ids := strings.Fields(string(line))
		if !found || len(ids) < 2 || ids[len(ids)-1] != "1" {
			continue
		}
		got, err := os.ReadFile("/proc/" + ids[0] + "/root/etc/test-machine")
		if err == nil && string(got) == mark {
			pid, _ := strconv.Atoi(ids[0])
			return pid
		}
	}
	return 0
}

// off shuts the machine down as `systemctl poweroff` does.
func (m *machine) off(t *testing.T) {
	t.Helper()
	const poweroff = syscall.Signal(34 + 4) // SIGRTMIN+4, systemd(1)
	if m.leader != 0 {
		_ = syscall.Kill(m.leader, poweroff) // it may be gone
	}
	for range 1800 {
		if syscall.Kill(m.nspawn.Process.Pid, 0) != nil {
			m.nspawn, m.leader = nil, 0
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the system does not go down\n%s", m.printed(t))
	_ = m.nspawn.Process.Kill()
	m.nspawn, m.leader = nil, 0
}

// reboot turns the machine off and on.
func (m *machine) reboot(t *testing.T) {
	t.Helper()
	m.off(t)
	m.boot(t)
}

// run runs a shell line in the machine as root and returns its output. The line must succeed.
func (m *machine) run(t *testing.T, line string) string {
	t.Helper()
	out, err := m.try(t, line)
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// try is run for a line that may fail.
func (m *machine) try(t *testing.T, line string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := m.command(ctx, line).CombinedOutput()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return string(out), err
}

// command returns a shell command in the machine, as root. If the machine is not booted, it uses chroot.
func (m *machine) command(ctx context.Context, line string) *exec.Cmd {
	args := []string{"unshare", "--mount", "sh", "-c", `mount -t proc proc "$0/proc" && exec chroot "$0" "$@"`, m.root}
	if m.leader != 0 {
		args = []string{"nsenter", "--target", strconv.Itoa(m.leader), "--all"}
	}
	args = append(args, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C",
		"DEBIAN_FRONTEND=noninteractive", "sh", "-c", line)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second // a child process may hold the output open
	return cmd
}

// put copies a file of this machine into the tree's /root, and returns its path there.
func (m *machine) put(t *testing.T, file string) string {
	t.Helper()
	host(t, "cp", file, m.root+"/root/")
	return "/root/" + filepath.Base(file)
}

// printed returns the last lines of the machine's console.
func (m *machine) printed(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(m.console)
	if err != nil {
		t.Log(err)
	}
	return tail(string(b), 40)
}

// host runs a program on this machine. It must succeed.
func host(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// tryHost runs a program on this machine that may fail.
func tryHost(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	return string(out), err
}
