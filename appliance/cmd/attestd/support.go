package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/doctor"
	"github.com/attestd/attestd/appliance/support"
)

func newSupport(a *app) *cobra.Command {
	return group("support", "What support needs to find a fault: bundle", "", newSupportBundle(a))
}

const (
	supportLines   = "5000"           // of the service's systemd journal
	supportLog     = 8 << 20          // bytes of --log, from its end
	supportTimeout = time.Minute      // of all requests together
	metricsTimeout = 10 * time.Second // of the metrics listener
)

func newSupportBundle(a *app) *cobra.Command {
	var log string
	cmd := &cobra.Command{
		Use:   "bundle FILE",
		Short: "Collect what support needs into one file, without secrets",
		Long: `Write a tar.gz of text files: the configuration, the findings of doctor, the status, the newest lines of the
service's log, the metrics, the daemon's goroutine and heap profiles, and versions. The command works as far as it can
while the daemon does not run, and with an invalid configuration.

PINs, passwords, tokens, API keys, private keys, addresses and digests are removed from every file, by their form and,
as far as the configuration has them, by their value. Read the files before you send them all the same.`,
		Example: `  attestd support bundle attestd-support.tar.gz
  attestd support bundle attestd-support.tar.gz --log /var/log/attestd.log`,
		Args: oneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var names []string
			err := a.writeNew(args[0], func(w io.Writer) (err error) {
				names, err = a.supportBundle(cmd.Context(), w, log)
				return err
			})
			if err != nil {
				return fmt.Errorf("support bundle %s: %w", args[0], err)
			}
			a.say("%s has %s. Read the files before you send them.", args[0], strings.Join(names, ", "))
			return nil
		},
	}
	cmd.Flags().StringVar(&log, "log", "", "file with the daemon's log (default: the journal of the systemd service)")
	return cmd
}

// writeNew creates a file, which must not exist, with mode 0600. After an error it removes the file.
func (a *app) writeNew(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}

// supportBundle writes a bundle and returns its files' names. A file that cannot be collected contains the reason.
func (a *app) supportBundle(ctx context.Context, w io.Writer, log string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, supportTimeout)
	defer cancel()
	c, invalid := a.config(nil)
	bundle := support.New(w, a.redactor(), time.Now())
	admin := func(ask func(*client.Admin) (string, error)) (string, error) {
		if invalid != nil {
			return "", fmt.Errorf("the configuration is invalid")
		}
		running := client.NewAdmin(c.Admin.Socket)
		defer func() { _ = running.Close() }()
		return ask(running)
	}
	for _, file := range []struct {
		name string
		text func() (string, error)
	}{
		{"versions.txt", func() (string, error) { return versions(), nil }},
		{"configuration.yaml", func() (string, error) {
			if invalid != nil {
				return "", invalid
			}
			var text bytes.Buffer
			config.WriteYAML(&text, c.Values())
			return text.String(), nil
		}},
		{"doctor.json", func() (string, error) { return indented(newDoctorResult(doctor.Examine(ctx, a.subject()))) }},
		{"status.json", func() (string, error) {
			return admin(func(running *client.Admin) (string, error) {
				g, err := glanceAt(ctx, c, running)
				if err != nil {
					return "", err
				}
				return indented(g.document())
			})
		}},
		{"log.txt", func() (string, error) { return recentLog(ctx, log) }},
		{"metrics.txt", func() (string, error) {
			if invalid != nil {
				return "", fmt.Errorf("the configuration is invalid")
			}
			return readMetrics(ctx, c.Metrics.Listen)
		}},
		{"goroutines.txt", func() (string, error) {
			return admin(func(running *client.Admin) (string, error) { return running.Profile(ctx, "goroutine") })
		}},
		{"heap.txt", func() (string, error) {
			return admin(func(running *client.Admin) (string, error) { return running.Profile(ctx, "heap") })
		}},
	} {
		text, why := file.text()
		if err := bundle.Add(file.name, text, why); err != nil {
			return nil, err
		}
	}
	return bundle.Names(), bundle.Close()
}

// redactor returns what removes the values of the configuration.
func (a *app) redactor() *support.Redactor {
	redactor := new(support.Redactor)
	raw, _ := os.ReadFile(a.source.Path()) // an unreadable file has no values to remove
	redactor.Learn(string(raw))
	redactor.Learn(strings.Join(a.source.Environ, "\n"))
	return redactor
}

// versions returns the versions of attestd, of its libraries and of the system.
func versions() string {
	var b strings.Builder
	fmt.Fprintf(&b, "attestd %s\n%s %s/%s, %d processors\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU())
	for _, name := range []string{"/etc/os-release", "/proc/version", "/proc/meminfo"} {
		text, _ := os.ReadFile(name) // missing on some systems
		b.Write(text)
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			fmt.Fprintf(&b, "%s %s\n", m.Path, m.Version)
		}
	}
	return b.String()
}

func indented(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text) + "\n", err
}

// recentLog returns the newest lines of a log file or, without a name, of the service's systemd journal.
func recentLog(ctx context.Context, name string) (string, error) {
	if name == "" {
		text, err := exec.CommandContext(ctx, "journalctl", "--unit", "attestd", "--lines", supportLines, "--no-pager",
			"--output", "short-iso").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("journalctl: %w; give the log's file with --log", err)
		}
		return string(text), err
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if stat, err := f.Stat(); err == nil && stat.Size() > supportLog {
		if _, err := f.Seek(-supportLog, io.SeekEnd); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, supportLog))
	return string(text), err
}

// readMetrics returns the daemon's metrics.
func readMetrics(ctx context.Context, address string) (string, error) {
	if address == "" {
		return "", fmt.Errorf("metrics.listen is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
