package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance/attest"
)

// scarce is a listener that first fails for want of descriptors.
type scarce struct {
	net.Listener
	mu       sync.Mutex
	failures []error
}

func (s *scarce) Accept() (net.Conn, error) {
	s.mu.Lock()
	if len(s.failures) > 0 {
		err := s.failures[0]
		s.failures = s.failures[1:]
		s.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
	}
	s.mu.Unlock()
	return s.Listener.Accept()
}

func TestWhatPassesIsWaitedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	var failures []error
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED} {
		failures = append(failures, os.NewSyscallError("accept4", errno))
	}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(&scarce{Listener: ln, failures: failures}) }()
	r.address = ln.Addr().String()
	r.dial().answers(alive)
	r.await("attestd_accept_failures_total", float64(len(failures)))
	if !strings.Contains(r.logs.String(), "LimitNOFILE") {
		t.Error("the log names no remedy")
	}
}

func TestAnErrorThatDoesNotPassEndsServing(t *testing.T) {
	t.Parallel()
	s, err := api.New(testOptions(&attest.Attestor{}))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := s.Serve(&scarce{Listener: ln, failures: []error{syscall.EBADF}}); !errors.Is(err, syscall.EBADF) {
		t.Error(err)
	}
}

// TestServingWithFewDescriptors runs a child process, which clients drive to its limit of file descriptors.
func TestServingWithFewDescriptors(t *testing.T) {
	t.Parallel()
	const child = "ATTESTD_TEST_FEW_DESCRIPTORS"
	if os.Getenv(child) != "" {
		serveWithFewDescriptors(t)
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^TestServingWithFewDescriptors$")
	command.Env = append(os.Environ(), child+"=1")
	command.Stderr = os.Stderr
	stop, err := command.StdinPipe()
	must(t, err)
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	r := &rig{TB: t}
	_, err = fmt.Fscanln(out, &r.address)
	must(t, err)
	for range 100 { // far more than it has descriptors
		r.dial()
	}
	for range 3 {
		r.dial().answers(alive)
	}
	must(t, stop.Close())
	must(t, command.Wait())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func serveWithFewDescriptors(t *testing.T) {
	r := newRig(t)
	r.dial().answers(alive) // opens all descriptors that are opened only once
	open, err := os.ReadDir("/proc/self/fd")
	r.must(err)
	few := uint64(len(open) + 20)
	r.must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: few, Max: few}))
	fmt.Println(r.address)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestTheListenerTellsWhetherItAccepts(t *testing.T) {
	t.Parallel()
	s, err := api.New(testOptions(&attest.Attestor{}))
	must(t, err)
	entered, release := make(chan struct{}), make(chan struct{})
	s.OnState(func(_ net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateNew { // inside the accept loop
			close(entered)
			<-release
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		return s.Responds(ctx)
	}
	must(t, ask(patience))
	c, err := net.Dial("tcp", ln.Addr().String())
	must(t, err)
	defer c.Close()
	<-entered
	if err := ask(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a listener that stands still: %v", err)
	}
	close(release)
	must(t, ask(patience))
	must(t, s.Shutdown(context.Background()))
	must(t, <-served)
	must(t, ask(patience))
}
