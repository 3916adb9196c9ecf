package packaging

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is a test repository with version.sh.
type repository struct {
	*testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	need(t, "git")
	r := &repository{t, t.TempDir()}
	for _, name := range []string{"packaging/version.sh", ".gitattributes"} {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		r.write(name, string(content))
	}
	return r
}

func (r *repository) run(in string, name string, args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), name, args...)
	cmd.Dir = in
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com",
		"GIT_COMMITTER_NAME=t",
		"GIT_COMMITTER_EMAIL=t@example.com", "GIT_COMMITTER_DATE=2026-11-21T15:30:00+02:00")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("%s %s: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repository) git(args ...string) {
	r.Helper()
	r.run(r.dir, "git", args...)
}

// commit commits all changes. The commit may be empty.
func (r *repository) commit(message string) {
	r.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", message)
}

func (r *repository) write(name, content string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, []byte(content), 0o600)); err != nil {
		r.Fatal(err)
	}
}

func (r *repository) versionIn(dir string, args ...string) string {
	r.Helper()
	return r.run(dir, "sh", append([]string{"packaging/version.sh"}, args...)...)
}

// copied runs a command that copies the source from "$0" to "$1", and returns the copy.
func (r *repository) copied(command string) string {
	r.Helper()
	to := filepath.Join(r.TempDir(), "copy")
	r.run(r.dir, "sh", "-c", command, r.dir, to)
	return to
}

// Versions increase with history, for both dpkg and rpm.
func TestVersions(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	var all []string
	version := func(prefix string) {
		t.Helper()
		v := r.versionIn(r.dir)
		if !strings.HasPrefix(v, prefix) {
			t.Fatalf("version is %q, want one that begins with %q", v, prefix)
		}
		if strings.ContainsAny(v, "-_ ") {
			t.Errorf("%q is no version for dpkg and rpm", v)
		}
		all = append(all, v)
	}
	version("0.0.0~devel")
	r.git("init", "-q")
	r.commit("1")
	version("0.0.0~git1.g")
	for range 9 {
		r.commit("2 to 10")
	}
	version("0.0.0~git10.g")
	r.git("tag", "v1.0.0-rc.1")
	version("1.0.0~rc.1")
	r.commit("11")
	version("1.0.0~rc.1+1.g")
	r.git("tag", "v1.0.0")
	version("1.0.0")
	for range 10 {
		r.commit("12 to 21")
	}
	version("1.0.0+10.g")
	r.write("file", "1")
	r.git("add", "file")
	version("1.0.0+10.g")
	if last := all[len(all)-1]; !strings.HasSuffix(last, ".dirty") {
		t.Errorf("%q does not tell that there are changes", last)
	}
	r.commit("22")
	r.git("tag", "v1.0.1")
	version("1.0.1")
	for i := range len(all) - 1 {
		older(t, all[i], all[i+1])
	}
}

// Commands that copy the source.
const (
	shallow = `git clone -q --depth 1 "file://$0" "$1"`
	archive = `mkdir "$1" && git archive HEAD | tar -x -C "$1"`
	folder  = `mkdir "$1" && tar -c --exclude=.git . | tar -x -C "$1"`
	nested  = `git init -q "${1%/*}" && git -C "${1%/*}" commit -q --allow-empty -m another && mkdir "$1" && git archive HEAD | tar -x -C "$1"`
)

// Without tags, the version comes from the changelog and from the data of git archive.
func TestVersionsWithoutTags(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	check := func(made, command, want string) string {
		t.Helper()
		got := r.versionIn(r.copied(command))
		if !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("%s: version %s, want %s", made, got, want)
		}
		return got
	}
	const at = `20261121133000\.g[0-9a-f]{12}`

	r.git("init", "-q")
	r.commit("one")
	before := check("nothing released", archive, `0\.0\.0~git`+at)
	check("nothing released", folder, `0\.0\.0~devel`)

	r.write("CHANGELOG.md", "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-11-20\n\n## [1.1.0] - 2026-10-01\n")
	r.commit("one")
	after := check("a shallow clone", shallow, `1\.2\.0\+0\.`+at)
	check("an archive without tags", archive, `1\.2\.0\+0\.`+at)
	check("an archive in another repository", nested, `1\.2\.0\+0\.`+at)
	check("a clone without tags", `git clone -q --no-tags "file://$0" "$1"`, `1\.2\.0\+0\.`+at)
	unknown := check("a folder", folder, `1\.2\.0\+0\.unknown`)
	if got := r.versionIn(r.copied(folder), "--date"); got != "1795132800" {
		t.Errorf("a folder is of %s, not of the release's date", got)
	}
	if got := r.versionIn(r.copied(archive), "--date"); got != "1795267800" {
		t.Errorf("an archive is of %s, not of the commit's date", got)
	}

	r.git("tag", "v1.2.0")
	tagged := check("an archive of a tag", archive, `1\.2\.0`)
	check("a shallow clone of a tag", `git clone -q --depth 1 --branch v1.2.0 "file://$0" "$1" 2>/dev/null`, `1\.2\.0`)
	r.git("tag", "-d", "v1.2.0")
	r.git("tag", "v1.2.0-rc.1")
	check("an archive of a candidate", archive, `1\.2\.0~rc\.1`)
	r.git("tag", "-d", "v1.2.0-rc.1")
	r.git("tag", "v1.2.0")
	r.commit("one")
	counted := check("an archive after a tag", archive, `1\.2\.0\+1\.g[0-9a-f]{12}`)

	for _, pair := range [][2]string{{before, tagged}, {tagged, after}, {tagged, unknown}, {after, counted},
		{unknown, counted}, {counted, "1.2.1"}} {
		older(t, pair[0], pair[1])
	}
}

// older checks that dpkg and rpm, if installed, sort a before b.
func older(t *testing.T, a, b string) {
	t.Helper()
	if _, err := exec.LookPath("dpkg"); err == nil {
		if err := exec.CommandContext(t.Context(), "dpkg", "--compare-versions", a, "lt", b).Run(); err != nil {
			t.Errorf("dpkg: %s is not older than %s", a, b)
		}
	}
	if _, err := exec.LookPath("rpm"); err == nil {
		out, err := exec.CommandContext(t.Context(), "rpm", "--eval",
			`%{lua: print(rpm.vercmp("`+a+`", "`+b+`"))}`).Output()
		if err != nil || string(bytes.TrimSpace(out)) != "-1" {
			t.Errorf("rpm: %s is not older than %s: %s %v", a, b, out, err)
		}
	}
}
