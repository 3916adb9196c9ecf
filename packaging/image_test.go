//go:build packages

package packaging

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// imageConfig is the part of an image's configuration that a container runtime reads, in Docker's format.
type imageConfig struct {
	User, WorkingDir     string
	Env, Entrypoint, Cmd []string
	Volumes              map[string]struct{}
	Healthcheck          struct{ Test []string }
}

// container is an unpacked image. Its commands run as in a container runtime, without the runtime's own additions.
type container struct {
	root   string
	config imageConfig
	env    []string
}

// TestImage builds an image with SoftHSM, runs it and stops it, also with the configuration of the Helm chart.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may unpack an image and run it")
	}
	need(t, "mmdebstrap", "buildah", "unshare", "chroot")
	made, again := buildImage(t), buildImage(t)
	if a, b := sum(t, made+".oci.tar"), sum(t, again+".oci.tar"); a != b {
		t.Errorf("built twice, not the same bytes: %s and %s", a, b)
	}
	c := unpack(t, made+".docker.tar")
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(c.config.User) {
		t.Errorf("its user is %q, not a number that is not root", c.config.User)
	}
	for _, volume := range []string{"/etc/attestd", "/var/lib/attestd"} {
		if _, is := c.config.Volumes[volume]; !is {
			t.Errorf("%s is no volume: %v", volume, c.config.Volumes)
		}
	}
	if out := host(t, "find", c.root, "-xdev", "-path", "*/attestd*", "-perm", "/022", "!", "-type", "l"); out != "" {
		t.Errorf("others may write:\n%s", out)
	}
	listen := freeAddress(t)
	c.env = append(c.env, "ATTESTD_SERVER_LISTEN="+listen)
	check := c.config.Healthcheck.Test
	if len(check) < 2 || check[0] != "CMD" {
		t.Fatalf("health check: %v", check)
	}
	if out, err := c.command(t.Context(), check[1:]...).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "no daemon listens") {
		t.Errorf("healthy before it runs: %v %s", err, out)
	}
	if out, err := c.command(t.Context(),
		append(c.config.Entrypoint, "setup", "--yes")...).CombinedOutput(); err != nil {
		t.Fatalf("setup: %v\n%s", err, out)
	}
	attestInImage(t, c, listen)
	useChart(t, c)
	attestInImage(t, c, listen)
}

// useChart replaces the configuration by the one that the chart renders, and puts the PIN and the log's key where the
// chart's Secrets have them, with their mode and owner.
func useChart(t *testing.T, c *container) {
	t.Helper()
	var made struct{ HSM struct{ URI, Address string } }
	file := filepath.Join(c.root, "etc/attestd/attestd.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}
	at, _, ok := strings.Cut(made.HSM.URI, "pin-source=")
	if !ok {
		t.Fatalf("hsm.uri without pin-source: %s", made.HSM.URI)
	}
	_, group, _ := strings.Cut(c.config.User, ":")
	gid, err := strconv.Atoi(group)
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"etc/attestd/pin": "run/secrets/attestd/pin", "var/lib/attestd/log.key": "run/secrets/log/log.key",
	} {
		secret := filepath.Join(c.root, to)
		if err := os.MkdirAll(filepath.Dir(secret), 0o755); err != nil {
			t.Fatal(err)
		}
		host(t, "mv", filepath.Join(c.root, from), secret)
		if err := errors.Join(os.Chown(secret, 0, gid), os.Chmod(secret, 0o440)); err != nil {
			t.Fatal(err)
		}
	}
	values := fmt.Sprintf("image: { tag: 1.0.0 }\npin: { secret: p }\nlogKey: { secret: l }\nconfig:\n"+
		"  journal: { origin: example.com/log }\n  hsm: { uri: %q, address: %q }\n",
		at+"pin-source=file:/run/secrets/attestd/pin", made.HSM.Address)
	manifests := render(t, buildCharts(t), values)
	rendered := find(t, manifests, "ConfigMap").Data["attestd.yaml"]
	if err := os.WriteFile(file, []byte(rendered), 0o644); err != nil {
		t.Fatal(err)
	}
	prepare := find(t, manifests, "StatefulSet").Spec.Template.Spec.InitContainers[0].Command
	if out, err := c.command(t.Context(), prepare...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", prepare, err, out)
	}
}

// attestInImage runs the image's daemon until it has made one attestation.
func attestInImage(t *testing.T, c *container, listen string) {
	t.Helper()
	check := c.config.Healthcheck.Test
	var log bytes.Buffer
	daemon := c.command(context.Background(), append(slices.Clone(c.config.Entrypoint), c.config.Cmd...)...)
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	healthy := func() error { return c.command(t.Context(), append(check[1:], "--ready")...).Run() }
	for deadline := time.Now().Add(3 * time.Minute); healthy() != nil; {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, log.String())
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = daemon.Process.Kill()
			t.Fatalf("not healthy after a minute\n%s", log.String())
		}
	}
	key, err := os.ReadFile(filepath.Join(c.root, "etc/attestd/api-key"))
	if err != nil {
		t.Fatal(err)
	}
	if got := post(t, "http://"+listen+"/functions/v1/attest", strings.TrimSpace(string(key))); !strings.Contains(got,
		"signerAddress") {
		t.Errorf("attest: %s", got)
	}
	stop(t, daemon.Process.Pid)
	if err := <-ended; err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
	if err := healthy(); err == nil {
		t.Error("healthy after it ended")
	}
}

// stop terminates process 1 of the namespace that unshare runs, as a container runtime does.
func stop(t *testing.T, unshare int) {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", unshare, unshare))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// TestContainerDocumentIsTyped runs the commands of docs/container.md with podman.
func TestContainerDocumentIsTyped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes the image here")
	}
	need(t, "mmdebstrap", "buildah", "podman")
	made := buildImage(t)
	private(t)
	loaded := host(t, "podman", "load", "--quiet", "--input", made+".docker.tar")
	_, image, _ := strings.Cut(strings.TrimSpace(loaded), "Loaded image: ")
	if out, err := tryHost(t, "podman", "run", "--rm", image, "version"); err != nil {
		t.Skipf("podman runs no container on this machine: %v\n%s", err, out)
	}
	text, err := os.ReadFile("../docs/container.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Run it\n")
	_, block, _ := strings.Cut(section, "```console\n")
	block, _, _ = strings.Cut(block, "```")
	if !strings.HasPrefix(block, "$ podman load") {
		t.Fatalf("docs/container.md has another beginning: %s", block)
	}
	listen := freeAddress(t)
	script := strings.NewReplacer("$ ", "", "dist/attestd_VERSION_ARCH-softhsm", made, "localhost/attestd:TAG", image,
		"127.0.0.1:8080", listen).Replace("\n" + block)
	// A person would wait for the container between the lines.
	script = strings.Replace(script, "\npodman exec",
		"\nfor i in $(seq 600); do podman exec attestd attestd health >/dev/null 2>&1 && break; sleep 0.1; done\npodman exec", 1)
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "podman", "rm", "--force", "--time", "10", "attestd").Run()
	})
	if out, err := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	host(t, "podman", "healthcheck", "run", "attestd")
	key := host(t, "podman", "exec", "attestd", "cat", "/etc/attestd/api-key")
	if got := post(t, "http://"+listen+"/functions/v1/attest", strings.TrimSpace(key)); !strings.Contains(got,
		"signerAddress") {
		t.Errorf("attest: %s", got)
	}
}

// private makes podman store everything in a temporary folder and work inside a container.
func private(t *testing.T) {
	t.Helper()
	podman, err := exec.LookPath("podman")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "podman-") // podman needs a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	options := "--root " + dir + "/storage --runroot " + dir + "/run --storage-driver vfs --cgroup-manager cgroupfs"
	if _, err := exec.LookPath("runc"); err == nil {
		options += " --runtime runc"
	}
	script := `#!/bin/sh
command=$1; shift
[ "$command" != run ] || set -- --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
exec ` + podman + " " + options + ` "$command" "$@"
`
	if err := os.WriteFile(filepath.Join(dir, "podman"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// buildImage returns the path of an image without the extensions of its two formats.
func buildImage(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "image.sh")
	cmd.Env = append(os.Environ(), "OUT="+t.TempDir(), "SOFTHSM=yes", "SOURCE_DATE_EPOCH="+commitDate(t))
	out, err := cmd.Output()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		t.Fatalf("image.sh: %v\n%s", err, exit.Stderr)
	}
	m := regexp.MustCompile(`(?m)(/\S+)\.oci\.tar$`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("image.sh names no image: %v\n%s", err, out)
	}
	return string(m[1])
}

func unpack(t *testing.T, tarball string) *container {
	t.Helper()
	dir, c := t.TempDir(), &container{root: filepath.Join(t.TempDir(), "root")}
	host(t, "tar", "-x", "-C", dir, "-f", tarball)
	var manifest []struct {
		Config string
		Layers []string
	}
	var image struct{ Config imageConfig }
	readJSON(t, filepath.Join(dir, "manifest.json"), &manifest)
	readJSON(t, filepath.Join(dir, manifest[0].Config), &image)
	c.config, c.env = image.Config, image.Config.Env
	if err := os.Mkdir(c.root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, layer := range manifest[0].Layers {
		host(t, "tar", "-x", "-C", c.root, "-f", filepath.Join(dir, layer))
	}
	for d := c.root; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // the container's user must reach the folder
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// command returns a program in a container: with its files, user, variables and PID namespace, and without new
// privileges.
func (c *container) command(ctx context.Context, args ...string) *exec.Cmd {
	line := []string{
		"--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
		`mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && cd "$0" && exec "$@"`, c.root,
		"setpriv", "--no-new-privs", "chroot", "--userspec=" + c.config.User, c.root,
		"env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
	}
	return exec.CommandContext(ctx, "unshare", slices.Concat(line, c.env, args)...)
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func post(t *testing.T, url, key string) string {
	t.Helper()
	body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, unspendable, beneficiary)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Api-Key", key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
