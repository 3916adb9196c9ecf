package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// take creates or opens the folder, and locks it. It returns an error if another appliance runs there, or if 'attestd
// dev' did not make the folder. It changes no file.
func (d dev) take(ctx context.Context) (folder *os.File, err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	if folder, err = os.Open(d.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = folder.Close()
		}
	}()
	const remedy = "stop it, or choose another folder with --dir"
	err = unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB) // held until this process ends
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.New("another 'attestd dev' uses this folder: " + remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	running := client.NewAdmin(d.path("admin.sock"))
	defer func() { _ = running.Close() }()
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := running.Status(ctx); !errors.Is(err, client.ErrNotRunning) {
		return nil, errors.New("an 'attestd serve' uses this folder: " + remedy)
	}
	return folder, d.ownsConfiguration()
}

// devHeader is the first line of a configuration that 'attestd dev' wrote.
const devHeader = "# Written by 'attestd dev' at each start."

// ownsConfiguration returns an error if the folder has a configuration that 'attestd dev' did not write.
func (d dev) ownsConfiguration() error {
	text, err := os.ReadFile(d.path("attestd.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !bytes.HasPrefix(text, []byte(devHeader)) {
		err = fmt.Errorf(
			"%s was not written by 'attestd dev', which would overwrite it: choose another folder with --dir",
			d.path("attestd.yaml"))
	}
	return err
}

// checkListen validates the environment's values, and refuses a listen address that the daemon would refuse.
func (d dev) checkListen() error {
	c, err := d.source.LoadFile(os.DevNull, map[string]any{"server.listen": d.listen})
	if err != nil {
		return err
	}
	if err := daemon.CheckPlainHTTP(c); err != nil {
		return fmt.Errorf("%w (here: %s=true in the environment)", err, config.EnvName("server.allow_plain_http"))
	}
	return nil
}

// listenAPI opens the API's port. If that fails, it removes the folder if it is still empty.
func (d dev) listenAPI(ctx context.Context) (net.Listener, error) {
	l, err := daemon.Listen(ctx, d.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; for a free port: --listen 127.0.0.1:0", err)
	}
	if err != nil {
		_ = os.Remove(d.dir) // fails if the folder is not empty
	}
	return l, err
}

// The replica's position under demoName is the time at which the demo data was begun, so that the next run can
// continue. It is demoMade once the data is complete.
const (
	demoName = "attestd dev"
	demoMade = "made"
)

// ensureDemoData fills the replica with demo data, unless it has other data or an upstream is configured.
func (d dev) ensureDemoData(ctx context.Context, c *config.Config) (err error) {
	if c.AsksUpstream() || d.transfers == 0 {
		return nil
	}
	data := daemon.KeepReplica(c, newLogger(c, d.err))
	defer func() { err = errors.Join(err, data.Close()) }()
	noted, begun, err := dataset.Into(data).Position(ctx, demoName)
	if err != nil || noted == demoMade {
		return err
	}
	status, err := index.StatusOf(ctx, data)
	if err != nil || !begun && status.Rows[index.TransferType.Name] > 0 {
		return err
	}
	what := "Generating"
	if begun {
		what = "Continuing to generate"
	}
	d.say("%s demo data: %d transfers.", what, d.transfers)
	if _, err := d.makeUp(ctx, dataset.Into(data), demoName,
		dataset.GenerateOptions{Transfers: d.transfers, Seed: 1}); err != nil {
		return err
	}
	return setPosition(ctx, dataset.Into(data), demoName, demoMade)
}

// yaml returns the appliance's configuration. Metrics and console use any free port, so that several appliances can run
// at once. Requests are not logged: the lines would scroll the banner away.
func (d dev) yaml(absolute, uri string) []byte {
	return fmt.Appendf(nil, devHeader+` For a configuration of your own, copy it.
data_dir: %q
server: { listen: %q }
admin: { socket: %q }
metrics: { listen: "127.0.0.1:0" }
console: { listen: "127.0.0.1:0" }
hsm: { uri: %q }
journal: { origin: attestd.invalid/dev }
log: { level: warn } # info logs each request
`, filepath.Join(absolute, "data"), d.listen, filepath.Join(absolute, "admin.sock"), uri)
}
