package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
)

// The service's user may put any file into its folders. Root's commands there must do no more than that user could.
// They neither write through a link, nor chown or show its target.
func TestRootFollowsNoLinkThatTheServicesUserPlanted(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("these are root's commands")
	}
	for name, test := range map[string]struct {
		links    []string // in data_dir, each to a missing file
		stolen   []string // in data_dir, each to root's secret
		commands [][]string
		work     bool // the commands succeed, and their files are the user's
	}{
		"nothing": {commands: [][]string{{"key", "create", "--name", "a"}, {"backup", "BACKUPS"},
			{"log", "export", "--file", "DATA/export"}, {"restore", "--force", "--discard-newer", "GOOD"},
			{"log", "verify"}}, work: true},
		"an API key": {links: []string{archive.StoreFile, archive.LogKeyFile},
			commands: [][]string{{"key", "create", "--name", "a"}, {"key", "list"}}},
		"a journal": {links: []string{archive.StoreFile}, stolen: []string{archive.LogKeyFile},
			commands: [][]string{{"log", "list"}, {"log", "verify"}, {"doctor"}}},
		"a replica": {links: []string{daemon.ReplicaFile}, commands: [][]string{{"replica",
			"generate", "--transfers", "3", "--file", "ROWS"}, {"replica", "import", "ROWS"}, {"replica", "status"}}},
		"a backup's key": {stolen: []string{archive.LogKeyFile},
			commands: [][]string{{"backup", "BACKUPS"}, {"backup", "ROOTS"}}},
		"a backup's data": {stolen: []string{archive.StoreFile},
			commands: [][]string{{"backup", "BACKUPS"}, {"doctor"}}},
		"an export": {links: []string{"export"},
			commands: [][]string{{"log", "export", "--file", "DATA/export"}}},
		"a restore": {links: []string{archive.StoreFile, archive.LogKeyFile},
			commands: [][]string{{"restore", "GOOD"}, {"restore", "--force", "--discard-newer", "GOOD"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanted(t)
			for _, name := range append(test.links, test.stolen...) {
				if err := os.Remove(p.data(name)); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			for _, name := range test.links {
				p.link(t, filepath.Join(p.roots, name), p.data(name))
			}
			for _, name := range test.stolen {
				p.link(t, p.secret, p.data(name))
			}
			for _, args := range test.commands {
				if err := p.types(t, args); err != nil && test.work {
					t.Errorf("attestd %v: %v", args, err)
				}
			}
			p.isUntouched(t)
			if out, err := exec.Command("find", p.data(""), p.backups, "!", "-user",
				fmt.Sprint(servicesUser)).CombinedOutput(); test.work && (err != nil || len(out) > 0) {
				t.Errorf("not the user's (%v): %s", err, out)
			}
		})
	}
}

// planted is an appliance whose data and backups belong to a user, and a folder that belongs to root.
type planted struct {
	*daemontest.Daemon
	roots, secret, backups, good string
}

const servicesUser = 65534 // the uid of nobody

func newPlanted(t *testing.T) planted {
	t.Helper()
	d := daemontest.New(t)
	p := planted{d, filepath.Join(d.Dir, "roots"), filepath.Join(d.Dir, "roots", "secret"),
		filepath.Join(d.Dir, "backups"), filepath.Join(d.Dir, "good.tar.zst")}
	d.Run(t, "backup", p.good)
	for _, dir := range []string{p.roots, p.backups} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.secret, []byte("root's own\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := "a=$0; while [ $a != / ]; do chmod a+x $a; a=$(dirname $a); done" // the user must reach its folders
	for _, args := range [][]string{
		{"chown", "-R", fmt.Sprint(servicesUser), filepath.Join(d.Dir, "data"), p.backups,
			filepath.Join(d.Dir, "tokens"), filepath.Join(d.Dir, "pin")},
		{"sh", "-c", open, d.Dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	return p
}

func (p planted) data(name string) string { return filepath.Join(p.Dir, "data", name) }

func (p planted) link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// types runs a command as root, and checks that its output does not contain the secret.
func (p planted) types(t *testing.T, args []string) error {
	t.Helper()
	places := map[string]string{"BACKUPS": p.backups, "ROOTS": filepath.Join(p.Dir, "new.tar.zst"), "GOOD": p.good,
		"ROWS": filepath.Join(p.Dir, "rows"), "DATA/export": p.data("export")}
	for i, arg := range args {
		if place, found := places[arg]; found {
			args[i] = place
		}
	}
	out, err := p.Command(args...).CombinedOutput()
	t.Logf("attestd %v: %v\n%s", args, err, out)
	if bytes.Contains(out, []byte("root's own")) {
		t.Errorf("%v shows the secret:\n%s", args, out)
	}
	return err
}

// isUntouched checks that root's folder is unchanged.
func (p planted) isUntouched(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(p.roots)
	if err != nil || len(entries) != 1 {
		t.Errorf("root's folder has %v (%v), and had the secret alone", entries, err)
	}
	out, err := exec.Command("stat", "-c", "%u %a", p.secret).Output()
	text, readErr := os.ReadFile(p.secret)
	if err != nil || readErr != nil || string(out) != "0 600\n" || string(text) != "root's own\n" {
		t.Errorf("the secret is now %s%s (%v, %v)", out, text, err, readErr)
	}
}
