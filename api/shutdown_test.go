package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

func TestShutdownFinishesWhatWasAccepted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, release := r.signer.close()
	inFlight := make(chan answer, 1)
	go func() { inFlight <- r.attest() }()
	<-entered
	down := make(chan error, 1)
	go func() { down <- r.server.Shutdown(context.Background()) }()
	r.waitRefused()
	select {
	case err := <-down:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	release()
	if a := <-inFlight; a.status != 200 || !a.last {
		t.Errorf("%s %v", a, a.header)
	}
	r.must(<-down)
	r.must(<-r.served)
	if r.size() != 1 {
		t.Error("it was not recorded")
	}
}

// waitRefused returns when the server accepts no more connections.
func (r *rig) waitRefused() {
	r.Helper()
	for until := time.Now().Add(patience); time.Now().Before(until); {
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			return
		}
		c.Close()
	}
	r.Fatal("connections are still accepted")
}

func TestShutdownGivesUpWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entered, release := r.signer.close()
	defer release()
	w := r.dial()
	w.send("POST " + attestPath + " HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + r.token +
		"\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(good)) + "\r\n\r\n" + good)
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := io.ReadAll(w.in); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is still there")
	}
}

func TestARequestThatComesDuringShutdownIsRefused(t *testing.T) {
	t.Parallel()
	active := make(chan struct{}, 100)
	r := newRig(t)
	second, err := api.New(testOptions(r.attestor))
	r.must(err)
	second.OnState(func(_ net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateActive {
			active <- struct{}{}
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	go second.Serve(ln)
	r.address = ln.Addr().String()

	w, probe := r.dial(), r.dial()
	for _, c := range []*rawConn{w, probe} {
		c.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		c.receive()
		<-active
		c.send("GET /log/che")
		<-active // the server has seen the start of the next request
	}
	down := make(chan error, 1)
	go func() { down <- second.Shutdown(context.Background()) }()
	r.waitRefused()
	w.send("ckpoint HTTP/1.1\r\nHost: x\r\n\r\n")
	if a := w.receive(); a.status != 503 || a.problem().Code != appliance.CodeShuttingDown || !a.last ||
		a.header.Get("Retry-After") == "" || a.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("%s %v", a, a.header)
	}
	w.receiveEnd()
	probe.send("ckpoint HTTP/1.1\r\nHost: x\r\n\r\n")
	probe.receive()
	r.must(<-down)
}

func TestServingAfterShutdownReturnsAtOnce(t *testing.T) {
	t.Parallel()
	s, err := api.New(testOptions(&attest.Attestor{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(ln); err != nil {
		t.Error(err)
	}
}
