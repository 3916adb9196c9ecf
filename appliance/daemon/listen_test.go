package daemon

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance/config"
)

func TestConnectionsLeaveDescriptorsForTheRest(t *testing.T) {
	t.Parallel()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		most, want int
		told       bool
	}{{1, 1, false}, {math.MaxInt32, int(files.Cur) - otherDescriptors, true}} {
		var log bytes.Buffer
		r := &running{config: &config.Config{}, logger: slog.New(slog.NewTextHandler(&log, nil))}
		r.config.Server.MaxConnections = c.most
		if got := r.maxConnections(); got != c.want {
			t.Errorf("server.max_connections %d and %d open files: %d, want %d", c.most, files.Cur, got, c.want)
		}
		if told := strings.Contains(log.String(), "LimitNOFILE"); told != c.told {
			t.Errorf("server.max_connections %d: %s", c.most, log.String())
		}
	}
}
