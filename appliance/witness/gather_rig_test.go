package witness_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// rig is a journal with witnesses for its checkpoints.
type rig struct {
	*testing.T
	key     journal.LogKey
	journal journal.Journal
	dir     string
	log     *lockedText
	events  []journal.Event
	now     time.Time
}

// lockedText collects log output.
type lockedText struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *lockedText) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.String(), what)
}

func newRig(tb *testing.T) *rig {
	tb.Helper()
	r := &rig{T: tb, key: newLog(tb, "example.com/log"), dir: tb.TempDir(), log: &lockedText{}, now: time.Now()}
	r.journal = r.openJournal("journal")
	return r
}

// openJournal opens a journal with the rig's log key.
func (r *rig) openJournal(name string) journal.Journal {
	r.Helper()
	s, err := bolt.Open(filepath.Join(r.dir, name), bolt.Options{Signer: r.key.Signer, Verifier: r.key.Verifier})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = s.Close() })
	return s.Journal()
}

func (r *rig) append(n int) {
	r.Helper()
	for range n {
		if _, _, err := r.journal.Append(r.Context(), storetest.Record(r.T, "key")); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) open(policy string) *witness.Gatherer {
	r.Helper()
	g, err := witness.Open(witness.Options{
		Journal: journalOf{r}, Log: r.key.Verifier, Path: filepath.Join(r.dir, witness.FileName),
		Interval: witness.Refresh, UserAgent: "attestd/test",
		Logger: slog.New(slog.NewTextHandler(r.log, nil)), Now: func() time.Time { return r.now },
		Record: func(e journal.Event) { r.events = append(r.events, e) },
	})
	if err != nil {
		r.Fatal(err)
	}
	g.Use(r.policy(policy))
	return g
}

// journalOf reads from the rig's current journal, which a test may replace.
type journalOf struct{ *rig }

func (j journalOf) Checkpoint(ctx context.Context) ([]byte, error) { return j.journal.Checkpoint(ctx) }
func (j journalOf) Tile(ctx context.Context, t tlog.Tile) ([]byte, error) {
	return j.journal.Tile(ctx, t)
}

func (r *rig) policy(text string) *witness.Policy {
	r.Helper()
	p, err := witness.ParsePolicy([]byte("log " + r.key.VerifierText + "\n" + text))
	if err != nil {
		r.Fatal(err)
	}
	return p
}

func (r *rig) gather(g *witness.Gatherer) {
	r.Helper()
	if err := g.Gather(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// witnessed checks the number of records in the newest witnessed checkpoint; 0 means that there must be no checkpoint.
func (r *rig) witnessed(g *witness.Gatherer, records int64) {
	r.Helper()
	c, ok := g.Newest()
	if ok != (records > 0) || c.Tree.N != records {
		r.Errorf("the newest witnessed checkpoint: %t, %d records, want %d\n%s", ok, c.Tree.N, records, r.log)
	}
}

// fake is a witness that follows C2SP tlog-witness v1.0, except for the answers that a test replaces.
type fake struct {
	cosigner
	URL string

	mu       sync.Mutex
	tree     tlog.Tree
	requests []string                                      // first line of each request
	answer   func(w http.ResponseWriter, body string) bool // returns true if it has answered
	clock    func() time.Time
}

func (r *rig) fake(name string) *fake {
	f := &fake{cosigner: newCosigner(name), clock: func() time.Time { return r.now }}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /prefix/add-checkpoint", func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			r.Error(err)
		}
		f.serve(r, w, string(body))
	})
	server := httptest.NewServer(mux)
	r.Cleanup(server.Close)
	f.URL = server.URL + "/prefix"
	return f
}

// line returns the witness's line in a policy.
func (f *fake) line() string { return "witness " + f.name + " " + f.vkey() + " " + f.URL + "\n" }

func (f *fake) set(answer func(http.ResponseWriter, string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// asked returns the requests since the last call, such as "old 3".
func (f *fake) asked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := strings.Join(f.requests, ", ")
	f.requests = nil
	return text
}

func (f *fake) serve(r *rig, w http.ResponseWriter, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	head, signed, _ := strings.Cut(body, "\n\n")
	lines := strings.Split(head, "\n")
	f.requests = append(f.requests, lines[0])
	if f.answer != nil && f.answer(w, body) {
		return
	}
	old, err := strconv.ParseInt(strings.TrimPrefix(lines[0], "old "), 10, 64)
	if err != nil {
		r.Errorf("request: %q", body)
	}
	tree, err := journal.OpenCheckpoint([]byte(signed), r.key.Verifier)
	var proof tlog.TreeProof
	for _, l := range lines[1:] {
		h, err := tlog.ParseHash(l)
		if err != nil {
			r.Errorf("request: %q", body)
		}
		proof = append(proof, h)
	}
	switch {
	case err != nil:
		w.WriteHeader(http.StatusForbidden)
	case old > tree.N:
		w.WriteHeader(http.StatusBadRequest)
	case old != f.tree.N:
		w.Header().Set("Content-Type", "text/x.tlog.size")
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, "%d\n", f.tree.N)
	case old > 0 && tlog.CheckTree(proof, tree.N, tree.Hash, f.tree.N, f.tree.Hash) != nil:
		w.WriteHeader(http.StatusUnprocessableEntity)
	default:
		f.tree = tree
		io.WriteString(w, f.cosign(textOf(signed), f.clock()))
	}
}
