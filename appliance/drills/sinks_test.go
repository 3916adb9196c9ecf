package drills

import (
	"bufio"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemontest"
)

// shipped is the messages that a syslog receiver got, one per line, from connections that it has read to their ends.
type shipped struct {
	mu    sync.Mutex
	lines []string
	came  chan struct{}
}

// receiveSyslog accepts connections as a syslog daemon on this machine does.
func receiveSyslog(t *testing.T) (address string, got *shipped) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	got = &shipped{came: make(chan struct{}, 1)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go got.read(conn)
		}
	}()
	return l.Addr().String(), got
}

func (s *shipped) read(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(daemontest.Patience))
	var lines []string
	for in := bufio.NewReader(conn); ; {
		length, err := in.ReadString(' ')
		size, failed := strconv.Atoi(strings.TrimSuffix(length, " "))
		if err != nil || failed != nil {
			break // the end, or the sender was killed
		}
		message := make([]byte, size)
		if _, err := io.ReadFull(in, message); err != nil {
			break
		}
		_, body, _ := strings.Cut(string(message), " - {")
		lines = append(lines, "{"+body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, lines...)
	select {
	case s.came <- struct{}{}:
	default:
	}
}

// The daemon is killed at random moments while it attests and ships. Each sink has every record, and the first copies
// are in order.
func TestDrillNothingIsMissingAtTheSinksAfterSIGKILL(t *testing.T) {
	t.Parallel()
	const rounds, clients = 6, 8
	d := daemontest.New(t)
	address, got := receiveSyslog(t)
	file := filepath.Join(d.Dir, "audit.jsonl")
	sinks, err := json.Marshal([]map[string]any{
		{"name": "siem", "type": "syslog", "url": "tcp://" + address, "batch": 20, "interval": "100ms"},
		{"name": "copy", "type": "file", "path": file, "batch": 20, "interval": "100ms"},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Environ = []string{"ATTESTD_AUDIT_SINKS=" + string(sinks)}
	random := rand.New(rand.NewPCG(3, 4))
	for range rounds {
		d.Start(t)
		attestUntilKilled(t, d, clients, 1+random.IntN(200))
	}
	d.Start(t)
	defer d.Kill(t)
	admin := client.NewAdmin(filepath.Join(d.Dir, "admin.sock"))
	defer admin.Close()
	if err := daemontest.AwaitSinks(admin, "siem", "copy"); err != nil {
		t.Fatal(err)
	}
	status, err := admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	for name, lines := range map[string][]string{"syslog": got.lines,
		"file": strings.Split(strings.TrimSpace(string(text)), "\n")} {
		checkShipped(t, name, lines, status.TreeSize)
	}
}

func checkShipped(t *testing.T, name string, lines []string, want int64) {
	t.Helper()
	var firsts []int64
	seen := make(map[int64]bool)
	for _, line := range lines {
		var m struct {
			Index       int64
			Unspendable string `json:"unspendableAddress"`
			Beneficiary string
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v: %q", name, err, line)
		}
		if m.Unspendable+m.Beneficiary != "" {
			t.Fatalf("%s tells an address: %s", name, line)
		}
		if !seen[m.Index] {
			seen[m.Index] = true
			firsts = append(firsts, m.Index)
		}
	}
	t.Logf("%s: %d lines for %d records", name, len(lines), want)
	if int64(len(firsts)) != want || !slices.IsSorted(firsts) {
		t.Errorf("%s has %d of %d records, in order: %v", name, len(firsts), want, slices.IsSorted(firsts))
	}
}
