package api_test

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/hsm/sandbox"
)

// The admin socket closes connections from the HSM's library: from processes with the mark of a worker, and from their
// descendants.
func TestTheSocketRefusesTheHSMsLibrary(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "admin.sock")
	var refused atomic.Int64
	ln, err := api.ListenAdmin(path, func(pid int) error {
		marked, err := sandbox.Marked(pid)
		if marked {
			refused.Add(1)
			err = errors.New("it is the library")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	served := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ReadHeaderTimeout: time.Minute}
	go func() { _ = served.Serve(ln) }()
	t.Cleanup(func() { _ = served.Close() })
	curl := "curl --silent --fail --max-time 60 --unix-socket " + path + " http://attestd/"
	ask := func(command string) error { return exec.CommandContext(t.Context(), "bash", "-c", command).Run() }
	if err := ask(curl); err != nil {
		t.Fatalf("an operator is refused: %v", err)
	}
	const mark = "ulimit -x 0 && "
	for n, command := range []string{mark + curl, mark + "setsid --wait sh -c '" + curl + "'",
		mark + "ulimit -Sx 0; exec " + curl} {
		if err := ask(command); err == nil || refused.Load() != int64(n+1) {
			t.Errorf("%s: %v, refused %d times", command, err, refused.Load())
		}
	}
	if os.Geteuid() != 0 {
		if err := ask(mark + "ulimit -x unlimited && " + curl); err == nil {
			t.Error("a process has taken its mark off")
		}
	}
	if err := ask(curl); err != nil {
		t.Errorf("an operator is refused afterwards: %v", err)
	}
}
