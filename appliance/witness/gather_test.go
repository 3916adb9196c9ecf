package witness_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

func TestTheNewestCheckpointIsCosignedWhenItGrew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	steps := []struct {
		grow            int
		later           time.Duration
		asked           string
		witnessed, took int64
	}{
		{0, 0, "", 0, 0}, // an empty log is not sent
		{3, 0, "old 0", 3, 3},
		{0, time.Minute, "", 3, 3},
		{4, time.Minute, "old 3", 7, 7},
		{0, witness.Refresh, "old 7", 7, 7}, // an unchanged tree is cosigned again
		{300, 0, "old 7", 307, 307},
	}
	for i, s := range steps {
		r.append(s.grow)
		r.now = r.now.Add(s.later)
		r.gather(g)
		if asked := w.asked(); asked != s.asked || w.tree.N != s.took {
			t.Errorf("step %d: asked %q, want %q; it has %d records", i, asked, s.asked, w.tree.N)
		}
		r.witnessed(g, s.witnessed)
	}
	if c, _ := g.Newest(); !c.Time.Equal(r.now.Truncate(time.Second)) {
		t.Errorf("complete at %s, not %s", c.Time, r.now)
	}
	if text := r.log.String(); text != "" {
		t.Errorf("log: %s", text)
	}
}

// faultyAnswer is an invalid answer of a witness, and the expected fault.
type faultyAnswer struct {
	answer func(r *rig, f *fake) func(http.ResponseWriter, string) bool
	fault  string
}

func faultyAnswers() map[string]faultyAnswer {
	status := func(code int, body string) func(http.ResponseWriter, string) bool {
		return func(w http.ResponseWriter, _ string) bool {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(code)
			io.WriteString(w, body)
			return true
		}
	}
	foreign := newCosigner("w1")
	foreign.key = newCosigner("another").key
	return map[string]faultyAnswer{
		"400": {plainly(status(400, "")), "it rejects the request as malformed (400"},
		"403": {plainly(status(403, "no\n")),
			`it does not trust the checkpoint's key: the witness's operator must add this log's verifier key (403: "no")`},
		"404":                       {plainly(status(404, "")), "it does not know this log"},
		"429":                       {plainly(status(429, "")), "it limits the request rate"},
		"500":                       {plainly(status(500, "oh\x1b[31m")), `it answered 500: "oh\x1b[31m"`},
		"a redirect":                {plainly(status(302, "")), "it redirects, but redirects are not followed"},
		"409 without a size":        {plainly(status(409, "busy\n")), "409 without the size"},
		"409 with what it was sent": {plainly(status(409, "0\n")), "which is the size that it was sent"},
		"409 with a leading zero":   {plainly(status(409, "01\n")), "409 without the size"},
		"409 for ever":              {conflicts, "each of 3 requests"},
		"nothing":                   {plainly(status(200, "")), "no cosignature of w1+"},
		"no end":                    {plainly(status(200, strings.Repeat("x", 17<<10))), "more than 16384 bytes"},
		"another's signature": {func(_ *rig, f *fake) func(http.ResponseWriter, string) bool {
			return cosigning(func(text string) string { return newCosigner("w7").cosign(text, f.clock()) })
		}, "no cosignature of w1+"},
		"a signature that does not verify": {func(_ *rig, f *fake) func(http.ResponseWriter, string) bool {
			return cosigning(func(text string) string { return f.cosign(text+"x", f.clock()) })
		}, "does not verify"},
		"another key in its name": {func(_ *rig, f *fake) func(http.ResponseWriter, string) bool {
			return cosigning(func(text string) string { return foreign.cosign(text, f.clock()) })
		}, "no cosignature of w1+"},
		"a clock that is ahead": {func(_ *rig, f *fake) func(http.ResponseWriter, string) bool {
			return cosigning(func(text string) string { return f.cosign(text, f.clock().Add(time.Hour)) })
		}, "one of the clocks is wrong"},
		"a cosignature of yesterday": {func(_ *rig, f *fake) func(http.ResponseWriter, string) bool {
			return cosigning(func(text string) string { return f.cosign(text, f.clock().Add(-24*time.Hour)) })
		}, "it repeats an old cosignature"},
	}
}

// plainly wraps an answer that needs neither the rig nor the witness.
func plainly(answer func(http.ResponseWriter, string) bool) func(*rig, *fake) func(http.ResponseWriter, string) bool {
	return func(*rig, *fake) func(http.ResponseWriter, string) bool { return answer }
}

func TestAWitnessThatDoesNotCosignIsAWarning(t *testing.T) {
	t.Parallel()
	for name, test := range faultyAnswers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w, well := r.fake("w1"), r.fake("w2")
			g := r.open(w.line() + well.line() + "group any any w1 w2\nquorum any\n")
			r.append(3)
			w.set(test.answer(r, w))
			r.gather(g)
			r.gather(g)
			r.witnessed(g, 3) // cosigned by the other witness
			if r.log.count("level=WARN") != 1 || r.log.count("level=ERROR") != 0 || len(r.events) != 0 {
				t.Errorf("log: %s", r.log)
			}
			news := g.Status().Witnesses[0]
			if news.Name != "w1" || !strings.Contains(news.Fault, test.fault) || news.Contradicts ||
				news.Since.IsZero() {
				t.Errorf("status %+v, want %q", news, test.fault)
			}
			w.set(nil)
			w.asked()
			r.gather(g)
			if news := g.Status().Witnesses[0]; news.Fault != "" || news.Records != 3 ||
				r.log.count("it cosigns again") != 1 {
				t.Errorf("afterwards: %+v\n%s", news, r.log)
			}
		})
	}
}

// cosigning answers 200 with lines for the checkpoint's text.
func cosigning(lines func(text string) string) func(http.ResponseWriter, string) bool {
	return func(w http.ResponseWriter, body string) bool {
		_, signed, _ := strings.Cut(body, "\n\n")
		io.WriteString(w, lines(textOf(signed)))
		return true
	}
}

// conflicts answers each request with a different size.
func conflicts(*rig, *fake) func(http.ResponseWriter, string) bool {
	return func(w http.ResponseWriter, body string) bool {
		w.WriteHeader(http.StatusConflict)
		if strings.HasPrefix(body, "old 1\n") {
			io.WriteString(w, "2\n")
		} else {
			io.WriteString(w, "1\n")
		}
		return true
	}
}

// deadlines is a transport that collects how long each request may take at most.
type deadlines struct {
	http.RoundTripper
	mu   sync.Mutex
	left []time.Duration // negative without a deadline
}

func (d *deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	left := time.Duration(-1)
	if end, has := r.Context().Deadline(); has {
		left = time.Until(end)
	}
	d.mu.Lock()
	d.left = append(d.left, left)
	d.mu.Unlock()
	return d.RoundTripper.RoundTrip(r)
}

// A witness that never answers takes three requests of ten seconds at most.
func TestTheTimeOfARoundWithAWitnessIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	var d deadlines
	g.SetTransport(func(real http.RoundTripper) http.RoundTripper { d.RoundTripper = real; return &d })
	r.append(3)
	w.set(conflicts(r, w))
	r.gather(g)
	if len(d.left) != 3 {
		t.Errorf("%d requests, want 3", len(d.left))
	}
	for _, left := range d.left {
		if left < 0 || left > 10*time.Second {
			t.Errorf("a request may take %s", left)
		}
	}
}

func TestLinesThatAreUnknownAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(2)
	w.set(cosigning(func(text string) string {
		return "hello\n— w1 !!!\n— w9 " + strings.Repeat("A", 100) + "\n" + newCosigner("w8").cosign(text, r.now) +
			w.cosign(text, r.now) + "— \n"
	}))
	r.gather(g)
	r.witnessed(g, 2)
	c, _ := g.Newest()
	if n := strings.Count(string(c.Signed), "\n— "); n != 2 {
		t.Errorf("%d signatures are kept: %s", n, c.Signed)
	}
}

func TestAWitnessThatIsNotThereIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := newCosigner("w1")
	g := r.open("witness w1 " + gone.vkey() + " http://127.0.0.1:1\nquorum w1\n")
	r.append(1)
	r.gather(g)
	if r.log.count("level=WARN") != 1 || !strings.Contains(g.Status().Witnesses[0].Fault, "connection refused") {
		t.Errorf("log: %s", r.log)
	}
}

func TestAWitnessIsLeftAloneForAsLongAsItSays(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(1)
	w.set(func(rw http.ResponseWriter, _ string) bool {
		rw.Header().Set("Retry-After", "120")
		rw.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	for _, s := range []struct {
		later time.Duration
		asked string
	}{{0, "old 0"}, {119 * time.Second, ""}, {time.Second, "old 0"}} {
		r.now = r.now.Add(s.later)
		r.gather(g)
		if asked := w.asked(); asked != s.asked {
			t.Errorf("after %s: asked %q, want %q", s.later, asked, s.asked)
		}
	}
}

// forget replaces the journal by one of the same log with other records.
func (r *rig) forget(records int) {
	r.Helper()
	r.journal = r.openJournal("forked")
	r.append(records)
}

func TestAWitnessThatHasSeenAnotherHistoryIsAnAlarm(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		records int // size of the journal that replaces one with 5 records
		asked   string
		why     string
	}{
		"fewer records":  {3, "old 0", "it has cosigned 5 records, but the journal has 3"},
		"as many others": {5, "old 5", "it has cosigned 5 records that differ"},
		"more, and other ones": {8, "old 5",
			"it has cosigned 5 records that differ from the journal's first records (422"},
		"many more, other ones": {300, "old 5", "it has cosigned 5 records that differ"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			w := r.fake("w1")
			g := r.open(w.line() + "quorum w1\n")
			r.append(5)
			r.gather(g)
			w.asked()
			r.forget(test.records)
			r.now = r.now.Add(witness.Refresh)
			r.gather(g)
			if asked := w.asked(); asked != test.asked {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
			if r.log.count("level=ERROR") != 1 || r.log.count("CONTRADICTION: "+test.why) != 1 {
				t.Errorf("log: %s", r.log)
			}
			if len(r.events) != 1 || r.events[0].Kind != journal.EventContradiction ||
				!strings.Contains(r.events[0].Details["reason"], test.why) {
				t.Errorf("events: %+v", r.events)
			}
			if news := g.Status().Witnesses[0]; !news.Contradicts || !strings.Contains(news.Fault, test.why) {
				t.Errorf("status: %+v", news)
			}
			r.append(10)
			r.now = r.now.Add(24 * time.Hour)
			r.gather(g)
			if asked := w.asked(); asked != "" || r.log.count("level=ERROR") != 1 {
				t.Errorf("it was asked again (%q)\n%s", asked, r.log)
			}
			r.witnessed(g, 5)
		})
	}
}

func TestA409ForTheSameSizeIsAnAlarm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(5)
	r.gather(g)
	r.now = r.now.Add(witness.Refresh)
	w.set(func(rw http.ResponseWriter, _ string) bool { // as the specification was before 1.0
		rw.WriteHeader(http.StatusConflict)
		io.WriteString(rw, "5\n")
		return true
	})
	r.gather(g)
	if r.log.count("it has cosigned another tree of 5 records") != 1 || !g.Status().Witnesses[0].Contradicts {
		t.Errorf("log: %s", r.log)
	}
}

func TestAReloadAsksAWitnessThatContradictedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	policy := w.line() + "quorum w1\n"
	g := r.open(policy)
	r.append(5)
	r.gather(g)
	whole := r.journal
	r.forget(3)
	r.gather(g)
	if !g.Status().Witnesses[0].Contradicts {
		t.Fatalf("log: %s", r.log)
	}
	r.journal = whole
	r.append(1)
	g.Use(r.policy(policy))
	r.gather(g)
	r.witnessed(g, 6)
	if news := g.Status().Witnesses[0]; news.Contradicts {
		t.Errorf("status: %+v", news)
	}
}

// Another appliance of the log sends the witness a checkpoint that this appliance has not read yet.
func TestAnApplianceThatIsOutpacedIsNoAlarm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(3)
	r.gather(g)
	r.append(2)
	outpaced := false
	w.set(func(http.ResponseWriter, string) bool {
		if outpaced {
			return false
		}
		outpaced = true
		r.append(4)
		signed, err := r.journal.Checkpoint(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Error(err)
		}
		w.tree, _ = journal.OpenCheckpoint(signed, r.key.Verifier)
		return false
	})
	r.gather(g)
	r.witnessed(g, 9)
	if asked := w.asked(); asked != "old 0, old 3, old 3, old 9" || r.log.String() != "" {
		t.Errorf("asked %q\n%s", asked, r.log)
	}
}

// Appliances that share a growing journal ask the same witness concurrently.
func TestSeveralAppliancesOfALogRaiseNoAlarm(t *testing.T) {
	t.Parallel()
	const appliances, rounds = 3, 20
	r := newRig(t)
	w := r.fake("w1")
	var asking sync.WaitGroup
	var gatherers []*witness.Gatherer
	for i := range appliances {
		g, err := witness.Open(witness.Options{
			Journal: r.journal, Log: r.key.Verifier, Path: filepath.Join(r.dir, fmt.Sprint(i)),
			Interval: witness.Refresh,
			Logger:   slog.New(slog.NewTextHandler(r.log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		g.Use(r.policy(w.line() + "quorum w1\n"))
		gatherers = append(gatherers, g)
		asking.Go(func() {
			for range rounds {
				if err := g.Gather(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range rounds {
		r.append(1)
	}
	asking.Wait()
	for _, g := range gatherers {
		r.gather(g)
		r.witnessed(g, rounds)
	}
	if r.log.count("level=ERROR") != 0 {
		t.Errorf("log: %s", r.log)
	}
}

func TestAWitnessThatForgotIsAskedFromWhereItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(5)
	r.gather(g)
	w.tree = tlog.Tree{}
	r.append(1)
	r.gather(g)
	r.witnessed(g, 6)
	if asked := w.asked(); asked != "old 0, old 5, old 0" || r.log.String() != "" {
		t.Errorf("asked %q\n%s", asked, r.log)
	}
}

func TestWhatWasWitnessedIsKeptOverARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	policy := w.line() + "quorum w1\n"
	g := r.open(policy)
	r.append(5)
	r.gather(g)
	before, _ := g.Newest()
	w.asked()
	r.append(1)

	g = r.open(policy)
	after, ok := g.Newest()
	if !ok || string(after.Signed) != string(before.Signed) || !after.Time.Equal(before.Time) {
		t.Errorf("%+v is not %+v", after, before)
	}
	r.gather(g)
	if asked := w.asked(); asked != "old 5" {
		t.Errorf("asked %q", asked)
	}
	r.witnessed(g, 6)

	// A stricter policy is not satisfied by the stored checkpoint.
	w2 := r.fake("w2")
	g = r.open(policy[:len(policy)-len("quorum w1\n")] + w2.line() + "group g all w1 w2\nquorum g\n")
	r.witnessed(g, 0)
	r.gather(g)
	r.witnessed(g, 6)

	for content, warns := range map[string]int{"rubbish": 1, "": 1,
		checkpointOf(t, newLog(t, "example.com/another"), 3): 1} {
		if err := os.WriteFile(filepath.Join(r.dir, witness.FileName), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r.log.Reset()
		g = r.open(policy)
		r.witnessed(g, 0)
		if n := r.log.count("is unusable"); n != warns {
			t.Errorf("%q: %s", content, r.log)
		}
	}
}
