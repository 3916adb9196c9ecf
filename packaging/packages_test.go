//go:build packages

package packaging

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// version returns the version that `make packages` has just built.
func version(t *testing.T) string {
	t.Helper()
	v := os.Getenv("VERSION")
	if v == "" {
		t.Fatal("VERSION is not set: run this with make test-packages")
	}
	return v
}

// nextVersion is newer than version, and older than any later release.
func nextVersion(t *testing.T) string {
	t.Helper()
	v := version(t)
	if strings.Contains(v, "+") {
		return v + ".next"
	}
	return v + "+next"
}

func deb(dist, version string) string {
	return filepath.Join(dist, "attestd_"+version+"_"+runtime.GOARCH+".deb")
}

func rpmFile(dist, version string) string {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return filepath.Join(dist, "attestd-"+version+"."+machine+".rpm")
}

const dist = "../dist"

// rebuilt builds the same source again in another folder, time zone, language and umask. It returns the folder with the
// packages.
func rebuilt(t *testing.T, version string, environ ...string) string {
	t.Helper()
	dir := copyOfSource(t)
	build(t, dir, version, nil, environ...)
	return filepath.Join(dir, "dist")
}

func build(t *testing.T, dir, version string, by *syscall.Credential, environ ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "umask 077; exec sh packaging/build.sh")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: by}
	cmd.Env = append(os.Environ(), "VERSION="+version, "ARCHES="+runtime.GOARCH, "SOURCE_DATE_EPOCH="+commitDate(t),
		"TZ=Pacific/Auckland", "LC_ALL=C.UTF-8", "TMPDIR="+t.TempDir(), "GPG_KEY=")
	cmd.Env = append(cmd.Env, environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, out)
	}
}

// rebuiltBySomebodyElse is rebuilt by another user, with separate home, module cache and build cache, if this user may
// become another. The modules come from this user's cache, through a proxy.
func rebuiltBySomebodyElse(t *testing.T, version string) string {
	t.Helper()
	modules := strings.TrimSpace(host(t, "go", "env", "GOMODCACHE"))
	proxy := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(modules, "cache", "download"))))
	t.Cleanup(proxy.Close)
	dir := copyOfSource(t)
	home := filepath.Join(dir, "home of somebody else")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"HOME=" + home, "TMPDIR=" + home, "GOENV=off", "GOPATH=" + filepath.Join(home, "go"), "GOMODCACHE=",
		"GOCACHE=" + filepath.Join(home, "cache"),
		"GOPROXY=" + proxy.URL, "GOSUMDB=off",
	}
	t.Cleanup(func() { // modules are read-only
		cmd := exec.CommandContext(context.Background(), "go", "clean", "-modcache")
		cmd.Env = append(os.Environ(), environ...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	var by *syscall.Credential
	if os.Geteuid() == 0 {
		const nobody = 65534
		by = &syscall.Credential{Uid: nobody, Gid: nobody}
		host(t, "chown", "-R", "65534:65534", dir)
		if err := os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil { // the test's folder
			t.Fatal(err)
		}
	}
	build(t, dir, version, by, environ...)
	return filepath.Join(dir, "dist")
}

func copyOfSource(t *testing.T) string {
	t.Helper()
	need(t, "git")
	dir := filepath.Join(t.TempDir(), "another-folder")
	// git does not have the bundles from npm, which make packages has built.
	files := host(t, "git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard") +
		host(t, "git", "-C", "..", "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "api/graphiql/dist",
			"api/console/dist")
	for name := range strings.SplitSeq(strings.Trim(files, "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join("..", name))
		if os.IsNotExist(err) {
			continue // deleted but not committed
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func commitDate(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(host(t, "git", "log", "-1", "--format=%ct"))
}

// next returns the packages of the next version, which has another default. They are built once.
func next(t *testing.T) string {
	t.Helper()
	nextOnce.Do(func() {
		source := copyOfSource(t)
		edit(t, filepath.Join(source, "appliance/config/settings.go"), `"server.idle_timeout", "2m"`,
			`"server.idle_timeout", "3m"`)
		build(t, source, nextVersion(t), nil)
		nextDir = kept(t, filepath.Join(source, "dist"), nextVersion(t))
	})
	return nextDir
}

// kept copies packages to a folder that exists until all tests have ended.
func kept(t *testing.T, from, version string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "attestd-packages-")
	if err != nil {
		t.Fatal(err)
	}
	keptDirs = append(keptDirs, dir)
	host(t, "cp", deb(from, version), rpmFile(from, version), dir)
	return dir
}

var (
	nextOnce sync.Once
	nextDir  string
	keptDirs []string
)

func TestMain(m *testing.M) {
	status := m.Run()
	for _, dir := range keptDirs {
		_ = os.RemoveAll(dir)
	}
	os.Exit(status)
}

// edit replaces a text in a file. The text must occur exactly once.
func edit(t *testing.T, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), from); n != 1 {
		t.Fatalf("%s has %q %d times, not once", file, from, n)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPackagesAreReproducible(t *testing.T) {
	again := rebuiltBySomebodyElse(t, version(t))
	for _, name := range []string{deb("", version(t)), rpmFile("", version(t)),
		"attestd_" + version(t) + "_" + runtime.GOARCH + ".cdx.json"} {
		a, b := sum(t, filepath.Join(dist, name)), sum(t, filepath.Join(again, name))
		if a != b {
			t.Errorf("%s: built twice, not the same bytes: %s and %s", name, a, b)
		}
	}
}

func sum(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func TestChecksumsAreRight(t *testing.T) {
	f, err := os.Open(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	listed := 0
	for lines := bufio.NewScanner(f); lines.Scan(); listed++ {
		want, name, _ := strings.Cut(lines.Text(), "  ")
		if got := sum(t, filepath.Join(dist, name)); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
	if listed < 3 {
		t.Errorf("only %d files are listed", listed)
	}
}

// installedFiles are the files that every package installs, apart from files for its format.
var installedFiles = []string{
	"/usr/share/attestd/attestd.yaml",
	"/usr/share/attestd/grafana/attestd.json",
	"/usr/share/attestd/prometheus/attestd.rules.yml",
	"/usr/bin/attestd",
	"/usr/lib/systemd/system/attestd.service",
	"/usr/lib/systemd/system/attestd.socket",
	"/usr/lib/systemd/system/attestd-backup.service",
	"/usr/lib/systemd/system/attestd-backup.timer",
	"/usr/lib/sysusers.d/attestd.conf",
	"/usr/lib/tmpfiles.d/attestd.conf",
	"/usr/share/bash-completion/completions/attestd",
	"/usr/share/fish/vendor_completions.d/attestd.fish",
	"/usr/share/man/man1/attestd.1.gz",
	"/usr/share/man/man1/attestd-serve.1.gz",
	"/usr/share/man/man1/attestd-setup.1.gz",
	"/usr/share/man/man1/attestd-backup.1.gz",
	"/usr/share/man/man5/attestd.yaml.5.gz",
	"/usr/share/doc/attestd/operations.md",
	"/usr/share/doc/attestd/replica.md",
	"/usr/share/doc/attestd/decisions/README.md",
	"/usr/share/doc/attestd/contracts/AttestorQuorum.sol",
	"/usr/share/doc/attestd/third-party-notices.gz",
	"/usr/share/doc/attestd/examples/attestd.service-with-device.conf",
}

func TestDeb(t *testing.T) {
	need(t, "dpkg-deb")
	file := deb(dist, version(t))
	root := t.TempDir()
	host(t, "dpkg-deb", "--extract", file, root)
	checkTree(t, root, append(installedFiles,
		"/usr/share/zsh/vendor-completions/_attestd", "/usr/share/doc/attestd/copyright",
		"/usr/share/doc/attestd/changelog.gz",
		"/usr/share/doc/attestd/README.Debian"))
	for field, want := range map[string]string{
		"Version": "^" + regexp.QuoteMeta(version(t)) + "$", "Depends": `libc6 \(>= 2\.\d+\)`, "Recommends": "softhsm2",
		"Architecture": "^" + runtime.GOARCH + "$",
	} {
		if got := strings.TrimSpace(host(t, "dpkg-deb", "--field", file, field)); !regexp.MustCompile(want).MatchString(
			got) {
			t.Errorf("%s: %q, want %s", field, got, want)
		}
	}
	control := t.TempDir()
	host(t, "dpkg-deb", "--control", file, control)
	if conffiles, err := os.ReadFile(filepath.Join(control, "conffiles")); !os.IsNotExist(err) {
		t.Errorf("dpkg may ask about files: %q, %v", conffiles, err)
	}
	t.Run("lintian", func(t *testing.T) {
		need(t, "lintian")
		t.Log("\n" + host(t, "lintian", "--allow-root", "--fail-on=error", file))
	})
}

// checkTree checks the files of an unpacked package.
func checkTree(t *testing.T, root string, want []string) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		stat, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		got = append(got, name)
		mode := fs.FileMode(0o644)
		if name == "/usr/bin/attestd" {
			mode = 0o755
		}
		if stat.Mode() != mode && !strings.HasPrefix(name, "/var/lib/rpm/") {
			t.Errorf("%s has mode %v, want %v", name, stat.Mode(), mode)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s is not in the package", w)
		}
	}
}

func TestProgram(t *testing.T) {
	need(t, "dpkg-deb", "readelf")
	root := t.TempDir()
	host(t, "dpkg-deb", "--extract", deb(dist, version(t)), root)
	program := filepath.Join(root, "usr/bin/attestd")
	if got := host(t, program, "version"); !strings.Contains(got, " "+version(t)+" ") {
		t.Errorf("it says that it is %s", got)
	}
	checkReference(t, program, filepath.Join(root, "usr/share/attestd/attestd.yaml"))
	header, sections, dynamic := host(t, "readelf", "-h", program), host(t, "readelf", "-S", "-W", program),
		host(t, "readelf", "-d", "-W", program)
	if !strings.Contains(header, "DYN (Position-Independent Executable file)") {
		t.Error("it is not position-independent")
	}
	if strings.Contains(sections, ".symtab") || strings.Contains(sections, ".debug_") {
		t.Error("it is not stripped")
	}
	if !strings.Contains(dynamic, "BIND_NOW") && !strings.Contains(dynamic, "Flags: NOW") {
		t.Error("its symbols are not bound when it starts")
	}
	if got := strings.Count(dynamic, "(NEEDED)"); got != 1 {
		t.Errorf("it needs %d libraries, not libc alone:\n%s", got, dynamic)
	}
	built, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.TrimSpace(host(t, "go", "env", "GOMODCACHE"))
	for _, folder := range []string{here, modules} {
		if strings.Contains(string(built), folder+"/") {
			t.Errorf("it knows a folder of this machine, %s", folder)
		}
	}
}

// checkReference checks that the reference file sets no value, and sets exactly the defaults if the # at each line's
// beginning is removed.
func checkReference(t *testing.T, program, reference string) {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^#`)
	if set := lines.ReplaceAllString(string(text), ""); len(set) != len(text)-strings.Count(string(text), "\n") {
		t.Errorf("%s has lines that begin with no #:\n%s", reference, text)
	} else if err := os.WriteFile(reference+".set", []byte(set), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := host(t, program, "--config", reference+".set", "config", "check"); !strings.Contains(got, "valid") {
		t.Errorf("the reference: %s", got)
	}
	defaults := host(t, program, "--config", os.DevNull, "config", "show")
	for what, file := range map[string]string{"as it is": reference, "without the #": reference + ".set"} {
		if got := host(t, program, "--config", file, "config", "show"); got != defaults {
			t.Errorf("the reference %s is not the defaults:\n%s", what, got)
		}
	}
}

func TestSBOM(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(dist, "attestd_"+version(t)+"_"+runtime.GOARCH+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Format     string `json:"bomFormat"`
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(b, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Format != "CycloneDX" {
		t.Errorf("bomFormat: %q", bom.Format)
	}
	for _, want := range []string{"std", "github.com/miekg/pkcs11", "go.etcd.io/bbolt",
		"github.com/ethereum/go-ethereum", "libc.so.6", "graphiql", "monaco-editor", "uplot"} {
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name, Version, PURL string }) bool {
			return c.Name == want
		}) {
			t.Errorf("%s is not listed", want)
		}
	}
}

// Packages signed with a test key verify with its public key.
func TestSigning(t *testing.T) {
	need(t, "gpg", "rpm", "rpmsign", "rpmkeys")
	home, err := os.MkdirTemp("", "gpg-") // short, because it contains gpg-agent's socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "gpgconf", "--homedir", home, "--kill", "all").Run()
		_ = os.RemoveAll(home)
	})
	const who = "attestd test <test@attestd.invalid>"
	host(t, "gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", who, "rsa3072",
		"sign", "1d")
	signed := rebuilt(t, version(t), "GPG_KEY="+who, "GNUPGHOME="+home)
	host(t, "gpg", "--homedir", home, "--batch", "--verify", filepath.Join(signed, "SHA256SUMS.asc"),
		filepath.Join(signed, "SHA256SUMS"))
	public := filepath.Join(home, "public.asc")
	host(t, "gpg", "--homedir", home, "--batch", "-a", "--output", public, "--export", who)
	keys := t.TempDir()
	host(t, "rpmkeys", "--dbpath", keys, "--import", public)
	got := host(t, "rpmkeys", "--dbpath", keys, "--checksig", "--verbose", rpmFile(signed, version(t)))
	if !strings.Contains(got, "Signature") || strings.Contains(got, "BAD") || strings.Contains(got, "NOKEY") {
		t.Errorf("the .rpm: %s", got)
	}
}
