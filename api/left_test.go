package api_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
)

// waiting is a route with a handler that runs until its context or its patience ends.
type waiting struct {
	begun chan struct{}
	ended chan error // the context's error; nil if the handler's patience ended first
}

func newWaiting(patience time.Duration) (waiting, api.Route) {
	w := waiting{begun: make(chan struct{}, 1000), ended: make(chan error, 1000)}
	return w,
		api.Route{Method: fiber.MethodGet, Path: "/waiting", EndsWithClient: true, Handler: func(c *fiber.Ctx) error {
			w.begun <- struct{}{}
			select {
			case <-c.UserContext().Done():
				w.ended <- context.Cause(c.UserContext())
			case <-time.After(patience):
				w.ended <- nil
			}
			return nil
		}}
}

func TestWorkEndsWhenItsClientHasLeft(t *testing.T) {
	t.Parallel()
	const request = "GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, tt := range map[string]struct {
		send  string
		leave func(c *net.TCPConn)
	}{
		"closed":             {request, func(c *net.TCPConn) { c.Close() }},
		"reset":              {request, func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() }},
		"closed behind more": {request + request + "GET", func(c *net.TCPConn) { c.Close() }},
		"reset behind more": {request + request + "GET", func(c *net.TCPConn) {
			_ = c.SetLinger(0)
			c.Close()
		}},
		"closed for writing, then all": {request, func(c *net.TCPConn) { _ = c.CloseWrite(); c.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, route := newWaiting(patience)
			r := newRig(t, func(o *api.Options) { o.Routes = append(o.Routes, route) })
			c, err := net.Dial("tcp", r.address)
			r.must(err)
			_, err = c.Write([]byte(tt.send))
			r.must(err)
			<-w.begun
			tt.leave(c.(*net.TCPConn))
			if err := <-w.ended; err == nil {
				t.Error("it went on")
			}
		})
	}
}

func TestWorkEndsWhenAClientOfTLSHasLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	newAuthority(t).issue("server", filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	mine, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	w, route := newWaiting(patience)
	r := newRig(t, func(o *api.Options) {
		o.Routes, o.TLS = append(o.Routes, route), &tls.Config{Certificates: []tls.Certificate{mine}}
	})
	c, err := tls.Dial("tcp", r.address, &tls.Config{InsecureSkipVerify: true})
	r.must(err)
	_, err = fmt.Fprint(c, "GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n")
	r.must(err)
	<-w.begun
	c.Close() // sends an alert before the end
	if err := <-w.ended; err == nil {
		t.Error("it went on")
	}
}

// A client that waits, or sends more requests in the meantime, has not left.
func TestWorkGoesOnForAClientThatIsThere(t *testing.T) {
	t.Parallel()
	w, route := newWaiting(300 * time.Millisecond)
	r := newRig(t, func(o *api.Options) { o.Routes = append(o.Routes, route) })
	c := r.dial()
	c.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n")
	<-w.begun
	c.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n")
	for range 2 {
		if a := c.receive(); a.status != 200 {
			t.Error(a)
		}
		if err := <-w.ended; err != nil {
			t.Errorf("it was ended: %v", err)
		}
	}
}

// When many clients are reset at once, all their requests end, and the server answers the next client.
func TestManyClientsThatLeaveAtOnceLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const clients = 100
	w, route := newWaiting(patience)
	r := newRig(t, func(o *api.Options) { o.Routes = append(o.Routes, route) })
	conns := make([]*rawConn, clients)
	for i := range conns {
		conns[i] = r.dial()
		conns[i].send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	for range clients {
		<-w.begun
	}
	for _, c := range conns {
		r.must(c.Conn.(*net.TCPConn).SetLinger(0))
		c.Close()
	}
	for range clients {
		if err := <-w.ended; err == nil {
			t.Fatal("it went on")
		}
	}
	if a := r.attest(); a.status != 200 {
		t.Error(a)
	}
}
