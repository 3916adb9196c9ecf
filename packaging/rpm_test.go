//go:build packages

package packaging

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestRPM(t *testing.T) {
	need(t, "rpm", "rpm2cpio", "cpio")
	file, err := filepath.Abs(rpmFile(dist, version(t)))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	// Absolute names would overwrite files of this machine when root unpacks them with cpio.
	for name := range strings.Lines(host(t, "sh", "-c", `rpm2cpio "$0" | cpio --quiet -t`, file)) {
		if !strings.HasPrefix(name, "./") {
			t.Fatalf("not a relative name: %s", name)
		}
	}
	host(t, "sh", "-c", `rpm2cpio "$0" | (cd "$1" && cpio --quiet -idm)`, file, root)
	checkTree(t, root,
		append(installedFiles, "/usr/share/zsh/site-functions/_attestd", "/usr/share/licenses/attestd/LICENSE"))
	got := host(t, "rpm", "-qp", "--queryformat", "%{VERSION} %{ARCH} %{LICENSE}", file)
	if want := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "attestd-"), ".rpm"); strings.Replace(got,
		" ", ".", 1) != want+" Apache-2.0" {
		t.Errorf("version and architecture: %q", got)
	}
	if got := host(t, "rpm", "-qp", "--requires",
		file); !regexp.MustCompile(`libc\.so\.6\(GLIBC_2\.\d+\)\(64bit\)`).MatchString(got) {
		t.Errorf("requires: %s", got)
	}
	scripts := host(t, "rpm", "-qp", "--queryformat", "[%{REQUIRENAME} %{REQUIREFLAGS:deptype}\n]", file)
	for _, want := range []string{"glibc-common pre", "shadow-utils pre", "systemd pre", "systemd post",
		"systemd preun", "systemd postun"} {
		if !strings.Contains("\n"+scripts, "\n"+want+"\n") {
			t.Errorf("it does not require %s:\n%s", want, scripts)
		}
	}
	if got := host(t, "rpm", "-qp", "--recommends", file); !strings.Contains(got, "softhsm") {
		t.Errorf("recommends: %s", got)
	}
	if got := host(t, "rpm", "-qp", "--configfiles", file); got != "" {
		t.Errorf("configuration files: %s", got)
	}
	if got := host(t, "rpm", "-K", file); !strings.Contains(got, "OK") {
		t.Errorf("checksums: %s", got)
	}
	t.Run("rpmlint", func(t *testing.T) {
		need(t, "rpmlint")
		t.Log("\n" + host(t, "rpmlint", "--config", "rpmlint.toml", file))
	})
	t.Run("modes are those that README tells", func(t *testing.T) { checkModes(t, file) })
	t.Run("an empty root", func(t *testing.T) { checkEmptyRoot(t, file) })
}

// checkModes compares owners and modes in the .rpm with README.Debian.
func checkModes(t *testing.T, file string) {
	t.Helper()
	readme, err := os.ReadFile("README.Debian")
	if err != nil {
		t.Fatal(err)
	}
	got := host(t, "rpm", "-qp", "--queryformat",
		"[%{FILENAMES} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILEMODES:perms}\n]", file)
	told := regexp.MustCompile(`(?m)^  (/\S+) +(\w+:\w+) +0([0-7]{3}) `).FindAllStringSubmatch(string(readme), -1)
	if len(told) < 4 {
		t.Fatalf("README tells %d modes", len(told))
	}
	for _, m := range told {
		mode, err := strconv.ParseUint(m[3], 8, 32)
		if err != nil {
			t.Fatal(err)
		}
		want := m[1] + " " + m[2] + " ." + strings.TrimPrefix(fs.FileMode(mode).String(), "-") + "\n"
		if !regexp.MustCompile("(?m)^"+want).MatchString(got) && strings.Contains(got, m[1]+" ") {
			t.Errorf("README tells %q:\n%s", m[0], got)
		}
	}
}

// checkEmptyRoot installs the .rpm into an empty root and erases it.
func checkEmptyRoot(t *testing.T, file string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may install")
	}
	root := t.TempDir()
	// The root has no shell and no libc, so scripts and dependencies are skipped. TestRPMLifeCycle runs the scripts on
	// a whole tree.
	host(t, "rpm", "--root", root, "--nodeps", "--noscripts", "--install", file)
	checkTree(t, root, installedFiles)
	host(t, "rpm", "--root", root, "--nodeps", "--noscripts", "--erase", "attestd")
	if _, err := os.Stat(filepath.Join(root, "usr/bin/attestd")); !os.IsNotExist(err) {
		t.Errorf("the program is still there: %v", err)
	}
}
