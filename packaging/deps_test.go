package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// deps.sh runs with only the basic programs on PATH and with fake package managers that record their arguments. make
// test-fresh installs with real ones, on Debian. The test does not depend on files of this machine, such as libc's
// headers.
func TestDeps(t *testing.T) {
	t.Parallel()
	for _, c := range depsCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := onEmptyPath(t, c.programs)
			out, err := runDeps(t, dir, c.word)
			if failed := err != nil; failed != c.fails {
				t.Fatalf("got %v:\n%s", err, out)
			}
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			if strings.Count(out, "\n") > 30 {
				t.Errorf("it says too much:\n%s", out)
			}
			asked, _ := os.ReadFile(filepath.Join(dir, "asked"))
			if c.ran == "" {
				if len(asked) > 0 {
					t.Errorf("it installs: %s", asked)
				}
				return
			}
			_, list, found := strings.Cut("\n"+string(asked), "\n"+c.ran)
			for _, want := range c.packages {
				if !found || !strings.Contains(" "+strings.Join(strings.Fields(list), " ")+" ", " "+want+" ") {
					t.Errorf("it does not ask for %s%s: %s", c.ran, want, asked)
				}
			}
			if again, err := runDeps(t, dir, c.word); c.word == "" && (err != nil || again != "") {
				t.Errorf("when all is there: %v, %s", err, again)
			}
		})
	}
}

// depsCase is a system and the expected result of deps.sh.
type depsCase struct {
	name     string
	programs map[string]string
	word     string
	ran      string   // beginning of the expected command line
	packages []string // packages that the command line must name
	says     []string
	fails    bool
}

func depsCases() []depsCase {
	const (
		debian = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
		fedora = "dnf install -y "
	)
	return []depsCase{
		{
			name: "Fedora, root", programs: map[string]string{"dnf": installs, "id": "echo 0"},
			ran: "dnf install -y ", packages: []string{"gcc", "softhsm", "curl", "golang", "/usr/bin/node", "/usr/bin/npm"},
			says: []string{"make deps: installing gcc "},
		},
		{
			name: "Fedora, root, for the tests", programs: map[string]string{"dnf": installs, "id": "echo 0"}, word: "test",
			ran: "dnf install -y ", packages: []string{"chromium", "ShellCheck", "systemd", "p11-kit", "python3"},
		},
		{
			name: "Debian, a user, for the tests", programs: map[string]string{"apt-get": installs, "id": "echo 1000"}, word: "test",
			says: []string{"\napt-get update && ", " apt-get install -y --no-install-recommends gcc "}, fails: true,
		},
		{
			name: "Fedora, for the packages", programs: map[string]string{"dnf": installs, "id": "echo 0"}, word: "packages",
			ran: "dnf install -y ", packages: []string{"binutils", "systemd-container", "debootstrap", "rpm", "rpm-build", "rpm-sign", "rpmlint", "ShellCheck", "gnupg2", "mmdebstrap", "buildah", "podman"},
		},
		{
			name: "Debian, root", programs: map[string]string{"apt-get": installs, "id": "echo 0"},
			ran: "apt-get install -y --no-install-recommends ", packages: []string{"gcc", "softhsm2", "curl", "golang-go", "nodejs", "npm"},
		},
		{
			name: "a user with sudo", programs: map[string]string{"dnf": installs, "id": "echo 1000", "sudo": `echo "sudo $*" >>asked; "$@"`},
			ran: "sudo sh -c dnf install -y ", packages: []string{"golang"}, says: []string{"by sudo"},
		},
		{
			name: "a user without sudo on Fedora", programs: map[string]string{"dnf": installs, "id": "echo 1000"},
			says: []string{"Run this line as root", "\n" + fedora, " golang "}, fails: true,
		},
		{
			name: "a user without sudo on Debian", programs: map[string]string{"apt-get": installs, "id": "echo 1000"},
			says: []string{"Run this line as root", "\n" + debian, " golang-go "}, fails: true,
		},
		{
			name: "a user whom sudo refuses", programs: map[string]string{"dnf": installs, "id": "echo 1000", "sudo": "echo you are not in the sudoers file; exit 1"},
			says: []string{"you are not in the sudoers file", "bin/deps.log", "\n" + fedora}, fails: true,
		},
		{
			name: "no such package", programs: map[string]string{"dnf": "seq 100; echo no match for softhsm; exit 1", "id": "echo 0"},
			says: []string{"\n99\n100\nno match for softhsm\n", "The complete output is in bin/deps.log"}, fails: true,
		},
		{
			name: "neither apt nor dnf", programs: map[string]string{"id": "echo 0"},
			says: []string{"neither apt-get nor dnf", "gcc"}, fails: true,
		},
	}
}

// installs is a fake package manager. It puts an empty program of each name into its own folder.
const installs = `echo "${0##*/} $*" >>asked
for program in gcc softhsm2-util curl go node npm; do
	printf '#!/bin/sh\n' >"${0%/*}/$program"
	chmod +x "${0%/*}/$program"
done`

// onEmptyPath returns a folder with the scripts. Its subfolder path has the given programs and the scripts' basic
// tools.
func onEmptyPath(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"packaging", "path"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"deps.sh", "quietly.sh"} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "packaging", script), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"sh", "env", "dirname", "mkdir", "tail", "sed", "seq", "chmod"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, "path", program)); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(dir, "path", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runDeps(t *testing.T, dir, word string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "path", "sh"), "packaging/deps.sh", word)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + filepath.Join(dir, "path")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
