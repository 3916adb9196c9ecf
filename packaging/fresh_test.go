//go:build fresh

package packaging

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFresh follows README's "Two commands" on a Debian with only git and make. SUITES selects the Debian suites; the
// default is "bookworm trixie". With -short, `make test` is skipped.
func TestFresh(t *testing.T) {
	for suite := range strings.FieldsSeq(cmp.Or(os.Getenv("SUITES"), "bookworm trixie")) {
		t.Run(suite, func(t *testing.T) {
			t.Run("root", func(t *testing.T) { asRoot(t, suite) })
			t.Run("a user whom root helps", func(t *testing.T) { asUser(t, suite) })
			t.Run("a user with sudo", func(t *testing.T) { withSudo(t, suite) })
		})
	}
}

func asRoot(t *testing.T, suite string) {
	n := newcomer(t, suite, "root")
	first := n.makeRun(t)
	if again := n.makeRun(t); again != first {
		t.Errorf("the second make run signs with the key of %s, the first with that of %s", again, first)
	}
}

// A user without the right to install gets one line for root, and no file is changed before. After root has run that
// line, make run works, and so does make test. Only this case runs the tests as a normal user; .ci/run runs them as
// root.
func asUser(t *testing.T, suite string) {
	n := newcomer(t, suite, "dev")
	line := n.lineForRoot(t, "make run")
	if changed, err := n.sh(t, "git status --porcelain --ignored"); err != nil || changed != "" {
		t.Errorf("it has left something behind (%v):\n%s", err, changed)
	}
	n.admin(t, line)
	n.makeRun(t)
	if !testing.Short() {
		n.admin(t, n.lineForRoot(t, "make test"))
		n.makeTest(t)
	}
}

// lineForRoot runs a command that fails because packages are missing, and returns the line that installs them.
func (p *person) lineForRoot(t *testing.T, command string) string {
	t.Helper()
	out, err := p.sh(t, command)
	if err == nil {
		t.Fatalf("%s ends well where something is missing:\n%s", command, out)
	}
	lines := regexp.MustCompile(`(?m)^apt-get .*$`).FindAllString(out, -1)
	if len(lines) != 1 || !strings.Contains(out, "Run this line as root") {
		t.Fatalf("%s does not say the one line that root is to run:\n%s", command, out)
	}
	return lines[0]
}

// A user with sudo only has to type the password.
func withSudo(t *testing.T, suite string) {
	n := newcomer(t, suite, "dev")
	n.admin(t,
		"apt-get -qq update && apt-get -qq install -y --no-install-recommends sudo && usermod -aG sudo dev && echo dev:opensesame | chpasswd")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	// script provides a terminal.
	cmd := n.command(ctx, "script -qec 'make deps' /dev/null")
	keyboard, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var screen bytes.Buffer
	cmd.Stdout = onText(&screen, "password for dev:", func() { _, _ = io.WriteString(keyboard, "opensesame\n") })
	if err := cmd.Run(); err != nil {
		t.Fatalf("make deps: %v\n%s", err, screen.String())
	}
	if out, err := n.sh(t, "go version && softhsm2-util --version && npm --version"); err != nil {
		t.Errorf("not installed: %v\n%s\n%s", err, out, screen.String())
	}
	if out, err := n.sh(t, "find . ! -user dev"); err != nil || out != "" {
		t.Errorf("these are not the user's (%v):\n%s", err, out)
	}
}

// onText returns a writer into w. It calls do once, when text has been written.
func onText(w *bytes.Buffer, text string, do func()) io.Writer {
	done := false
	return writer(func(p []byte) (int, error) {
		n, err := w.Write(p)
		if !done && strings.Contains(w.String(), text) {
			done = true
			do()
		}
		return n, err
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

const adminPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// person is a user of a machine with a clone of this commit in their home.
type person struct {
	*machine
	name    string
	environ []string
}

func newcomer(t *testing.T, suite, user string) *person {
	t.Helper()
	need(t, "git", "unshare")
	m := newTree(t, suite, "git,make")
	likeHere(t, m)
	p := &person{machine: m, name: user, environ: append(carried(t), "LANG=C.UTF-8", "PATH="+adminPath)}
	home := "/root"
	if user != "root" {
		home = "/home/" + user
		m.run(t, "useradd --create-home --shell /bin/bash "+user)
		p.environ = append(p.environ, "PATH=/usr/local/bin:/usr/bin:/bin")
	}
	p.environ = append(p.environ, "HOME="+home)
	host(t, "git", "clone", "--quiet", "--no-hardlinks", "..", m.root+home+"/attestd")
	m.run(t, "chown -R "+user+": "+home+"/attestd")
	return p
}

// likeHere copies this machine's network settings into the tree: name servers, added certificates and apt's proxy.
func likeHere(t *testing.T, m *machine) {
	t.Helper()
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
		host(t, "cp", "--dereference", file, m.root+file)
	}
	const certificates = "/usr/local/share/ca-certificates"
	if _, err := os.Stat(certificates); err == nil {
		host(t, "cp", "-rL", certificates, m.root+filepath.Dir(certificates))
	}
	if _, err := exec.LookPath("apt-config"); err == nil {
		all := host(t, "apt-config", "dump", "--format", "%F %v%n")
		var own strings.Builder
		for _, option := range regexp.MustCompile(`(?m)^(Acquire::(?:https?::|Check-)\S*) (.+)$`).FindAllStringSubmatch(
			all, -1) {
			fmt.Fprintf(&own, "%s %q;\n", option[1], option[2])
		}
		if err := os.WriteFile(m.root+"/etc/apt/apt.conf.d/90test", []byte(own.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// carried returns the environment variables that configure package sources.
func carried(t *testing.T) []string {
	t.Helper()
	var environ []string
	proxies := regexp.MustCompile(`(?i)^((https?|ftp|all|no)_proxy|npm_config_registry)=`)
	for _, v := range os.Environ() {
		if proxies.MatchString(v) {
			environ = append(environ, v)
		}
	}
	for _, name := range []string{"GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE"} {
		environ = append(environ, name+"="+strings.TrimSpace(host(t, "go", "env", name)))
	}
	if _, err := exec.LookPath("npm"); err == nil {
		registry, err := exec.CommandContext(t.Context(), "npm", "config", "get", "registry").Output()
		if err != nil {
			t.Fatalf("npm config get registry: %v", err)
		}
		environ = append(environ, "npm_config_registry="+strings.TrimSpace(string(registry)))
	}
	return environ
}

// command returns a shell command in the person's clone. All of its processes end when ctx ends.
func (p *person) command(ctx context.Context, line string) *exec.Cmd {
	const enter = `mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$0/dev/pts" &&
		user=$1 && shift && exec chroot --userspec="$user" "$0" env -i "$@"`
	args := []string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enter, p.root, p.name + ":"}
	args = append(append(args, p.environ...), "sh", "-c", `cd ~/attestd && eval "$0"`, line)
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func (p *person) sh(t *testing.T, line string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	out, err := p.command(ctx, line).CombinedOutput()
	return string(out), errors.Join(err, ctx.Err())
}

// admin runs a line as root in the same clone. The line must succeed.
func (p *person) admin(t *testing.T, line string) {
	t.Helper()
	root := person{p.machine, "root", append(slices.Clone(p.environ), "PATH="+adminPath)}
	if out, err := root.sh(t, line); err != nil {
		t.Fatalf("as root: %s: %v\n%s", line, err, out)
	}
}

// makeRun runs `make run`, pastes the lines of its banner, opens the playground, and ends it with Ctrl-C. It returns
// the signer's address.
func (p *person) makeRun(t *testing.T) string {
	t.Helper()
	started := time.Now()
	screen := filepath.Join(filepath.Dir(p.root), "screen")
	file, err := os.Create(screen)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := p.command(t.Context(), "make run ARGS='--listen 127.0.0.1:0'")
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	banner := waitFor(t, screen, "Ctrl-C stops it", 30*time.Minute, ended)
	said := beforeBanner(t, banner)
	signer := p.paste(t, banner)
	t.Logf("make run as %s: %s until the first attestation. It says:\n%s", p.name,
		time.Since(started).Round(time.Second), said)
	p.seePlayground(t, banner)

	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(3 * time.Minute):
		t.Error("Ctrl-C does not end it")
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	return signer
}

// waitFor returns the content of a file once it contains the text.
func waitFor(t *testing.T, file, text string, patience time.Duration, ended chan error) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte(text)) {
			return string(content)
		}
		select {
		case err := <-ended:
			content, _ := os.ReadFile(file)
			t.Fatalf("it ends before it says %q: %v\n%s", text, err, tail(string(content), 60))
		case <-deadline:
			t.Fatalf("it does not say %q within %s\n%s", text, patience, tail(string(content), 60))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// beforeBanner returns the output before the banner, and checks that it has at most 12 lines.
func beforeBanner(t *testing.T, screen string) string {
	t.Helper()
	banner := regexp.MustCompile(`\n\s*attestd .* a throwaway appliance in`).FindStringIndex(screen)
	if banner == nil {
		t.Fatalf("there is no banner:\n%s", screen)
	}
	before := screen[:banner[0]]
	if lines := strings.Count(before, "\n"); lines > 12 {
		t.Errorf("it says %d lines before the banner", lines)
	}
	return before
}

// paste runs the lines of the banner unchanged, and returns the signer's address.
func (p *person) paste(t *testing.T, banner string) string {
	t.Helper()
	lines := regexp.MustCompile(`(?m)^(curl|\S*attestd) .*$`).FindAllString(banner, -1)
	if len(lines) < 4 {
		t.Fatalf("the banner has %d lines to paste:\n%s", len(lines), banner)
	}
	signer := ""
	for _, line := range lines {
		out, err := p.sh(t, line)
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		if strings.Contains(line, "/attest ") {
			signer = signerOf(t, out)
		}
	}
	return signer
}

func signerOf(t *testing.T, attestation string) string {
	t.Helper()
	var a struct {
		SignerAddress string
		Signature     struct{ R string }
	}
	if err := json.Unmarshal([]byte(attestation), &a); err != nil || a.SignerAddress == "" || a.Signature.R == "" {
		t.Fatalf("no attestation (%v): %s", err, attestation)
	}
	return a.SignerAddress
}

func (p *person) seePlayground(t *testing.T, banner string) {
	t.Helper()
	page := regexp.MustCompile(`http://\S+/graphiql`).FindString(banner)
	body, err := p.sh(t, "curl -fsS "+page)
	script := regexp.MustCompile(`/graphiql/assets/[\w.-]+\.js`).FindString(body)
	if err != nil || script == "" {
		t.Fatalf("%s is not the playground (%v):\n%s", page, err, body)
	}
	if _, err := p.sh(t,
		"curl -fsS --compressed -o /dev/null "+strings.TrimSuffix(page, "/graphiql")+script); err != nil {
		t.Errorf("%s: %v", script, err)
	}
}

// A test may skip for its kind or for its user, but not because a program is missing.
var maySkip = regexp.MustCompile(
	`root may|only root|needs root|root's commands|cannot mount|no file system .*can be (mounted|made)|(serves|asks for) Benchmark\w+ alone|asks for -drills`)

// makeTest runs `make test`. Its output goes to a file in bin.
func (p *person) makeTest(t *testing.T) {
	t.Helper()
	started := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Minute)
	defer cancel()
	name := filepath.Join("..", "bin", "make-test-in-"+
		strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "TestFresh/"))+".json")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := p.command(ctx, "make test TESTFLAGS='-race -timeout 30m -json'")
	cmd.Stdout, cmd.Stderr = file, file
	runErr := errors.Join(cmd.Run(), ctx.Err())
	printed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	results := testResults(printed)
	for test, out := range results["fail"] {
		t.Errorf("%s fails:\n%s", test, tail(out, 40))
	}
	for test, out := range results["skip"] {
		if !maySkip.MatchString(out) && !strings.Contains(out, "[no test files]") {
			t.Errorf("%s is skipped:\n%s", test, out)
		}
	}
	if runErr != nil {
		t.Errorf("make test: %v. All that it printed is in %s; it ends:\n%s", runErr, name, tail(string(printed), 5))
	}
	t.Logf("make test as %s: %s, %d passed", p.name, time.Since(started).Round(time.Second), len(results["pass"]))
}

// testResults returns the output of each test and package, by result: pass, fail or skip.
func testResults(stream []byte) map[string]map[string]string {
	printed := map[string]string{}
	results := map[string]map[string]string{"pass": {}, "fail": {}, "skip": {}}
	for line := range bytes.Lines(stream) {
		var event struct{ Action, Package, Test, Output string }
		if json.Unmarshal(line, &event) != nil {
			continue // output of make or of the compiler
		}
		test := event.Package + " " + event.Test
		if event.Action == "output" {
			printed[test] += event.Output
		} else if ended := results[event.Action]; ended != nil {
			ended[test] = printed[test]
		}
	}
	return results
}
