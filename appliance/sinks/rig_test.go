package sinks_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// patience is the time limit of a wait. It is long enough for a loaded machine.
const patience = time.Minute

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// logFile is a real journal in a file.
type logFile struct {
	*bolt.Store
	path string
	key  journal.LogKey
}

func newJournal(t testing.TB) *logFile {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	return openJournal(t, filepath.Join(t.TempDir(), "attestd.db"), key)
}

func openJournal(t testing.TB, path string, key journal.LogKey) *logFile {
	t.Helper()
	s, err := bolt.Open(path, bolt.Options{Signer: key.Signer, Verifier: key.Verifier, MinFree: 1})
	check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return &logFile{s, path, key}
}

// attest appends n records concurrently.
func (j *logFile) attest(t testing.TB, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		r := storetest.Record(t, "aaaaaaaaaaaaaaaa")
		wg.Go(func() {
			if _, _, err := j.Journal().Append(context.Background(), r); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// continued returns the journal continued as another log.
func (j *logFile) continued(t testing.TB) *logFile {
	t.Helper()
	return j.continuedFor(t, "a test")
}

func (j *logFile) continuedFor(t testing.TB, reason string) *logFile {
	t.Helper()
	head, err := j.Journal().Checkpoint(t.Context())
	check(t, err)
	event, err := journal.NewContinuation(j.key, head, nil, reason, "root", time.Now())
	check(t, err)
	key, _, err := j.key.Continue(event)
	check(t, err)
	path := filepath.Join(t.TempDir(), "continued.db")
	check(t, j.ContinueTo(t.Context(), path, event, key, func(int64, int64) {}))
	return openJournal(t, path, key)
}

// ship ships a journal to sinks until the test ends or the shipper is closed.
func (j *logFile) ship(t testing.TB, dir string, to ...sinks.Sink) *sinks.Shipper {
	t.Helper()
	s := sinks.New(sinks.Options{Journal: j.Journal(), Verifier: j.key.Verifier, Cursors: sinks.Folder(dir), Version: "1.2.3",
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	s.Set(to)
	t.Cleanup(func() { stop(s) })
	return s
}

// stop closes a shipper without shipping more.
func stop(s *sinks.Shipper) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Close(ctx)
}

// sink returns a sink with the tests' defaults.
func sink(name string, to sinks.Destination) sinks.Sink {
	return sinks.Sink{
		Name: name, To: to, Format: sinks.FormatJSON, Redact: sinks.RedactAddresses,
		Batch: 10, Bytes: 1 << 20, Interval: time.Millisecond, Timeout: patience,
	}
}

// box is a destination that stores batches. It calls before first.
type box struct {
	mu      sync.Mutex
	taken   []int64 // indexes in order of arrival
	logs    []string
	batches [][]sinks.Message
	came    chan struct{} // holds one element after a batch arrived
	before  func(ctx context.Context, batch []sinks.Message) error
}

func newBox() *box { return &box{came: make(chan struct{}, 1)} }

func (b *box) Send(ctx context.Context, batch []sinks.Message) error {
	b.mu.Lock()
	before := b.before
	b.mu.Unlock()
	if before != nil {
		if err := before(ctx, batch); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range batch {
		b.taken, b.logs = append(b.taken, m.Index), append(b.logs, m.Log)
	}
	b.batches = append(b.batches, batch)
	select {
	case b.came <- struct{}{}:
	default:
	}
	return nil
}

func (b *box) does(before func(ctx context.Context, batch []sinks.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = before
}

func (b *box) Close() error   { return nil }
func (b *box) String() string { return "box" }

func (b *box) indexes() []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.taken)
}

// has waits until the box has n entries.
func (b *box) has(t testing.TB, n int) []int64 {
	t.Helper()
	late := time.After(patience)
	for len(b.indexes()) < n {
		select {
		case <-b.came:
		case <-late:
			t.Fatalf("%d of %d came", len(b.indexes()), n)
		}
	}
	return b.indexes()
}

// until waits for a status of the first sink.
func until(t testing.TB, s *sinks.Shipper, what string, good func(sinks.Status) bool) sinks.Status {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); ; <-tick.C {
		status := s.Status()[0]
		if good(status) {
			return status
		}
		if time.Now().After(late) {
			t.Fatalf("not %s: %+v", what, status)
		}
	}
}

// from returns the indexes from first to end-1.
func from(first, end int64) (all []int64) {
	for i := first; i < end; i++ {
		all = append(all, i)
	}
	return all
}

// indexesOf reads the indexes of shipped JSON lines.
func indexesOf(t testing.TB, lines []string) (all []int64) {
	t.Helper()
	for _, line := range lines {
		var m struct {
			Index int64
			ID    string
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.ID == "" {
			t.Fatalf("%v: %q", err, line)
		}
		all = append(all, m.Index)
	}
	return all
}

var errAway = errors.New("away")

func logName(j *logFile) string { return journal.LogName(j.key.Verifier) }

func withTimeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(context.Background(), d)
}
