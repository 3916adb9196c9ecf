package hsmtest

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Server is a p11-kit-server(8) that offers the tokens of another module on a Unix socket, as a network HSM offers its
// own. Module is p11-kit's client module, an implementation independent of SoftHSM. It finds the server through the
// environment Env.
type Server struct {
	Module string
	Env    []string // NAME=value

	tb      testing.TB
	program string
	socket  string
	real    string
	env     []string
	process *exec.Cmd
}

// NewServer starts a server for the tokens of a module, in an environment. The server ends with the test.
func NewServer(tb testing.TB, module string, env ...string) *Server {
	tb.Helper()
	dir, err := os.MkdirTemp("", "attestd-p11kit-") // a test's own folder may be too long for a socket path
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{tb: tb, real: module, env: env, socket: filepath.Join(dir, "socket")}
	s.Env = []string{"P11_KIT_SERVER_ADDRESS=unix:path=" + s.socket}
	if err := s.find(); err != nil {
		tb.Fatalf("hsmtest: %v", err)
	}
	tb.Cleanup(s.Kill)
	s.Start()
	return s
}

// find finds the client module and the server program.
func (s *Server) find() (err error) {
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/pkcs11/p11-kit-client.so",
		"/usr/lib64/pkcs11/p11-kit-client.so"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			s.Module = found[0]
		}
	}
	if s.program, err = exec.LookPath("p11-kit"); err != nil || s.Module == "" {
		return errors.New("p11-kit's server and client are not installed: run `make test-deps`")
	}
	return nil
}

// Start starts the server, and returns when it accepts connections.
func (s *Server) Start() {
	s.tb.Helper()
	_ = os.Remove(s.socket) // a killed server leaves its socket, and a new one cannot reuse it
	s.process = exec.CommandContext(s.tb.Context(), s.program, "server", "--foreground", "--name", s.socket,
		"--provider", s.real, "pkcs11:")
	s.process.Env = append(os.Environ(), s.env...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := s.process.StdoutPipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.tb.Fatal(err)
	}
	// The server prints its address once it listens.
	if line, err := bufio.NewReader(out).ReadString('\n'); !strings.Contains(line, s.socket) {
		s.tb.Fatalf("p11-kit server: %q, %v", line, err)
	}
}

// Kill ends the server together with the processes of its connections.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	_ = syscall.Kill(-s.process.Process.Pid, syscall.SIGKILL)
	_ = s.process.Wait() // reports that the process was killed
	s.process = nil
}
