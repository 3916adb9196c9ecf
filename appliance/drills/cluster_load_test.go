package drills

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
)

const (
	clientsOfMember = 4
	clusterDeadline = 10 * time.Second // server.request_timeout's default
)

// clusterPatience is a client's timeout for a whole request. It exceeds the deadline, since the machine is busy.
func clusterPatience() time.Duration { return clusterDeadline + longer(20*time.Second, 3*time.Second) }

// clusterLoad runs clients of each member that attest all the time. Each request has an Idempotency-Key. A request
// without an answer is repeated at any member, or abandoned.
type clusterLoad struct {
	t     *testing.T // of the whole cluster, which outlasts a drill
	c     *cluster
	token string
	stop  context.CancelFunc
	all   sync.WaitGroup

	mu       sync.Mutex // protects the fields below
	answered map[uuid.UUID]appliance.Attestation
	ids      map[string]uuid.UUID // by each answered Idempotency-Key
	refused  map[string]int       // by member, status and code
	slowest  time.Duration        // of all answers, including refusals
}

// order is a request that is repeated until it is answered.
type order struct{ key, body string }

func newOrder() order {
	r := daemontest.RandomRequest()
	return order{uuid.NewString(),
		fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, r.UnspendableAddress, r.Beneficiary)}
}

func startLoad(c *cluster, token string) *clusterLoad {
	ctx, stop := context.WithCancel(context.Background())
	l := &clusterLoad{t: c.T, c: c, token: token, stop: stop, answered: map[uuid.UUID]appliance.Attestation{},
		ids: map[string]uuid.UUID{}, refused: map[string]int{}}
	for _, m := range c.members {
		for range clientsOfMember {
			l.all.Go(func() { l.work(ctx, m) })
		}
	}
	c.Cleanup(l.end)
	return l
}

// end returns when every request has ended.
func (l *clusterLoad) end() {
	l.stop()
	l.all.Wait()
}

// work attests at a member, and repeats unanswered requests at others.
func (l *clusterLoad) work(ctx context.Context, home *member) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	h := &http.Client{Transport: transport, Timeout: clusterPatience()}
	var open []order // unanswered requests, which may be in the journal
	for ctx.Err() == nil {
		m, o := home, newOrder()
		if len(open) > 0 && rand.N(2) == 0 {
			m, o, open = l.c.members[rand.N(len(l.c.members))], open[0], open[1:]
		}
		if !l.attest(h, m, o) {
			if len(open) < 100 && rand.N(4) > 0 {
				open = append(open, o)
			}
			time.Sleep(20 * time.Millisecond) // as a polite client does
		}
		time.Sleep(2 * time.Millisecond) // leaves CPU for the drills
	}
}

// attest reports whether the request was answered with an attestation.
func (l *clusterLoad) attest(h *http.Client, m *member, o order) bool {
	if m.down.Load() {
		return false
	}
	changes, began := m.changes.Load(), time.Now()
	status, body, err := l.post(h, m, o)
	took := time.Since(began)
	if m.down.Load() || m.changes.Load() != changes {
		if status == http.StatusOK { // an answer that arrived is binding
			l.keep(m, o, began, body)
		}
		return status == http.StatusOK
	}
	switch {
	case err != nil:
		l.t.Errorf("%s has not answered within %s: %v", m.name, took.Round(time.Millisecond), err)
	case status == http.StatusOK:
		l.keep(m, o, began, body)
	case status != http.StatusServiceUnavailable:
		l.t.Errorf("%s answered %d: %s", m.name, status, body)
	}
	l.count(m, status, body, took)
	return status == http.StatusOK
}

func (l *clusterLoad) post(h *http.Client, m *member, o order) (int, []byte, error) {
	req, err := http.NewRequest(http.MethodPost, m.URL+"/functions/v1/attest", strings.NewReader(o.body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", l.token)
	req.Header.Set("Idempotency-Key", o.key)
	resp, err := h.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// keep remembers an answer.
func (l *clusterLoad) keep(m *member, o order, began time.Time, body []byte) {
	var a appliance.Attestation
	if err := json.Unmarshal(body, &a); err != nil {
		l.t.Errorf("%s answered %s: %v", m.name, body, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, known := l.ids[o.key]; known && id != a.ID {
		l.t.Errorf("the Idempotency-Key %s was answered with %s, and by %s with %s", o.key, id, m.name, a.ID)
	}
	l.ids[o.key], l.answered[a.ID] = a.ID, a
	m.newest.Store(max(m.newest.Load(), began.UnixNano()))
}

func (l *clusterLoad) count(m *member, status int, body []byte, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	if status != http.StatusOK {
		var problem struct{ Code string }
		_ = json.Unmarshal(body, &problem) // the status suffices
		l.refused[fmt.Sprintf("%s: %d %s", m.name, status, problem.Code)]++
	}
}

// refusals returns the refusals since its last call.
func (l *clusterLoad) refusals() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	refused := l.refused
	l.refused = map[string]int{}
	return refused
}

// sofar returns the answers until now.
func (l *clusterLoad) sofar() (
	answered map[uuid.UUID]appliance.Attestation, ids map[string]uuid.UUID, slowest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered, ids, slowest = make(map[uuid.UUID]appliance.Attestation, len(l.answered)),
		make(map[string]uuid.UUID, len(l.ids)), l.slowest
	for id, a := range l.answered {
		answered[id] = a
	}
	for key, id := range l.ids {
		ids[key] = id
	}
	l.slowest = 0
	return answered, ids, slowest
}

// checkpointWatch collects every checkpoint that members serve, as monitors of the log do.
type checkpointWatch struct {
	t        *testing.T
	verifier note.Verifier
	stop     context.CancelFunc
	all      sync.WaitGroup

	mu    sync.Mutex
	roots map[int64]tlog.Hash // by size
}

func watchCheckpoints(c *cluster) *checkpointWatch {
	ctx, stop := context.WithCancel(context.Background())
	w := &checkpointWatch{t: c.T, stop: stop, roots: map[int64]tlog.Hash{}}
	var err error
	if w.verifier, err = note.NewVerifier(c.verifierKey(c.members[0])); err != nil {
		c.Fatal(err)
	}
	for _, m := range c.members {
		w.all.Go(func() { w.watch(ctx, m) })
	}
	c.Cleanup(w.end)
	return w
}

func (w *checkpointWatch) end() {
	w.stop()
	w.all.Wait()
}

func (w *checkpointWatch) watch(ctx context.Context, m *member) {
	h := &http.Client{Transport: &http.Transport{}, Timeout: clusterDeadline}
	defer h.CloseIdleConnections()
	var last int64
	for ctx.Err() == nil {
		if tree, err := w.ask(h, m); err == nil {
			w.see(m, tree)
			if tree.N < last {
				w.t.Errorf("%s served a checkpoint of %d, and later one of %d", m.name, last, tree.N)
			}
			last = tree.N
		}
		time.Sleep(10 * time.Millisecond) // between two polls
	}
}

// ask fails if the member is down, or has no checkpoint to serve.
func (w *checkpointWatch) ask(h *http.Client, m *member) (tlog.Tree, error) {
	resp, err := h.Get(m.URL + "/log/checkpoint")
	if err != nil {
		return tlog.Tree{}, err
	}
	defer resp.Body.Close()
	signed, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return tlog.Tree{}, fmt.Errorf("%s: %w", resp.Status, err)
	}
	tree, err := journal.OpenCheckpoint(signed, w.verifier)
	if err != nil {
		w.t.Errorf("%s served a checkpoint that is none: %v\n%s", m.name, err, signed)
	}
	return tree, err
}

func (w *checkpointWatch) see(m *member, tree tlog.Tree) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if root, seen := w.roots[tree.N]; seen && root != tree.Hash {
		w.t.Errorf("two checkpoints of size %d: %s, and by %s %s", tree.N, root, m.name, tree.Hash)
	}
	w.roots[tree.N] = tree.Hash
}

// await waits until a checkpoint of that size, or a larger one, was served.
func (w *checkpointWatch) await(size int64) {
	w.t.Helper()
	daemontest.Await(w.t, fmt.Sprintf("a checkpoint of size %d", size), func() (bool, string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for n := range w.roots {
			if n >= size {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d checkpoints", len(w.roots))
	})
}

// check compares a member's export of the journal with all answers and checkpoints until now.
func (c *cluster) check(m *member) {
	c.Helper()
	answered, ids, slowest := c.load.sofar()
	c.watch.mu.Lock()
	roots := make(map[int64]tlog.Hash, len(c.watch.roots))
	for size, root := range c.watch.roots {
		roots[size] = root
	}
	c.watch.mu.Unlock()
	if out := m.Run(c, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
		c.Error(out)
	}
	records, byKey := c.readJournal(m, roots)
	for id, a := range answered {
		if r, found := records[id]; !found || r.Attestation != a {
			c.Errorf("%s was answered, and the journal has %+v", id, r)
		}
	}
	for key, id := range ids {
		if byKey[key] != id {
			c.Errorf("the Idempotency-Key %s was answered with %s, and the journal has %s", key, id, byKey[key])
		}
	}
	if slowest > clusterPatience() {
		c.Errorf("an answer took %s", slowest)
	}
	c.Logf("%d answered, %d recorded, %d checkpoints seen; slowest answer %s; refused %v", len(answered), len(records),
		len(roots), slowest.Round(time.Millisecond), c.load.refusals())
}

// readJournal exports the journal and compares its tree with the checkpoints that were served.
func (c *cluster) readJournal(m *member,
	roots map[int64]tlog.Hash) (map[uuid.UUID]appliance.Record, map[string]uuid.UUID) {
	c.Helper()
	records, byKey := map[uuid.UUID]appliance.Record{}, map[string]uuid.UUID{}
	var tree journal.Frontier
	matched := 0
	for line := range bytes.Lines([]byte(m.Run(c, "log", "export"))) {
		leaf := bytes.TrimSuffix(line, []byte("\n"))
		tree.Add(nil, tlog.RecordHash(leaf))
		if root, seen := roots[tree.Size()]; seen {
			if matched++; root != tree.Tree().Hash {
				c.Errorf("the checkpoint of size %d that was served is not of this journal", tree.Size())
			}
		}
		if journal.IsEvent(leaf) {
			continue
		}
		r, err := journal.DecodeLeaf(leaf)
		if err != nil {
			c.Fatalf("%v: %s", err, leaf)
		}
		if _, twice := records[r.ID]; twice {
			c.Errorf("%s is recorded twice", r.ID)
		}
		if id, twice := byKey[r.IdempotencyKey]; twice {
			c.Errorf("the Idempotency-Key %s has the records %s and %s", r.IdempotencyKey, id, r.ID)
		}
		records[r.ID], byKey[r.IdempotencyKey] = r, r.ID
	}
	if _, empty := roots[0]; empty {
		matched++
	}
	if matched != len(roots) {
		c.Errorf("%d checkpoints were served that are larger than the journal", len(roots)-matched)
	}
	return records, byKey
}
