package bolt_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/storetest"
)

// A clock that was wrong for one record must not stamp all later records.
func TestAClockThatJumpedForward(t *testing.T) {
	t.Parallel()
	for _, test := range []clockTest{
		{"is still where it was", 0, true, ""},
		{"went back by a jitter", time.Second, true, ""},
		{"went back by what is allowed", time.Minute, true, "WARN"},
		{"went back by more", time.Minute + time.Millisecond, false, "ERROR"},
		{"went back to the truth", time.Hour, false, "ERROR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t)
		})
	}
}

type clockTest struct {
	name  string
	back  time.Duration // how much of the hour's jump the clock is set back
	taken bool
	level string // level of the log message; empty means no message
}

func (test clockTest) run(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := began
	var log bytes.Buffer
	o := options(newLogKey(t))
	o.Now = func() time.Time { return now }
	o.MaxAhead = time.Minute
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	path := newPath(t)
	s := mustOpen(t, path, o)
	now = began.Add(time.Hour)
	first := storetest.Record(t, "key")
	first.IdempotencyKey = "again"
	_, _, err := s.Journal().Append(t.Context(), first)
	check(t, err)

	now = now.Add(-test.back)
	if s.Ahead() != test.back {
		t.Errorf("the newest record is %s ahead of the clock, not %s", s.Ahead(), test.back)
	}
	_, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	if ready := s.Journal().Ready(t.Context()); (err == nil) != test.taken || (ready == nil) != test.taken {
		t.Errorf("appended: %v, ready: %v", err, ready)
	}
	if !test.taken {
		wantCode(t, err, appliance.CodeJournalUnavailable)
	}
	if again, replayed, err := s.Journal().Append(t.Context(), first); err != nil || !replayed ||
		again.Record.ID != first.ID {
		t.Errorf("what is in the journal is not answered again: %v", err)
	}
	if n := strings.Count(log.String(), "ahead of the clock"); test.level == "" && n > 0 ||
		test.level != "" && (n != 1 || !strings.Contains(log.String(), "level="+test.level)) {
		t.Errorf("the log:\n%s", log.String())
	}
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "one"}, now)
	check(t, err)
	check(t, s.Keys().Create(t.Context(), key))
	check(t, s.Close())

	log.Reset()
	s = mustOpen(t, path, o)
	if told := strings.Contains(log.String(), "ahead of the clock"); told != (test.level != "") {
		t.Errorf("the log of the next start:\n%s", log.String())
	}
	now = began.Add(time.Hour)
	fill(t, s, 1)
	check(t, s.Journal().Ready(t.Context()))
	wantClean(t, s, nil)
}
