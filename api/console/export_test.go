package console

import (
	"context"
	"net"
	"os"
	"os/exec"
	"sync"
)

// MostStreams is the maximum number of open streams per session.
const MostStreams = mostStreams

// Issuer starts a real OpenID Connect provider and returns its issuer URL; see browser/provider.mjs. The provider runs
// until EndProvider. Issuer returns "" if the provider is not installed.
var Issuer = sync.OnceValues(startProvider)

// EndProvider stops the provider, if it runs.
var EndProvider = func() {}

func startProvider() (issuer string, err error) {
	if _, err := os.Stat("node_modules/oidc-provider"); err != nil {
		return "", nil //nolint:nilerr // what is not installed is not started
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File() // connections wait until the provider listens
	if err != nil {
		return "", err
	}
	defer socket.Close()
	issuer = "http://" + l.Addr().String()
	cmd := exec.Command("node", "browser/provider.mjs")
	cmd.Env = append(os.Environ(), "ISSUER="+issuer)
	cmd.ExtraFiles = []*os.File{socket}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	EndProvider = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return issuer, nil
}
