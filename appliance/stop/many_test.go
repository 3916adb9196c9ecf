package stop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/stop"
)

// memory keeps a switch, and counts the writes and the longest text.
type memory struct {
	text            string
	writes, longest int
}

func (m *memory) Stopped() string { return m.text }

func (m *memory) ChangeStopped(_ context.Context, change func(string) (string, error)) error {
	next, err := change(m.text)
	if err == nil {
		m.text, m.writes, m.longest = next, m.writes+1, max(m.longest, len(next))
	}
	return err
}

func id(i int) string { return fmt.Sprintf("usdc 0x%064x 0x%064x", i, i) }

// 4,700 unknown redemptions halt attesting once. The state stays short, and is not written for each.
func TestAHaltOfManyIsWrittenSeldom(t *testing.T) {
	t.Parallel()
	kept := new(memory)
	s, err := stop.New(kept, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4700 {
		if began, err := s.Halt(t.Context(), id(i), "an unknown redemption"); err != nil || began != (i == 0) {
			t.Fatalf("redemption %d: began %t, %v", i, began, err)
		}
	}
	if kept.writes > 100 || kept.longest > 64<<10 {
		t.Errorf("written %d times, %d bytes at most", kept.writes, kept.longest)
	}
	if _, err := s.Resume(t.Context()); err != nil || s.Stopped() != nil {
		t.Errorf("resume: %v, then %v", err, s.Stopped())
	}
	if began, err := s.Halt(t.Context(), id(0), "again"); began || err != nil {
		t.Errorf("the first one halts again: %v", err)
	}
	if began, err := s.Halt(t.Context(), id(5000), "another"); !began || err != nil {
		t.Errorf("another one does not halt: %v", err)
	}
}

func TestManyAcknowledgedRedemptionsAreBounded(t *testing.T) {
	t.Parallel()
	var long stop.State
	for i := range 1500 {
		long.Acknowledged = append(long.Acknowledged, id(i))
	}
	text, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	kept := &memory{text: string(text)}
	s, err := stop.New(kept, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Halt(t.Context(), id(2999), "an unknown redemption"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := s.State().Acknowledged
	if len(kept.text) > 256<<10 || !slices.Contains(known, id(2999)) || slices.Contains(known, id(0)) {
		t.Errorf("%d are acknowledged, %d bytes", len(known), len(kept.text))
	}
}

// A file that is too long is a halt. The appliance and 'attestd resume' still start.
func TestAFileThatIsTooLongIsAHalt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, stop.FileName)
	if err := os.WriteFile(path, []byte(`{"acknowledged":["`+strings.Repeat("x", 17<<20)+`"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := s.Stopped(); appliance.CodeOf(err) != appliance.CodeHalted || !strings.Contains(err.Error(), path) {
		t.Fatalf("stopped: %v", err)
	}
	if began, err := s.Halt(t.Context(), "a", "an unknown redemption"); err != nil || began {
		t.Errorf("halt: %t, %v", began, err)
	}
	if _, err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := open(t, dir).Stopped(); err != nil {
		t.Errorf("after resume and a restart: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1000 {
		t.Errorf("the file: %v, %v", info.Size(), err)
	}
}
