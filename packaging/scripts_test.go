// Package packaging has no code: it keeps what makes the packages. These tests check it where nothing is built; those
// of the packages themselves have the build tag packages (make test-packages).
package packaging

import (
	"bytes"
	"errors"
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

// Where no tags are, the version comes from what is: the changelog, and what git archive wrote down.
func TestVersionsWithoutTags(t *testing.T) {
	t.Parallel()
	need(t, "git")
	dir := t.TempDir()
	run := func(in string, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = in
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t",
			"GIT_COMMITTER_EMAIL=t@example.com", "GIT_COMMITTER_DATE=2026-11-21T15:30:00+02:00")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"packaging/version.sh", ".gitattributes"} {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(content))
	}
	commit := func() {
		t.Helper()
		run(dir, "git", "add", "-A")
		run(dir, "git", "commit", "-q", "--allow-empty", "-m", "one")
	}
	version := func(in string, args ...string) string {
		t.Helper()
		return run(in, "sh", append([]string{"packaging/version.sh"}, args...)...)
	}
	elsewhere := func(command string) string { // runs a command that makes a copy of the source in "$1" from "$0"
		t.Helper()
		to := filepath.Join(t.TempDir(), "copy")
		run(dir, "sh", "-c", command, dir, to)
		return to
	}
	const (
		shallow = `git clone -q --depth 1 "file://$0" "$1"`
		archive = `mkdir "$1" && git archive HEAD | tar -x -C "$1"`
		folder  = `mkdir "$1" && tar -c --exclude=.git . | tar -x -C "$1"`
		nested  = `git init -q "${1%/*}" && git -C "${1%/*}" commit -q --allow-empty -m another && mkdir "$1" && git archive HEAD | tar -x -C "$1"`
	)
	check := func(made, command, want string) string {
		t.Helper()
		got := version(elsewhere(command))
		if !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("%s: version %s, want %s", made, got, want)
		}
		return got
	}
	const at = `20261121133000\.g[0-9a-f]{12}`

	run(dir, "git", "init", "-q")
	commit()
	before := check("nothing released", archive, `0\.0\.0~git`+at)
	check("nothing released", folder, `0\.0\.0~devel`)

	write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-20\n\n## [1.1.0] - 2026-10-01\n")
	commit()
	after := check("a shallow clone", shallow, `1\.2\.0\+0\.`+at)
	check("an archive without tags", archive, `1\.2\.0\+0\.`+at)
	check("an archive in another repository", nested, `1\.2\.0\+0\.`+at)
	check("a clone without tags", `git clone -q --no-tags "file://$0" "$1"`, `1\.2\.0\+0\.`+at)
	unknown := check("a folder", folder, `1\.2\.0\+0\.unknown`)
	if got := version(elsewhere(folder), "--date"); got != "1795132800" {
		t.Errorf("a folder is of %s, not of the release's date", got)
	}
	if got := version(elsewhere(archive), "--date"); got != "1795267800" {
		t.Errorf("an archive is of %s, not of the commit's date", got)
	}

	run(dir, "git", "tag", "v1.2.0")
	tagged := check("an archive of a tag", archive, `1\.2\.0`)
	check("a shallow clone of a tag", `git clone -q --depth 1 --branch v1.2.0 "file://$0" "$1" 2>/dev/null`, `1\.2\.0`)
	run(dir, "git", "tag", "-d", "v1.2.0")
	run(dir, "git", "tag", "v1.2.0-rc.1")
	check("an archive of a candidate", archive, `1\.2\.0~rc\.1`)
	run(dir, "git", "tag", "-d", "v1.2.0-rc.1")
	run(dir, "git", "tag", "v1.2.0")
	commit()
	counted := check("an archive after a tag", archive, `1\.2\.0\+1\.g[0-9a-f]{12}`)

	for _, pair := range [][2]string{{before, tagged}, {tagged, after}, {tagged, unknown}, {after, counted}, {unknown, counted}, {counted, "1.2.1"}} {
		older(t, pair[0], pair[1])
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
