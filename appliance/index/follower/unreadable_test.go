package follower

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/replica"
)

// full is an upstream that returns full pages of one kind of row. The rows may contain their number.
type full struct {
	row      func(n int) string
	requests int
}

func (u *full) Query(_ context.Context, query string, _ map[string]any) (json.RawMessage, error) {
	if strings.Contains(query, "__schema") {
		return nil, &QueryError{}
	}
	u.requests++
	rows := make([]string, index.MaxLimit)
	for i := range rows {
		rows[i] = u.row(u.requests*index.MaxLimit + i)
	}
	page := "[" + strings.Join(rows, ",") + "]"
	answer := `"n":[],"p0":` + page
	if strings.Contains(query, " p1:") {
		answer += `,"p1":` + page
	}
	return json.RawMessage("{" + answer + "}"), nil
}

// lines is a log that counts its lines.
type lines struct{ n atomic.Int64 }

func (l *lines) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}

func followerOf(t *testing.T, u Upstream, log *slog.Logger) *Follower {
	t.Helper()
	r, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	f := New(Options{Index: r, Upstream: u, PollInterval: time.Hour, RefreshInterval: time.Hour, Overlap: time.Hour,
		Log: log})
	if err := f.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// A page without a usable cursor must not be requested again at once.
func TestPagesThatCannotBeReadAreNotAskedForAtOnceAgain(t *testing.T) {
	t.Parallel()
	var log lines
	u := &full{row: func(int) string { return "{}" }}
	f := followerOf(t, u, slog.New(slog.NewTextHandler(&log, nil)))
	f.packets.live, f.transfers.live = "a", "a"
	for polls := 1; polls < 10; polls++ {
		if err := f.poll(t.Context()); err != nil || u.requests != polls || f.due.poll.Before(time.Now()) {
			t.Fatalf("%v; %d requests in %d polls, the next at %s", err, u.requests, polls, f.due.poll)
		}
	}
	if n := log.n.Load(); n == 0 || n > 200 {
		t.Errorf("%d lines of log", n)
	}
	rows, all, err := f.transfersOf(t.Context(), map[string]bool{"0x01": true})
	if err != nil || len(rows) > 0 || len(all) > 0 {
		t.Errorf("transfers of a packet: %d rows, all of %v, %v", len(rows), all, err)
	}
}

func TestTransfersOfAPacketAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("x", 200<<10)
	u := &full{row: func(n int) string {
		return fmt.Sprintf(
			`{"packet_hash":"0x01","transfer_index":%d,"sort_order":"%[1]d","source_universal_chain_id":"a","destination_universal_chain_id":"b","base_token_name":"%[2]s"}`, n, name)
	}}
	f := followerOf(t, u, nil)
	rows, all, err := f.transfersOf(t.Context(), map[string]bool{"0x01": true})
	size := 0
	for _, row := range rows {
		size += len(row.Bytes())
	}
	if err != nil || len(all) > 0 || size < maxTransferBytes || size > 2*maxTransferBytes {
		t.Errorf("%d rows of %d MiB, all of %v, %v", len(rows), size>>20, all, err)
	}
}
