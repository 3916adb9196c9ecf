package doctor

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/config"
)

func TestTheReplicasCheckLeavesNoConnectionToTheDaemon(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{}, 1)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				closed <- struct{}{}
			}
		},
	}
	go func() { _ = server.Serve(ln) }()
	p := &subject{config: new(config.Config)}
	p.config.Admin.Socket = socket
	if _, err := p.replicaStatus(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(3 * time.Minute):
		t.Error("the connection stays open")
	}
	_ = server.Close()
}
