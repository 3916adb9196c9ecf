package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm/softhsm"
)

// daemonProcess is an appliance in a folder, run as a child process.
type daemonProcess struct {
	dir     string
	url     string
	token   string
	environ []string
	program string              // empty means the attestd of the PATH: see raced
	as      *syscall.Credential // nil means this process's own user
	cmd     *exec.Cmd
}

// newDaemonFolder prepares an appliance in a folder, as `attestd dev` does, without starting it. Its token is a copy:
// all of a test run's appliances have the same attestor key, unless they call newAttestorKey.
func newDaemonFolder(tb testing.TB) *daemonProcess {
	tb.Helper()
	from, err := madeToken()
	if err != nil {
		tb.Fatal(err)
	}
	d := &daemonProcess{dir: tb.TempDir(), program: programFor(tb.Name())}
	if err := copyPrivate(from, d.dir); err != nil {
		tb.Fatal(err)
	}
	listen := freeAddress(tb)
	d.url = "http://" + listen
	folder, err := softhsm.Create(d.dir)
	if err != nil {
		tb.Fatal(err)
	}
	a := &app{terminal: terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr}}
	if _, err := (dev{app: a, dir: d.dir, listen: listen}).fill(context.Background(), folder); err != nil {
		tb.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(d.dir, "api-key"))
	if err != nil {
		tb.Fatal(err)
	}
	d.token = strings.TrimSpace(string(token))
	return d
}

// madeToken returns a folder with a token, and its PINs. A child process makes it: SoftHSM reads SOFTHSM2_CONF, and
// setting that here would change it for tests that run at the same time.
var madeToken = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(sharedDir, "token")
	if err != nil {
		return "", err
	}
	folder, err := softhsm.Create(dir)
	if err != nil {
		return "", err
	}
	return dir, makeToken(folder)
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

// makeToken makes the token of `attestd dev` in a folder.
func makeToken(folder softhsm.Folder) error {
	cmd := exec.Command("attestd", "hsm", "init", "--so-pin-file", filepath.Join(filepath.Dir(folder.Conf), "so-pin"))
	uri := folder.URI(devToken, devObject)
	cmd.Env = append(os.Environ(), softhsm.ConfVariable+"="+folder.Conf, config.EnvName("hsm.uri")+"="+uri.String(),
		config.EnvName("journal.origin")+"=attestd.invalid/dev",
		config.EnvName("data_dir")+"="+filepath.Dir(folder.Conf))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a token: %w\n%s", err, out)
	}
	return nil
}

// newAttestorKey gives the appliance a token with a key that no other appliance has.
func (d *daemonProcess) newAttestorKey(tb testing.TB) {
	tb.Helper()
	if err := os.RemoveAll(filepath.Join(d.dir, "tokens")); err != nil {
		tb.Fatal(err)
	}
	folder, err := softhsm.Create(d.dir)
	if err != nil {
		tb.Fatal(err)
	}
	if err := makeToken(folder); err != nil {
		tb.Fatal(err)
	}
}

// command is attestd on this folder.
func (d *daemonProcess) command(args ...string) *exec.Cmd {
	cmd := exec.Command(cmp.Or(d.program, "attestd"), args...)
	cmd.Env = slices.Concat(os.Environ(), d.environ, []string{
		"ATTESTD_CONFIG=" + filepath.Join(d.dir, "attestd.yaml"),
		softhsm.ConfVariable + "=" + filepath.Join(d.dir, "softhsm2.conf"),
	})
	return cmd
}

// start runs the daemon and returns when it answers. Its log goes to a file: reading a pipe would cost this process and
// the daemon CPU.
func (d *daemonProcess) start(tb testing.TB) {
	tb.Helper()
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		tb.Fatal(err)
	}
	defer log.Close() // the daemon has its own descriptor
	d.cmd = d.command("serve")
	d.cmd.Stderr = log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: d.as}
	if err := d.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	if err := waitReady(filepath.Join(d.dir, "admin.sock")); err != nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		tb.Fatalf("%v\n%s", err, d.log())
	}
}

// log is the daemon's log since its start.
func (d *daemonProcess) log() []byte {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log")) // only shown with another failure
	return text
}

// kill ends the daemon with SIGKILL: no handler runs, and it flushes no data.
func (d *daemonProcess) kill(tb testing.TB) {
	tb.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		tb.Fatal(err)
	}
	_ = d.cmd.Wait() // returns that it was killed
}

// run runs a command on the folder and returns its standard output.
func (d *daemonProcess) run(tb testing.TB, args ...string) string {
	tb.Helper()
	cmd := d.command(args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("attestd %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// The daemon is killed many times while clients attest. Every answered attestation must be in the journal.
func TestDrillEveryAnsweredAttestationSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	const rounds, clients = 20, 16
	d := newDaemonFolder(t)
	answered := make(map[uuid.UUID]appliance.Attestation)
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		d.start(t)
		for _, a := range attestUntilKilled(t, d, clients, 1+random.IntN(300)) {
			answered[a.ID] = a
		}
		// The daemon may have been killed during a commit. The next start must find a whole journal.
		if out := d.run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
			t.Fatal(out)
		}
	}
	recorded, leaves := exported(t, d), strings.Count(d.run(t, "log", "export"), "\n") // with the write-ahead log
	out, held := d.run(t, "backup", filepath.Join(t.TempDir(), "killed.tar.zst")), 0
	count := strings.ReplaceAll(out[strings.Index(out, ": "):], ",", "") // thousands are grouped
	if _, err := fmt.Sscanf(count, ": %d records", &held); err != nil || held < leaves {
		t.Errorf("of %d leaves, a backup has: %s (%v)", leaves, out, err)
	}
	for id, a := range answered {
		if r, ok := recorded[id]; !ok || r.Attestation != a {
			t.Errorf("attestation %s was answered but is not in the journal: %+v", id, r)
		}
	}
	t.Logf("%d kills, %d attestations answered, %d recorded", rounds, len(answered), len(recorded))
	if len(answered) < rounds {
		t.Errorf("only %d attestations were answered: the test did not load the server", len(answered))
	}
}

// attestUntilKilled attests from several clients, and kills the daemon after killAfter answers. It returns all answers.
func attestUntilKilled(t *testing.T, d *daemonProcess, clients, killAfter int) (answered []appliance.Attestation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answers := make(chan appliance.Attestation)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c, err := client.New(d.url, d.token, client.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for i := 0; ctx.Err() == nil; i++ {
				a, err := c.Attest(ctx, randomRequest(), client.AttestOptions{})
				if err != nil {
					return // the daemon was killed
				}
				answers <- a
			}
		})
	}
	go func() { wg.Wait(); close(answers) }()
	for a := range answers {
		answered = append(answered, a)
		if len(answered) == killAfter {
			d.kill(t)
			cancel()
		}
	}
	if len(answered) < killAfter {
		t.Fatalf("only %d of %d attestations before the daemon ended\n%s", len(answered), killAfter, d.log())
	}
	return answered
}

func randomRequest() (r appliance.Request) {
	for i := range r.UnspendableAddress {
		r.UnspendableAddress[i], r.Beneficiary[i] = byte(rand.Uint32()), byte(rand.Uint32())
	}
	return r
}

// exported reads the journal as an auditor does.
func exported(t *testing.T, d *daemonProcess) map[uuid.UUID]appliance.Record {
	t.Helper()
	records := make(map[uuid.UUID]appliance.Record)
	for _, line := range strings.Split(strings.TrimSpace(d.run(t, "log", "export")), "\n") {
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
