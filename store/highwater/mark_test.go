package highwater_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

func TestAMarkThatIsOfNoUse(t *testing.T) {
	other, _, err := journal.NewLogKey("example.com/other")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := journal.SignCheckpoint(tlog.Tree{N: 1}, other.Signer)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		content []byte // nil: no file
		lost    string
		warned  int
	}{
		"missing":   {nil, "", 1},
		"empty":     {[]byte{}, "is damaged", 0},
		"rubbish":   {bytes.Repeat([]byte("x"), 300), "is damaged", 0},
		"too large": {bytes.Repeat([]byte("x"), 1<<20), "is damaged", 0},
		"foreign":   {foreign, "belongs to another log", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s := r.store("journal")
			r.append(s.Journal(), 3)
			if test.content != nil {
				if err := os.WriteFile(r.mark(), test.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			g := r.open(s.Journal())
			if test.lost != "" {
				r.checkLost(g, test.lost)
			} else if g.Loss() != nil || g.Mark().Tree.N != 3 {
				t.Errorf("loss %v, mark %d", g.Loss(), g.Mark().Tree.N)
			}
			if n := r.text.count("level=WARN"); n != test.warned {
				t.Errorf("%d warnings: %s", n, r.text)
			}
			closeAll(t, g)
			if content, _ := os.ReadFile(r.mark()); test.content != nil && !bytes.Equal(content, test.content) {
				t.Errorf("the file is now %q", content)
			}
		})
	}
}

func TestAMarkThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	dir := filepath.Join(r.dir, "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := r.store("journal")
	g, err := highwater.Open(t.Context(), filepath.Join(dir, highwater.FileName), s.Journal(), highwater.Options{
		Key: r.key, Logger: slog.New(slog.NewTextHandler(r.text, nil)), Every: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r.append(g, 1)
	if _, err := g.Checkpoint(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("checkpoint: %v", err)
	}
	if err := g.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodeJournalUnavailable {
		t.Errorf("ready: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r.text.wait(t, "can be written again")
	if err := g.Ready(t.Context()); err != nil {
		t.Errorf("ready again: %v", err)
	}
	if n := r.text.count("level=ERROR"); n != 1 {
		t.Errorf("%d errors: %s", n, r.text)
	}
	closeAll(t, g)
}

// If another log continues the mark's log, its key and its mark are adopted.
func TestALogThatGoesOnFromTheMarks(t *testing.T) {
	r := newRig(t)
	s := r.store("journal")
	r.append(s.Journal(), 7)
	g := r.open(s.Journal())
	closeAll(t, g)
	event, next := r.continueTo(s, "next")

	var followed []string
	told := func(k journal.LogKey, _ string) { followed = append(followed, k.VerifierText) }
	after, err := bolt.Open(filepath.Join(r.dir, "next"), bolt.Options{Signer: next.Signer, Verifier: next.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	g, err = highwater.Open(t.Context(), r.mark(), after.Journal(),
		highwater.Options{Key: r.key, Continued: told, Every: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if loss := g.Loss(); loss == nil || !strings.Contains(loss.Error(), "continues as "+next.Verifier.Name()) ||
		len(followed) != 1 || followed[0] != next.VerifierText {
		t.Errorf("with the old key: %v, told of %q", loss, followed)
	}
	closeAll(t, g)

	g, err = highwater.Open(t.Context(), r.mark(), after.Journal(), highwater.Options{Key: next, Every: time.Hour})
	if err != nil || g.Loss() != nil || g.Mark().Tree.N != 8 {
		t.Fatalf("with the new key: %v, %v, a mark of %d", err, g.Loss(), g.Mark().Tree.N)
	}
	closeAll(t, g, s)

	// The reverse is refused: the old journal with the old key contradicts the mark.
	old := r.store("journal")
	g = r.open(old.Journal())
	r.checkLost(g, "belongs to another log")
	closeAll(t, g)
	if _, ok := event.Continuation(); !ok {
		t.Error("the event continues nothing")
	}
}

// continueTo creates the file of a log that continues a store's log.
func (r *rig) continueTo(s *bolt.Store, name string) (journal.Event, journal.LogKey) {
	r.t.Helper()
	head, err := s.Journal().Checkpoint(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	event, err := journal.NewContinuation(r.key, head, nil, "a test", "root", time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	next, _, err := r.key.Continue(event)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.ContinueTo(r.t.Context(), filepath.Join(r.dir, name), event, next, nil); err != nil {
		r.t.Fatal(err)
	}
	return event, next
}
