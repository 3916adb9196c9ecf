// Package packaging has no code: it keeps what makes the packages. These tests check it where nothing is built; those
// of the packages themselves have the build tag packages (make test-packages).
package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestScriptsAreShellcheckClean(t *testing.T) {
	t.Parallel()
	var scripts []string
	for _, pattern := range []string{"*.sh", "deb/*", "rpm/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		scripts = append(scripts, files...)
	}
	need(t, "shellcheck")
	out, err := exec.CommandContext(t.Context(), "shellcheck", append([]string{"--shell=sh"}, scripts...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Versions must grow with history, for dpkg as for rpm.
func TestVersions(t *testing.T) {
	t.Parallel()
	need(t, "git")
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	script, err := filepath.Abs("version.sh")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	version := func(prefix string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", script)
		cmd.Dir = dir
		out, err := cmd.Output()
		v := strings.TrimSpace(string(out))
		if err != nil || !strings.HasPrefix(v, prefix) {
			t.Fatalf("version is %q (%v), want one that begins with %q", v, err, prefix)
		}
		if strings.ContainsAny(v, "-_ ") {
			t.Errorf("%q is no version for dpkg and rpm", v)
		}
		all = append(all, v)
	}
	version("0.0.0~devel")
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "1")
	version("0.0.0~git1.g")
	for range 9 {
		git("commit", "-q", "--allow-empty", "-m", "2 to 10")
	}
	version("0.0.0~git10.g")
	git("tag", "v1.0.0-rc.1")
	version("1.0.0~rc.1")
	git("commit", "-q", "--allow-empty", "-m", "11")
	version("1.0.0~rc.1+1.g")
	git("tag", "v1.0.0")
	version("1.0.0")
	for range 10 {
		git("commit", "-q", "--allow-empty", "-m", "12 to 21")
	}
	version("1.0.0+10.g")
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	git("add", "file")
	version("1.0.0+10.g")
	if last := all[len(all)-1]; !strings.HasSuffix(last, ".dirty") {
		t.Errorf("%q does not tell that there are changes", last)
	}
	git("commit", "-q", "-m", "22")
	git("tag", "v1.0.1")
	version("1.0.1")
	for i := range len(all) - 1 {
		older(t, all[i], all[i+1])
	}
}

// older checks that dpkg and rpm, where they are, take a for older than b.
func older(t *testing.T, a, b string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg"); err == nil {
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", a, "lt", b).Run(); err != nil {
			t.Errorf("dpkg: %s is not older than %s", a, b)
		}
	}
	if _, err := exec.LookPath("rpm"); err == nil {
		out, err := exec.CommandContext(t.Context(), "rpm", "--eval", `%{lua: print(rpm.vercmp("`+a+`", "`+b+`"))}`).Output()
		if err != nil || string(bytes.TrimSpace(out)) != "-1" {
			t.Errorf("rpm: %s is not older than %s: %s %v", a, b, out, err)
		}
	}
}

// need skips a test, by name, where a program is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not on this machine (make deps-packages installs it)", p)
		}
	}
}

// A link within a document, or to a heading of another, must lead to a heading.
func TestDocumentsLinkToHeadings(t *testing.T) {
	t.Parallel()
	headings := func(text string) (anchors []string) {
		for _, line := range regexp.MustCompile("(?m)^#+ (.+)$").FindAllStringSubmatch(regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, ""), -1) {
			anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(line[1]), "")
			anchors = append(anchors, strings.ReplaceAll(anchor, " ", "-"))
		}
		return anchors
	}
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil || len(documents) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, document := range append(documents, "../README.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range regexp.MustCompile(`\]\(([^):#]*)#([^)]+)\)`).FindAllStringSubmatch(string(text), -1) {
			target := text
			if link[1] != "" {
				if target, err = os.ReadFile(filepath.Join(filepath.Dir(document), link[1])); err != nil {
					t.Errorf("%s: %v", document, err)
					continue
				}
			}
			if !slices.Contains(headings(string(target)), link[2]) {
				t.Errorf("%s links to %s#%s: there is no such heading", document, link[1], link[2])
			}
		}
	}
}
