package api_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
)

// inTheNameOf adds ByHeader to requests.
type inTheNameOf struct {
	name string
	next http.RoundTripper
}

func (n inTheNameOf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(api.ByHeader, n.name)
	return n.next.RoundTrip(r)
}

func TestWhoAsksIsBelievedInsideTheProcessOnly(t *testing.T) {
	t.Parallel()
	o := &adminRig{rig: newRig(t), path: t.TempDir() + "/admin.sock", served: make(chan error, 1)}
	var by string
	o.open(api.AdminOptions{Attestor: o.attestor, Reload: func(name string) ([]string, error) {
		by = name
		return nil, nil
	}})
	inside := api.NewInside()
	go func() { _ = o.admin.Serve(inside) }()

	ours := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return inside.Dial(ctx)
	}}
	defer ours.CloseIdleConnections()
	if _, err := client.NewAdminOver(inTheNameOf{"console: älice", ours}).Reload(t.Context()); err != nil ||
		by != "console: älice" {
		t.Errorf("inside: by %q, %v", by, err)
	}
	theirs := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", o.path)
	}}
	defer theirs.CloseIdleConnections()
	if _, err := client.NewAdminOver(inTheNameOf{"console: alice", theirs}).Reload(t.Context()); err != nil ||
		!strings.Contains(by, "uid") {
		t.Errorf("on the socket: by %q, %v", by, err)
	}
}

func TestNobodyConnectsInsideOnceItIsClosed(t *testing.T) {
	t.Parallel()
	inside := api.NewInside()
	if err := inside.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := inside.Dial(t.Context()); err == nil {
		t.Error("it connected")
	}
	if _, err := inside.Accept(); err == nil {
		t.Error("it accepted")
	}
}
