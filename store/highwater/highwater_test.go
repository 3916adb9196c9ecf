package highwater_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
	"github.com/attestd/attestd/store/storetest"
)

// rig is a journal in a folder, and its log output.
type rig struct {
	t    *testing.T
	dir  string
	key  journal.LogKey
	text *logText
}

// logText is the output of a logger.
type logText struct {
	mu sync.Mutex
	bytes.Buffer
	wrote chan struct{} // has one element after a line was written
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.Buffer.Write(p)
}

// wait returns once a line contains the given text.
func (l *logText) wait(t *testing.T, what string) {
	t.Helper()
	late := time.After(3 * time.Minute)
	for l.count(what) == 0 {
		select {
		case <-l.wrote:
		case <-late:
			t.Fatalf("%q is not in the log: %s", what, l)
		}
	}
}

func (l *logText) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.String(), what)
}

func newRig(t *testing.T) *rig {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, dir: t.TempDir(), key: key, text: &logText{wrote: make(chan struct{}, 1)}}
}

func (r *rig) mark() string { return filepath.Join(r.dir, highwater.FileName) }

// store opens the file with the given name, which holds the test's API key.
func (r *rig) store(name string) *bolt.Store {
	r.t.Helper()
	s, err := bolt.Open(filepath.Join(r.dir, name), bolt.Options{Signer: r.key.Signer, Verifier: r.key.Verifier})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

// open guards a shared journal. It checks the head only when the test requests it.
func (r *rig) open(journal audit.Journal) *highwater.Journal {
	r.t.Helper()
	g, err := highwater.Open(r.t.Context(), r.mark(), journal, highwater.Options{
		Key: r.key, Logger: slog.New(slog.NewTextHandler(r.text, nil)), Every: time.Hour,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) append(j audit.Journal, n int) (entries []journal.Entry) {
	r.t.Helper()
	for range n {
		e, _, err := j.Append(r.t.Context(), storetest.Record(r.t, "key"))
		if err != nil {
			r.t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

func (r *rig) copy(from, to string) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, from))
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, to), b, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func closeAll(t *testing.T, parts ...interface{ Close() error }) {
	t.Helper()
	for _, p := range parts {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// switching is a journal that can change its store, as at the failover of a database.
type switching struct {
	mu sync.Mutex
	audit.Journal
}

func (s *switching) to(j audit.Journal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Journal = j
}

func (s *switching) now() audit.Journal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Journal
}

func (s *switching) Checkpoint(ctx context.Context) ([]byte, error) { return s.now().Checkpoint(ctx) }

func (s *switching) Tile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	return s.now().Tile(ctx, t)
}

func (s *switching) Ready(ctx context.Context) error { return s.now().Ready(ctx) }

func (s *switching) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	return s.now().Append(ctx, r, conditions...)
}

func TestAGuardedJournalIsAJournal(t *testing.T) {
	r := newRig(t)
	storetest.TestJournal(t, func(t *testing.T, now func() time.Time) audit.Journal {
		dir := t.TempDir()
		s, err := bolt.Open(filepath.Join(dir, "journal"),
			bolt.Options{Signer: r.key.Signer, Verifier: r.key.Verifier, Now: now, MaxAhead: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		g, err := highwater.Open(t.Context(), filepath.Join(dir, highwater.FileName), s.Journal(),
			highwater.Options{Key: r.key})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeAll(t, g, s) })
		return g
	}, r.key.Verifier)
}

func TestACheckpointIsGivenOutOnceTheMarkCoversIt(t *testing.T) {
	r := newRig(t)
	g := r.open(r.store("journal").Journal())
	for n := range int64(5) {
		e := r.append(g, 1)[0]
		for what, signed := range map[string]func() ([]byte, error){
			"checkpoint": func() ([]byte, error) { return g.Checkpoint(t.Context()) },
			"proof": func() ([]byte, error) {
				p, err := g.Prove(t.Context(), e.Index)
				return []byte(p.Checkpoint), err
			},
		} {
			given, err := signed()
			if err != nil {
				t.Fatal(err)
			}
			mark, err := highwater.Read(r.mark(), r.key.Verifier)
			if err != nil || mark.Tree.N != n+1 || !bytes.Equal(mark.Signed, given) {
				t.Errorf("the %s is %q, the mark on the disk %q (%v)", what, given, mark.Signed, err)
			}
		}
	}
	if stat, err := os.Stat(r.mark()); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", stat, err)
	}
	closeAll(t, g)
}

func TestTheMarkFollowsWithoutBeingAsked(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	g, err := highwater.Open(t.Context(), r.mark(), s.Journal(), highwater.Options{Key: r.key, Every: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r.append(g, 3)
	for deadline := time.Now().Add(10 * time.Second); g.Mark().Tree.N < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("the mark is of %d records", g.Mark().Tree.N)
		}
	}
	r.append(g, 2)
	closeAll(t, g)
	if mark, err := highwater.Read(r.mark(), r.key.Verifier); err != nil || mark.Tree.N != 5 {
		t.Errorf("after the end the mark is of %d records (%v)", mark.Tree.N, err)
	}
}

func TestAJournalThatIsNotWhatTheMarkSays(t *testing.T) {
	for name, test := range map[string]struct {
		// number of records in both, published after them, and in the copy instead of the published ones
		common, published, copied int
		why                       string // empty if no record is lost
	}{
		"the same":        {common: 10},
		"a newer one":     {common: 10, copied: 260},
		"an older copy":   {common: 10, published: 5, why: "fewer records than the published checkpoint"},
		"a fork, shorter": {common: 10, published: 5, copied: 4, why: "fewer records than the published checkpoint"},
		"a fork, as long": {common: 10, published: 5, copied: 5, why: "has forked from the published checkpoint"},
		"a fork, longer":  {common: 10, published: 5, copied: 260, why: "has forked from the published checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.store("journal")
			r.append(s.Journal(), test.common)
			closeAll(t, s)
			r.copy("journal", "copy")
			s = r.store("journal")
			g := r.open(s.Journal())
			r.append(g, test.published)
			published, err := g.Checkpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			closeAll(t, g, s)

			copied := r.store("copy")
			r.append(copied.Journal(), test.copied)
			g = r.open(copied.Journal())
			defer func() { closeAll(t, g) }()
			if test.why == "" {
				if g.Loss() != nil || g.Ready(t.Context()) != nil {
					t.Errorf("%v, %v", g.Loss(), g.Ready(t.Context()))
				}
				return
			}
			r.checkLost(g, test.why)
			if n := r.text.count("level=ERROR"); n != 1 {
				t.Errorf("%d errors in the log: %s", n, r.text)
			}
			if mark, err := os.ReadFile(r.mark()); err != nil || !bytes.Equal(mark, published) {
				t.Errorf("the mark is now %q (%v)", mark, err)
			}
		})
	}
}

// checkLost checks that the journal refuses to sign and returns no proof that could contradict the mark, while other
// reads work.
func (r *rig) checkLost(g *highwater.Journal, why string) {
	r.t.Helper()
	ctx := r.t.Context()
	if loss := g.Loss(); loss == nil || !strings.Contains(loss.Error(), why) ||
		!strings.Contains(loss.Error(), "attestd log accept-loss") {
		r.t.Fatalf("the loss is %v", loss)
	}
	_, _, appendErr := g.Append(ctx, storetest.Record(r.t, "key"))
	_, checkpointErr := g.Checkpoint(ctx)
	_, proofErr := g.Prove(ctx, 0)
	_, tileErr := g.Tile(ctx, tlog.Tile{H: 8, W: 1})
	for what, err := range map[string]error{
		"append": appendErr, "ready": g.Ready(ctx), "checkpoint": checkpointErr, "proof": proofErr, "tile": tileErr,
		"accept": g.Accept(tlog.Tree{N: 1 << 20}),
	} {
		if appliance.CodeOf(err) != appliance.CodeJournalLost {
			r.t.Errorf("%s: %v", what, err)
		}
	}
	if entries, err := g.List(ctx, journal.Query{Limit: 1}); err != nil || len(entries) != 1 {
		r.t.Errorf("list: %v, %v", entries, err)
	}
}

func TestAStoreThatForgetsWhileItIsUsed(t *testing.T) {
	for name, after := range map[string]int{"it lost its tail": 0, "it went on from there, as far": 5,
		"it went on from there, further": 9} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.store("journal")
			r.append(s.Journal(), 10)
			closeAll(t, s)
			r.copy("journal", "standby")
			primary, standby := r.store("journal"), r.store("standby")
			store := &switching{Journal: primary.Journal()}
			g, err := highwater.Open(t.Context(), r.mark(), store, highwater.Options{
				Key: r.key, Logger: slog.New(slog.NewTextHandler(r.text, nil)), Every: time.Millisecond, Shared: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			r.append(g, 5)
			if _, err := g.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.append(standby.Journal(), after)
			store.to(standby.Journal())
			r.text.wait(t, "LOST")
			if err := g.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalLost {
				t.Errorf("ready: %v", err)
			}
			store.to(primary.Journal())
			r.text.wait(t, "attesting continues")
			r.append(g, 1)
			closeAll(t, g)
			if r.text.count("level=ERROR") != 1 || r.text.count("level=WARN") != 2 {
				// the initial lack of a mark, and the recovery
				t.Errorf("the log is %s", r.text)
			}
		})
	}
}

// A record that was answered here and lost before the mark covered it is detected, too.
func TestAnAnswerThatIsLostBeforeTheMarkCoversIt(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	r.append(s.Journal(), 10)
	closeAll(t, s)
	r.copy("journal", "standby")
	primary, standby := r.store("journal"), r.store("standby")
	store := &switching{Journal: primary.Journal()}
	g := r.open(store)
	r.append(g, 1)
	r.append(standby.Journal(), 1)
	store.to(standby.Journal())
	if _, err := g.Checkpoint(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalLost {
		t.Errorf("checkpoint: %v", err)
	}
	if loss := g.Loss(); loss == nil || !strings.Contains(loss.Why, "lacks an attestation") {
		t.Errorf("loss: %v", loss)
	}
	closeAll(t, g)
}

func TestAcceptRefusesAHeadThatWentBack(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	g := r.open(s.Journal())
	r.append(g, 3)
	if _, err := g.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.append(g, 1)
	for name, test := range map[string]struct {
		head tlog.Tree
		code appliance.Code
	}{
		"below the mark":         {tlog.Tree{N: 2}, appliance.CodeJournalLost},
		"another of its size":    {tlog.Tree{N: 3}, appliance.CodeJournalLost},
		"below what it answered": {g.Mark().Tree, appliance.CodeJournalLost},
		"what it answered":       {tlog.Tree{N: 4}, ""},
		"what others went on to": {tlog.Tree{N: 9}, ""},
	} {
		if err := g.Accept(test.head); appliance.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	closeAll(t, g)
}

// An unreadable store is not a loss.
func TestAStoreThatDoesNotAnswer(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	r.append(s.Journal(), 1)
	store := &switching{Journal: s.Journal()}
	g := r.open(store)
	store.to(silent{s.Journal()})
	if _, err := g.Checkpoint(t.Context()); !errors.Is(err, errSilent) || g.Loss() != nil {
		t.Errorf("%v, %v", err, g.Loss())
	}
	closeAll(t, g)
}

// A command makes the journal and appends to it before the daemon has run. Its records are covered by the mark, and the
// daemon does not warn of losses that cannot have happened. A journal that came without its mark is worth a warning.
func TestAJournalThatACommandMadeHasItsMark(t *testing.T) {
	for _, had := range []int{0, 1} {
		r := newRig(t)
		s := r.store("journal")
		r.append(s.Journal(), had)
		command, err := highwater.Open(t.Context(), r.mark(), s.Journal(), highwater.Options{Key: r.key, OnDemand: true})
		if err != nil {
			t.Fatal(err)
		}
		r.append(command, 2)
		closeAll(t, command)
		closeAll(t, r.open(s.Journal()))
		if warned := strings.Contains(r.text.String(), "created the high-water mark"); warned != (had > 0) {
			t.Errorf("a journal that had %d records: warned %t\n%s", had, warned, r.text)
		}
	}
}

// Until the head of a shared store was read, appends are refused.
func TestASharedStoreThatDoesNotAnswerAtFirst(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	r.append(s.Journal(), 1)
	store := &switching{Journal: silent{s.Journal()}}
	g, err := highwater.Open(t.Context(), r.mark(), store, highwater.Options{
		Key: r.key, Logger: slog.New(slog.NewTextHandler(r.text, nil)), Every: time.Millisecond, Shared: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _, appendErr := g.Append(t.Context(), storetest.Record(t, "key"))
	for what, err := range map[string]error{"append": appendErr, "accept": g.Accept(tlog.Tree{N: 1}),
		"ready": g.Ready(t.Context())} {
		if appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	store.to(s.Journal())
	r.text.wait(t, "created the high-water mark")
	if _, err := g.Checkpoint(t.Context()); err != nil {
		t.Error(err)
	}
	r.append(g, 1)
	closeAll(t, g)
}

var errSilent = errors.New("no answer")

type silent struct{ audit.Journal }

func (silent) Checkpoint(context.Context) ([]byte, error) {
	return nil, appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available").Because(errSilent)
}
