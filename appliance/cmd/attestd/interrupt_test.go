package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
)

func TestAnInterruptedCopySaysWhatItHasKept(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	interrupted := interruptedError{fmt.Errorf("store copy: %w",
		&archive.Interrupted{Kept: 1000, Of: 2500, Cause: errors.New("signal")})}
	if status := exitStatus(&stderr, interrupted, false); status != 130 {
		t.Errorf("exit status %d, want 130", status)
	}
	if want := "store copy: interrupted: 1000 of 2500 records are copied; repeat the command to continue"; !strings.Contains(stderr.String(), want) {
		t.Errorf("%q, want %q", stderr.String(), want)
	}
}

// stuck is a daemon that answers slowly and never completes an answer.
func stuck(t *testing.T, l net.Listener, asked chan<- string) {
	t.Helper()
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/status":
				io.WriteString(w, `{"version":"x"}`)
				return
			case "/log/checkpoint":
				io.WriteString(w, "example.com/log\n1\n"+strings.Repeat("A", 43)+"=\n")
				return
			case "/replica":
				io.WriteString(w, `{"rows":{}}`)
				return
			}
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			asked <- r.URL.Path
			<-r.Context().Done()
		})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// Ctrl-C ends each long command with status 130. The command says how much of its work is kept, and leaves no partial
// files.
func TestCtrlCEndsWhatTakesLong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"backup":         {[]string{"backup", "backup.tar.zst"}, "no backup was made"},
		"a folder's":     {[]string{"backup", "."}, "no backup was made"},
		"log export":     {[]string{"log", "export"}, "interrupted after 0 records; to continue, give --from 0"},
		"log verify":     {[]string{"log", "verify"}, "no result; the data is unchanged"},
		"log list":       {[]string{"log", "list"}, "interrupted; no files are left over"},
		"replica export": {[]string{"replica", "export", "rows.ndjson.zst"}, "rows.ndjson.zst was not written"},
		"replica verify": {[]string{"replica", "verify"}, "no result; the data is unchanged"},
		"made-up data": {[]string{"replica", "generate"},
			"0 rows are in the replica; run the same command again to continue"},
		"hsm status": {[]string{"hsm", "status"}, "interrupted; no files are left over"},
		"attest": {[]string{"attest", "--unspendable", devUnspendable, "--beneficiary", devBeneficiary,
			"--idempotency-key", "my own"},
			"the attestation may exist: to get the same one, repeat the command with --idempotency-key 'my own'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, asked := stuckAppliance(t)
			cmd := exec.CommandContext(t.Context(), "attestd", append(test.args, "--config", "c.yaml")...)
			cmd.Dir = dir
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-asked:
			case <-time.After(daemontest.Patience):
				t.Error("the daemon was asked for nothing")
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != exitInterrupted ||
				!strings.Contains(stderr.String(), test.says) {
				t.Errorf("exit status %d and %q, want %d and %q", got, stderr.String(), exitInterrupted, test.says)
			}
			nothingLeft(t, dir)
		})
	}
}

// stuckAppliance is a folder with an API key and the configuration of a stuck daemon.
func stuckAppliance(t *testing.T) (dir string, asked chan string) {
	t.Helper()
	dir, asked = t.TempDir(), make(chan string, 10)
	socket, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	api, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stuck(t, socket, asked)
	stuck(t, api, asked)
	text := fmt.Sprintf("data_dir: data\nadmin: { socket: s }\nserver: { listen: %q }\n", api.Addr())
	for file, text := range map[string]string{"c.yaml": text, "api-key": "secret"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, asked
}

func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if name := e.Name(); name != "s" && name != "c.yaml" && name != "api-key" {
			t.Errorf("%s is left behind", name)
		}
	}
}
