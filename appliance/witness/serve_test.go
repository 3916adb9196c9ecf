package witness_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
	"github.com/attestd/attestd/store/storetest"
)

func TestWhatIsPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w1, w2 := r.fake("w1"), r.fake("w2")
	g := r.open(w1.line() + w2.line() + "group both all w1 w2\nquorum both\n")
	down := func(w http.ResponseWriter, _ string) bool { w.WriteHeader(http.StatusBadGateway); return true }
	published := func(records int64, cosignatures int) {
		t.Helper()
		signed, err := g.Published(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tree, err := journal.OpenCheckpoint(signed, r.key.Verifier)
		if n := strings.Count(string(signed), "\n— ") - 1; err != nil || tree.N != records || n != cosignatures {
			t.Errorf("published: %v, %d records with %d cosignatures, want %d with %d", err, tree.N, n, records,
				cosignatures)
		}
	}
	r.append(3)
	w2.set(down)
	r.gather(g)
	published(3, 0) // one of two witnesses is not a quorum
	r.append(2)
	w2.set(nil)
	r.gather(g)
	published(5, 2)
	r.append(4)
	published(5, 2) // the newest with a quorum, not the newest of all
	w1.set(down)
	r.gather(g)
	published(5, 2)
	w1.set(nil)
	r.gather(g)
	published(9, 2)
	if asked := w2.asked(); asked != "old 0, old 0, old 5" {
		t.Errorf("w2 was asked %q: the round in which only w1 was missing should have left it alone", asked)
	}
	g.Use(nil)
	r.append(1)
	published(10, 0)
}

func TestWhatIsPublishedNeverShrinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	g := r.open(w.line() + "quorum w1\n")
	r.append(3)
	grown := make(chan struct{})
	w.set(func(http.ResponseWriter, string) bool { // 5 records are published while it cosigns 3
		r.append(2)
		if _, err := g.Published(t.Context()); err != nil {
			t.Error(err)
		}
		close(grown)
		return false
	})
	r.gather(g)
	<-grown
	w.set(nil)
	r.witnessed(g, 3)
	for _, want := range []int64{5, 5} {
		signed, err := g.Published(t.Context())
		if tree, openErr := journal.OpenCheckpoint(signed, r.key.Verifier); err != nil || openErr != nil ||
			tree.N != want {
			t.Errorf("published %d records: %v", tree.N, err)
		}
		r.gather(g)
	}
	r.witnessed(g, 5)
}

func TestARecordIsProvenUnderAWitnessedCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	policy := r.policy(w.line() + "quorum w1\n")
	g := r.open(w.line() + "quorum w1\n")
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := g.Prove(ended, 2)
	if appliance.CodeOf(err) != appliance.CodeTimeout ||
		!strings.Contains(err.Error(), "they have not cosigned a checkpoint") {
		t.Errorf("error %v", err)
	}
	r.append(300)
	r.gather(g)
	r.append(10)
	leaves := make(map[int64][]byte)
	if err := r.journal.Entries(t.Context(), 0, func(e journal.Entry) error {
		leaves[e.Index] = e.Leaf
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, index := range []int64{0, 2, 255, 256, 299} {
		proof, err := g.Prove(ended, index)
		if err != nil || proof.TreeSize != 300 {
			t.Fatalf("record %d: %v, %d records", index, err, proof.TreeSize)
		}
		if _, err := policy.Open([]byte(proof.Checkpoint), r.now); err != nil {
			t.Error(err)
		}
		if err := proof.Verify(leaves[index], r.key.Verifier); err != nil {
			t.Errorf("record %d: %v", index, err)
		}
	}
	_, err = g.Prove(ended, 305)
	if appliance.CodeOf(err) != appliance.CodeTimeout ||
		!strings.Contains(err.Error(), "their newest has 300 records") {
		t.Errorf("error %v", err)
	}

	// A waiting call has the witnesses asked at once, although the next round is ten minutes away.
	running, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); g.Run(running) }()
	waiting, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if proof, err := g.Prove(waiting, 305); err != nil || proof.TreeSize != 310 {
		t.Errorf("record 305: %v, %d records", err, proof.TreeSize)
	}
	stop()
	<-stopped

	r.forget(400)
	if _, err := g.Prove(t.Context(), 2); err == nil ||
		!strings.Contains(err.Error(), "first 310 records differ from the checkpoint") {
		t.Errorf("error %v", err)
	}
	g.Use(nil)
	if _, err := g.Prove(t.Context(), 2); appliance.CodeOf(err) != appliance.CodeNotFound ||
		!strings.Contains(err.Error(), "journal.witnesses is not set") {
		t.Errorf("error %v", err)
	}
}

func TestWitnessesThatHangHoldUpNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, well := r.fake("w1"), r.fake("w2")
	release := make(chan struct{})
	w.set(func(http.ResponseWriter, string) bool { <-release; return false })
	g := r.open(w.line() + well.line() + "group any any w1 w2\nquorum any\n")
	r.append(3)
	gathered := make(chan struct{})
	go func() { defer close(gathered); _ = g.Gather(t.Context()) }()
	if c, err := g.Covering(t.Context(), 3); err != nil || c.Tree.N != 3 { // w2 suffices, although w1 has not answered
		t.Errorf("%v, %d records", err, c.Tree.N)
	}
	for range 100 {
		if _, _, err := r.journal.Append(t.Context(), storetest.Record(t, "key")); err != nil {
			t.Fatal(err)
		}
		if signed, err := g.Published(t.Context()); err != nil || !strings.Contains(string(signed), "\n— w2 ") {
			t.Fatalf("published: %v\n%s", err, signed)
		}
	}
	close(release)
	<-gathered
}

func TestAWitnessThatHangsDelaysNoFirstCheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := r.fake("w1")
	asked, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	w.set(func(http.ResponseWriter, string) bool { once(); <-release; return false })
	g := r.open(w.line() + "quorum w1\n")
	r.append(3)
	gathered := make(chan struct{})
	go func() { defer close(gathered); _ = g.Gather(t.Context()) }()
	<-asked
	signed, err := g.Published(t.Context())
	if err != nil || !strings.HasPrefix(string(signed), r.key.Verifier.Name()+"\n3\n") {
		t.Errorf("published: %v\n%s", err, signed)
	}
	select {
	case <-gathered:
		t.Error("the checkpoint was published after the witness's time was over")
	default:
	}
	close(release)
	<-gathered
}

// Each witness answers only when both have been asked.
func TestAllWitnessesAreAskedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one, other := r.fake("w1"), r.fake("w2")
	var both sync.WaitGroup
	both.Add(2)
	for _, w := range []*fake{one, other} {
		once := sync.OnceFunc(both.Done)
		w.set(func(http.ResponseWriter, string) bool { once(); both.Wait(); return false })
	}
	g := r.open(one.line() + other.line() + "group all all w1 w2\nquorum all\n")
	r.append(3)
	r.gather(g)
	r.witnessed(g, 3)
}

// A witness that the quorum does not need is asked, too, and its cosignature is published.
func TestAWitnessOutsideTheQuorumIsAskedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	needed, other := r.fake("w1"), r.fake("w2")
	g := r.open(needed.line() + other.line() + "quorum w1\n")
	r.append(3)
	r.gather(g)
	signed, err := g.Published(t.Context())
	if asked := other.asked(); err != nil || asked != "old 0" || !strings.Contains(string(signed), "\n— w2 ") {
		t.Errorf("w2 was asked %q: %v\n%s", asked, err, signed)
	}
}

func TestWhereWitnessesMayBe(t *testing.T) {
	t.Parallel()
	for address, good := range map[string]bool{
		"https://witness.example": true, "https://witness.example/prefix/": true, "http://127.0.0.1:7380": true,
		"http://localhost/x": true, "http://[::1]:1": true,
		"http://witness.example": false, "ftp://witness.example": false, "witness.example": false, "https://": false,
		"https://a:b@witness.example": false,
		"https://witness.example?x":   false, "https://witness.example/?": false, "https://witness.example#x": false,
		"http://127.0.0.1.example": false, "https://%zz": false,
	} {
		if err := witness.CheckURL(address); (err == nil) != good {
			t.Errorf("%s: %v", address, err)
		}
	}
	key := newCosigner("w").vkey()
	for text, fault := range map[string]string{
		"witness w " + key + " https://w.example\nquorum w\n": "",
		"witness w " + key + " http://w.example\nquorum w\n":  "URL of witness w: must be https",
		"witness w " + key + "\nquorum w\n":                   "the quorum is w",
		"witness w " + key + "\nquorum none\n":                "",
	} {
		p, err := witness.ParsePolicy([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if err = p.Askable(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
