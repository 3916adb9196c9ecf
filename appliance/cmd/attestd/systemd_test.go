package main

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// manager is a service manager's socket for a daemon's reports.
type manager struct {
	testing.TB
	conn *net.UnixConn
	path string
}

func newManager(tb testing.TB) *manager {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return &manager{tb, conn, path}
}

// next returns the next report.
func (m *manager) next() string {
	m.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(daemontest.Patience)); err != nil {
		m.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := m.conn.Read(b)
	if err != nil {
		m.Fatal("no report: ", err)
	}
	return string(b[:n])
}

// until returns the first report with that prefix. Only allowed reports may precede it.
func (m *manager) until(prefix string, allowed ...string) string {
	m.Helper()
	for {
		report := m.next()
		if strings.HasPrefix(report, prefix) {
			return report
		}
		if !slices.Contains(allowed, report) {
			m.Fatalf("reported %q before %q", report, prefix)
		}
	}
}

func TestTheServiceManagerIsToldOfReadinessReloadsLifeAndTheEnd(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	d := daemontest.New(t)
	d.Cmd = d.Command("serve")
	d.Cmd.Env = append(d.Cmd.Env, "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=200000")
	if err := d.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.End)
	m.until("READY=1")
	for range 5 {
		m.until("WATCHDOG=1")
	}
	d.Signal(t, syscall.SIGHUP)
	if report := m.until("RELOADING=1", "WATCHDOG=1"); !strings.Contains(report, "\nMONOTONIC_USEC=") {
		t.Errorf("%q does not tell when", report)
	}
	m.until("READY=1", "WATCHDOG=1")
	// After a refused configuration, the daemon is still ready.
	d.Write(t, "attestd.yaml", "log: { level: loud }\n")
	d.Signal(t, syscall.SIGHUP)
	m.until("RELOADING=1", "WATCHDOG=1")
	m.until("READY=1", "WATCHDOG=1")
	d.Signal(t, syscall.SIGTERM)
	m.until("STOPPING=1", "WATCHDOG=1")
	m.conn.Close() // further reports are not read
	if err := d.Cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.Log())
	}
}

func TestASocketThatIsHandedOverServesInPlaceOfListen(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()

	// A client that connects before the daemon starts waits in the socket's queue.
	early := make(chan error, 1)
	go func() { early <- healthy("http://" + l.Addr().String()) }()

	// exec keeps the shell's process id, so that LISTEN_PID is right: sd_listen_fds(3).
	program, err := exec.LookPath("attestd")
	if err != nil {
		t.Fatal(err)
	}
	d.Cmd = exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=api exec "$0" serve`, program)
	d.Cmd.ExtraFiles = []*os.File{socket}
	d.Cmd.Env = append(os.Environ(), "ATTESTD_CONFIG="+filepath.Join(d.Dir, "attestd.yaml"),
		softhsm.ConfVariable+"="+filepath.Join(d.Dir, "softhsm2.conf"))
	if err := d.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := <-early; err != nil {
		t.Errorf("at the socket: %v", err)
	}
	if err := healthy(d.URL); err == nil {
		t.Error("server.listen is served beside the socket")
	}
	d.Signal(t, syscall.SIGTERM)
	if err := d.Cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.Log())
	}
	// The service manager owns the socket, which outlives the daemon.
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Errorf("after the daemon: %v", err)
		return
	}
	c.Close()
}

func healthy(url string) error {
	c := &http.Client{Timeout: daemontest.Patience}
	defer c.CloseIdleConnections()
	resp, err := c.Get(url + "/healthz")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
