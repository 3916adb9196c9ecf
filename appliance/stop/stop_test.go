package stop_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/stop"
)

var now = time.Date(2026, 11, 3, 4, 5, 6, 7, time.UTC)

// open opens the switch in a folder, as a start does.
func open(t *testing.T, dir string) *stop.Switch {
	t.Helper()
	file, err := stop.OpenFile(filepath.Join(dir, stop.FileName))
	if err != nil {
		t.Fatal(err)
	}
	s, err := stop.New(file, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// After each sequence of actions, the switch has the same state after a restart.
func TestSwitch(t *testing.T) {
	t.Parallel()
	pause := func(ctx context.Context, s *stop.Switch) error { return s.Pause(ctx, "upgrade", "root") }
	halt := func(redemption string, begins bool) func(context.Context, *stop.Switch) error {
		return func(ctx context.Context, s *stop.Switch) error {
			began, err := s.Halt(ctx, redemption, "an unknown redemption")
			if began != begins {
				return errors.Join(err, errors.New("halt "+redemption+": begins a halt where it must not, or the other way round"))
			}
			return err
		}
	}
	resume := func(ctx context.Context, s *stop.Switch) error { _, err := s.Resume(ctx); return err }
	for name, c := range map[string]struct {
		do           []func(context.Context, *stop.Switch) error
		code         appliance.Code
		halts        []string
		acknowledged []string
	}{
		"nothing was done":                      {},
		"paused":                                {do: steps(pause), code: appliance.CodePaused},
		"paused and resumed":                    {do: steps(pause, resume)},
		"resumed twice":                         {do: steps(pause, resume, resume)},
		"halted":                                {do: steps(halt("a", true)), code: appliance.CodeHalted, halts: []string{"a"}},
		"halted for two":                        {do: steps(halt("a", true), halt("b", false), halt("a", false)), code: appliance.CodeHalted, halts: []string{"a", "b"}},
		"halted and paused":                     {do: steps(pause, halt("a", true)), code: appliance.CodeHalted, halts: []string{"a"}},
		"resume ends both":                      {do: steps(pause, halt("a", true), resume), acknowledged: []string{"a"}},
		"the same redemption halts no more":     {do: steps(halt("a", true), resume, halt("a", false)), acknowledged: []string{"a"}},
		"another does":                          {do: steps(halt("a", true), resume, halt("b", true)), code: appliance.CodeHalted, halts: []string{"b"}, acknowledged: []string{"a"}},
		"a pause after it acknowledges no more": {do: steps(halt("a", true), resume, pause, resume), acknowledged: []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir)
			for i, step := range c.do {
				if err := step(t.Context(), s); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
			}
			again := open(t, dir)
			if !reflect.DeepEqual(again.State(), s.State()) {
				t.Errorf("after a restart it says %+v, before %+v", again.State(), s.State())
			}
			if code := appliance.CodeOf(again.Stopped()); code != c.code {
				t.Errorf("code %q, want %q", code, c.code)
			}
			state := again.State()
			if (state.Halted != nil) != (c.halts != nil) || state.Halted != nil && !reflect.DeepEqual(state.Halted.Redemptions, c.halts) {
				t.Errorf("halted is %+v, want %v", state.Halted, c.halts)
			}
			if !reflect.DeepEqual(state.Acknowledged, c.acknowledged) {
				t.Errorf("acknowledged are %v, want %v", state.Acknowledged, c.acknowledged)
			}
		})
	}
}

func steps(s ...func(context.Context, *stop.Switch) error) []func(context.Context, *stop.Switch) error {
	return s
}

func TestClientsAreToldWhenToComeBackAndNotWhy(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if err := s.Pause(t.Context(), "the secret reason", "root"); err != nil {
		t.Fatal(err)
	}
	refusal, ok := errors.AsType[*appliance.Error](s.Stopped())
	if !ok || refusal.RetryAfter != 30*time.Second || strings.Contains(refusal.Detail, "secret") {
		t.Errorf("clients get %+v", refusal)
	}
	for _, part := range []string{"root", "2026-11-03T04:05:06Z", "the secret reason", "attestd resume"} {
		if !strings.Contains(refusal.Error(), part) {
			t.Errorf("the operator gets %q, without %q", refusal, part)
		}
	}
}

func TestAReasonIsOneLine(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"", " ", "two\nlines", strings.Repeat("x", 1001)} {
		s := open(t, t.TempDir())
		if err := s.Pause(t.Context(), reason, "root"); appliance.CodeOf(err) != appliance.CodeInvalidField || s.Stopped() != nil {
			t.Errorf("%.20q: %v, then stopped is %v", reason, err, s.Stopped())
		}
	}
}

// A damaged file does not allow attesting.
func TestADamagedFileIsNoPermission(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", `{"pausd":{}}`, "[]"} {
		path := filepath.Join(t.TempDir(), stop.FileName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := stop.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := stop.New(file, time.Now)
		if err == nil || s.Stopped() == nil {
			t.Errorf("%q: %v, and stopped is %v", text, err, s.Stopped())
		}
	}
}

func TestALinkIsNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), stop.FileName)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := stop.OpenFile(path); err == nil {
		t.Error("a link is followed")
	}
}

func BenchmarkStopped(b *testing.B) {
	file, err := stop.OpenFile(filepath.Join(b.TempDir(), stop.FileName))
	if err != nil {
		b.Fatal(err)
	}
	s, err := stop.New(file, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if s.Stopped() != nil {
			b.Fatal("it is stopped")
		}
	}
}

// The event that ends a halt fits its size limit, however many redemptions the halt names.
func TestTheEndOfALongHaltIsAnEvent(t *testing.T) {
	var redemptions []string
	for i := range 1000 {
		redemptions = append(redemptions, fmt.Sprintf("usdc/0x%064x/0x%064x", i, i))
	}
	details := stop.State{Halted: &stop.Halt{Redemptions: redemptions}}.Details()
	if e := (journal.Event{Kind: journal.EventStopped, Details: details}); e.Prepare() != nil {
		t.Errorf("it cannot be recorded: %d bytes", len(details["redemptions"]))
	}
	if !strings.HasSuffix(details["redemptions"], redemptions[19]+" and 980 more") {
		t.Errorf("it tells %s", details["redemptions"])
	}
}
