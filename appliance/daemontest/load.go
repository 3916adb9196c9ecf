package daemontest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
)

// LongRequests is a setting with which a request may take 30 s, and a call of the HSM 10 s.
const LongRequests = "ATTESTD_SERVER_REQUEST_TIMEOUT=30s"

// AttestWhile attests from several clients, and calls do once they are answered. It returns all answers, and the
// longest time between two. A failed request fails the test.
func (d *Daemon) AttestWhile(t *testing.T, clients int,
	do func()) (answered []appliance.Attestation, outage time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var last time.Time
	first, begun := make(chan struct{}), sync.Once{}
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c, err := client.New(d.URL, d.Token, client.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for ctx.Err() == nil {
				a, err := c.Attest(t.Context(), RandomRequest(), client.AttestOptions{})
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				mu.Lock()
				answered = append(answered, a)
				if now := time.Now(); last.IsZero() {
					last = now
				} else {
					outage, last = max(outage, now.Sub(last)), now
				}
				mu.Unlock()
				begun.Do(func() { close(first) })
			}
		})
	}
	defer all.Wait()
	defer cancel() // also if do ends the test
	select {
	case <-first:
		do()
	case <-time.After(Patience):
		t.Error("nothing is attested")
	}
	cancel()
	all.Wait()
	return slices.Clip(answered), outage
}

// StreamPosition returns the id with which a new stream of events begins.
func (d *Daemon) StreamPosition(t *testing.T) []byte {
	t.Helper()
	answer := d.OpenEvents(t, "")
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if id, is := strings.CutPrefix(lines.Text(), "id: "); is {
			return []byte(id)
		}
	}
	t.Fatal("the stream has no id")
	return nil
}

// OpenEvents opens the stream of attestations, after the event with the id last if that is not empty.
func (d *Daemon) OpenEvents(t *testing.T, last string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL+"/v1/events?types=attestation.*", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Api-Key", d.Token)
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	answer, err := (&http.Client{Timeout: Patience}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	return answer
}

// AwaitSinks waits until the sinks have all records.
func AwaitSinks(admin *client.Admin, names ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := admin.Status(ctx)
		if err != nil {
			return err
		}
		all, err := admin.Sinks(ctx)
		if err != nil {
			return err
		}
		have := 0
		for _, s := range all {
			if slices.Contains(names, s.Name) && s.Next >= status.TreeSize {
				have++
			}
		}
		if have == len(names) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not shipped: %+v", all)
		}
	}
}

// Memory is the resident memory of a process, in bytes.
type Memory struct{ Resident, Anonymous float64 }

// Most returns the larger ones of the numbers.
func (m Memory) Most(now Memory) Memory {
	return Memory{max(m.Resident, now.Resident), max(m.Anonymous, now.Anonymous)}
}

// MemoryOf reads proc_pid_status(5). It returns zero if that fails.
func MemoryOf(pid int) (m Memory) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			m.Resident = kib * 1024
		case "RssAnon:":
			m.Anonymous = kib * 1024
		}
	}
	return m
}
