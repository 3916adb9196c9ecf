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

// take makes the folder, or takes the one that is there, unless another appliance runs in it or it is not of 'attestd dev'. Nothing
// in it is changed.
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
	const remedy = "stop it, or give this one a folder of its own with --dir"
	err = unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB) // until this process ends
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.New("another 'attestd dev' runs there: " + remedy)
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	running := client.NewAdmin(d.path("admin.sock"))
	defer func() { _ = running.Close() }()
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	if _, err := running.Status(ctx); !errors.Is(err, client.ErrNotRunning) {
		return nil, errors.New("an 'attestd serve' runs there: " + remedy)
	}
	return folder, d.ownsConfiguration()
}

// devHeader begins the configuration of a folder of 'attestd dev'.
const devHeader = "# Written by 'attestd dev' at each start."

// ownsConfiguration returns an error where the configuration is not one that is written at each start.
func (d dev) ownsConfiguration() error {
	text, err := os.ReadFile(d.path("attestd.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !bytes.HasPrefix(text, []byte(devHeader)) {
		err = fmt.Errorf("%s is not of 'attestd dev', which would write over it: give another folder with --dir", d.path("attestd.yaml"))
	}
	return err
}

// checkListen says what is wrong with the environment's values, and refuses an address that the daemon would refuse.
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

// listenAPI takes the port. Where it is not to be had, no folder that this run has made stays.
func (d dev) listenAPI(ctx context.Context) (net.Listener, error) {
	l, err := daemon.Listen(ctx, d.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w; --listen 127.0.0.1:0 takes one that is free", err)
	}
	if err != nil {
		_ = os.Remove(d.dir) // in vain where something is in it
	}
	return l, err
}

// What the replica notes of the demo data: when they were begun, so that the next run goes on with them, and that they are made.
const (
	demoName = "attestd dev"
	demoMade = "made"
)

// ensureDemoData fills the replica, unless something else is in it, or an upstream has the data.
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
	what := "Making"
	if begun {
		what = "Going on making"
	}
	d.say("%s demo data: %d transfers.", what, d.transfers)
	if _, err := d.makeUp(ctx, dataset.Into(data), demoName, dataset.GenerateOptions{Transfers: d.transfers, Seed: 1}); err != nil {
		return err
	}
	return setPosition(ctx, dataset.Into(data), demoName, demoMade)
}

// yaml is the appliance's configuration. Metrics and console take any free port, so that several can run at once, and no line is
// logged for each request: it would drive the banner away.
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
