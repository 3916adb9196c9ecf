package daemontest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm/softhsm"
)

// Daemon is an appliance in a folder, run as a child process.
type Daemon struct {
	Dir     string // its configuration is attestd.yaml, and its log is log
	URL     string
	Token   string // an API key without a rate limit
	Environ []string
	Program string              // empty means the attestd of the PATH
	As      *syscall.Credential // nil means this process's own user
	Cmd     *exec.Cmd           // the newest start
}

// New prepares an appliance in a folder, as `attestd dev` does, without starting it. Its token is a copy: all of a test
// run's appliances have the same attestor key, unless they call NewAttestorKey. The program of a drill has the race
// detector.
func New(tb testing.TB) *Daemon {
	tb.Helper()
	d := &Daemon{Dir: tb.TempDir(), Program: Program(tb)}
	if strings.HasPrefix(tb.Name(), "TestDrill") {
		d.Program = Raced(tb)
	}
	from, err := madeToken()
	if err == nil {
		err = copyPrivate(from, d.Dir)
	}
	listen := FreeAddress(tb)
	d.URL = "http://" + listen
	if err == nil {
		err = d.fill(listen)
	}
	if err != nil {
		tb.Fatal(err)
	}
	d.Token = strings.TrimSpace(d.Run(tb, "key", "create", "--name", "dev", "--rate", "unlimited"))
	d.Write(tb, "api-key", d.Token+"\n")
	return d
}

// madeToken returns a folder with a token, and its PINs. A child process makes it: SoftHSM reads SOFTHSM2_CONF, and
// setting that here would change it for tests that run at the same time.
var madeToken = sync.OnceValues(func() (string, error) {
	program, err := withoutDetector()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(sharedDir, "token")
	if err != nil {
		return "", err
	}
	d := Daemon{Dir: dir, Program: program}
	if err := d.fill("127.0.0.1:0"); err != nil {
		return "", err
	}
	return dir, d.makeToken()
})

// copyPrivate copies a folder's files, so that only their owner can read them.
func copyPrivate(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		copied := filepath.Join(to, strings.TrimPrefix(path, from))
		if entry.IsDir() {
			return os.MkdirAll(copied, 0o700)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(copied, text, 0o600)
	})
}

// fill writes what SoftHSM needs, except the token, and the configuration of `attestd dev`.
func (d *Daemon) fill(listen string) error {
	folder, err := softhsm.Create(d.Dir)
	if err != nil {
		return err
	}
	uri := folder.URI("attestd-dev", "attestor")
	configuration := fmt.Sprintf(`data_dir: %q
server: { listen: %q }
admin: { socket: %q }
metrics: { listen: "127.0.0.1:0" }
console: { listen: "127.0.0.1:0" }
hsm: { uri: %q }
journal: { origin: attestd.invalid/dev }
log: { level: warn } # info logs each request
`, filepath.Join(d.Dir, "data"), listen, filepath.Join(d.Dir, "admin.sock"), uri.String())
	return errors.Join(os.WriteFile(filepath.Join(d.Dir, "attestd.yaml"), []byte(configuration), 0o600),
		os.WriteFile(filepath.Join(d.Dir, config.EnvironmentName), // every command finds the token by it
			[]byte(softhsm.ConfVariable+"="+folder.Conf+"\n"), 0o600))
}

// makeToken makes the token and its attestor key.
func (d *Daemon) makeToken() error {
	if out, err := d.Command("hsm", "init", "--so-pin-file", filepath.Join(d.Dir, "so-pin")).CombinedOutput(); err != nil {
		return fmt.Errorf("make a token: %w\n%s", err, out)
	}
	return nil
}

// NewAttestorKey gives the appliance a token with a key that no other appliance has.
func (d *Daemon) NewAttestorKey(tb testing.TB) {
	tb.Helper()
	tokens := filepath.Join(d.Dir, "tokens")
	err := errors.Join(os.RemoveAll(tokens), os.Mkdir(tokens, 0o700))
	if err == nil {
		err = d.makeToken()
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Command is attestd on this folder.
func (d *Daemon) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(cmp.Or(d.Program, "attestd"), args...)
	cmd.Env = slices.Concat(os.Environ(), d.Environ, []string{
		"ATTESTD_CONFIG=" + filepath.Join(d.Dir, "attestd.yaml"),
		softhsm.ConfVariable + "=" + filepath.Join(d.Dir, "softhsm2.conf"),
	})
	return cmd
}

// Start runs the daemon and returns when it answers. Its log goes to a file: reading a pipe would cost this process and
// the daemon CPU.
func (d *Daemon) Start(tb testing.TB) {
	tb.Helper()
	log, err := os.Create(filepath.Join(d.Dir, "log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close() // the daemon has its own descriptor
	d.Cmd = d.Command("serve")
	d.Cmd.Stderr = log
	d.Cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.As}
	if err := d.Cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	if err := WaitReady(filepath.Join(d.Dir, "admin.sock")); err != nil {
		d.End()
		tb.Fatalf("%v\n%s", err, d.Log())
	}
}

// Kill ends the daemon with SIGKILL: no handler runs, and it flushes no data.
func (d *Daemon) Kill(tb testing.TB) {
	tb.Helper()
	if err := d.Cmd.Process.Kill(); err != nil {
		tb.Fatal(err)
	}
	_ = d.Cmd.Wait() // returns that it was killed
}

// End kills the daemon if it runs or is stopped.
func (d *Daemon) End() {
	if d.Cmd != nil && d.Cmd.ProcessState == nil {
		_ = d.Cmd.Process.Signal(syscall.SIGCONT)
		_ = d.Cmd.Process.Kill()
		_ = d.Cmd.Wait() // returns that it was killed
	}
}

// Signal sends the daemon a signal.
func (d *Daemon) Signal(tb testing.TB, s os.Signal) {
	tb.Helper()
	if err := d.Cmd.Process.Signal(s); err != nil {
		tb.Fatal(err)
	}
}

// Log is the daemon's log since its start.
func (d *Daemon) Log() []byte {
	text, _ := os.ReadFile(filepath.Join(d.Dir, "log")) // only shown with another failure
	return text
}

// Events is the log without the requests.
func (d *Daemon) Events() []byte {
	return bytes.Join(slices.DeleteFunc(bytes.SplitAfter(d.Log(), []byte("\n")), func(line []byte) bool {
		return bytes.Contains(line, []byte(`"msg":"request"`))
	}), nil)
}

// Run runs a command on the folder and returns its standard output.
func (d *Daemon) Run(tb testing.TB, args ...string) string {
	tb.Helper()
	cmd := d.Command(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("attestd %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// Fails runs a command that must fail, and returns its output.
func (d *Daemon) Fails(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.Command(args...).CombinedOutput()
	if err == nil {
		t.Errorf("attestd %s: succeeded\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}

// Configure adds values to the daemon's environment.
func (d *Daemon) Configure(values ...string) { d.Environ = append(d.Environ, values...) }

// Write writes a file of the folder, with mode 0600.
func (d *Daemon) Write(tb testing.TB, name, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(d.Dir, name), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Ask sends a request to the daemon and returns status and body.
func (d *Daemon) Ask(t testing.TB, method, path, key string, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// Records reads the records of the journal as an auditor does, by their ids.
func (d *Daemon) Records(t *testing.T) map[uuid.UUID]appliance.Record {
	t.Helper()
	records := make(map[uuid.UUID]appliance.Record)
	for _, line := range strings.Split(strings.TrimSpace(d.Run(t, "log", "export")), "\n") {
		if journal.IsEvent([]byte(line)) {
			continue
		}
		var r appliance.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(fmt.Errorf("%w: %s", err, line))
		}
		records[r.ID] = r
	}
	return records
}
