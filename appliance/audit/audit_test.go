package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// auditLog is a log with the given number of leaves and its checkpoint at each size.
type auditLog struct {
	key         journal.LogKey
	leaves      [][]byte
	records     []appliance.Record
	checkpoints [][]byte // by size
}

func newAuditLog(t testing.TB, size int) (l auditLog) {
	t.Helper()
	l.key = testLogKey(t, "example.com/log")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var tree hashTree
	for n := range int64(size) + 1 {
		root, err := tlog.TreeHash(n, tree)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := journal.SignCheckpoint(tlog.Tree{N: n, Hash: root}, l.key.Signer)
		if err != nil {
			t.Fatal(err)
		}
		l.checkpoints = append(l.checkpoints, signed)
		r := storetest.Record(t, "key")
		r.Time = at.Add(time.Duration(n/3) * time.Second)
		leaf, err := journal.EncodeLeaf(r)
		if err != nil {
			t.Fatal(err)
		}
		tree.add(t, n, leaf)
		if n < int64(size) {
			l.leaves, l.records = append(l.leaves, leaf), append(l.records, r)
		}
	}
	return l
}

func (l auditLog) audit(t testing.TB, leaves [][]byte, earlier, checkpoint []byte) audit.Report {
	t.Helper()
	a, err := audit.New(l.key.Verifier, earlier)
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range leaves {
		a.Leaf(leaf)
	}
	return a.Finish(checkpoint)
}

func TestAuditOfASoundLog(t *testing.T) {
	l := newAuditLog(t, 130)
	for size := range 131 {
		report := l.audit(t, l.leaves[:size], l.checkpoints[size/2], l.checkpoints[size])
		tree, err := journal.OpenCheckpoint(l.checkpoints[size], l.key.Verifier)
		if err != nil {
			t.Fatal(err)
		}
		if !report.OK() || report.Size != int64(size) || !bytes.Equal(report.Root, tree.Hash[:]) {
			t.Fatalf("size %d: %+v", size, report)
		}
	}
}

// auditTest is a change of a log and the damages that an audit must report.
type auditTest struct {
	change              func(leaves [][]byte) [][]byte
	earlier, checkpoint []byte
	want                []string
}

func (l auditLog) damages() map[string]auditTest {
	return map[string]auditTest{
		"a salt": {
			change: func(leaves [][]byte) [][]byte {
				leaves[7] = bytes.Replace(leaves[7], []byte(`"salt":"0`), []byte(`"salt":"1`), 1)
				return leaves
			},
			want: []string{"-1 checkpoint"},
		},
		"a signature": {
			change: func(leaves [][]byte) [][]byte {
				leaves[7] = bytes.Replace(leaves[7], []byte(`"v":2`), []byte(`"v":3`), 1)
				return leaves
			},
			want: []string{"7 signature", "-1 checkpoint"},
		},
		"rubbish": {
			change: func(leaves [][]byte) [][]byte { leaves[7] = []byte("rubbish"); return leaves },
			want:   []string{"7 record", "-1 checkpoint"},
		},
		"two swapped": {
			change: func(leaves [][]byte) [][]byte { leaves[7], leaves[12] = leaves[12], leaves[7]; return leaves },
			want:   []string{"8 order", "9 order", "10 order", "11 order", "12 order", "-1 checkpoint"},
		},
		"one dropped": {
			change: func(leaves [][]byte) [][]byte { return append(leaves[:7], leaves[8:]...) },
			want:   []string{"-1 checkpoint"},
		},
		"the last dropped": {
			change: func(leaves [][]byte) [][]byte { return leaves[:19] },
			want:   []string{"-1 checkpoint"},
		},
		"cut back with its checkpoint": {
			change:     func(leaves [][]byte) [][]byte { return leaves[:12] },
			checkpoint: l.checkpoints[12], earlier: l.checkpoints[15],
			want: []string{"-1 checkpoint"},
		},
		"changed below an earlier checkpoint": {
			change: func(leaves [][]byte) [][]byte {
				leaves[7] = bytes.Replace(leaves[7], []byte(`"salt":"0`), []byte(`"salt":"1`), 1)
				return leaves
			},
			earlier: l.checkpoints[15],
			want:    []string{"-1 checkpoint", "-1 checkpoint"},
		},
		"no checkpoint": {checkpoint: []byte("none"), want: []string{"-1 checkpoint"}},
	}
}

func TestAuditFindsDamage(t *testing.T) {
	l := newAuditLog(t, 20)
	for name, test := range l.damages() {
		t.Run(name, func(t *testing.T) {
			leaves := append([][]byte(nil), l.leaves...)
			if test.change != nil {
				leaves = test.change(leaves)
			}
			if test.checkpoint == nil {
				test.checkpoint = l.checkpoints[20]
			}
			report := l.audit(t, leaves, test.earlier, test.checkpoint)
			var got []string
			for _, d := range report.Damages {
				got = append(got, fmt.Sprint(d.Index, " ", d.Part))
				if d.Part == "signature" && d.ID != l.records[7].ID {
					t.Errorf("%s is blamed", d.ID)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("reported %v, not %v", got, test.want)
			}
		})
	}
}

func TestAuditGoesOnAfterALostLeaf(t *testing.T) {
	l := newAuditLog(t, 20)
	a, err := audit.New(l.key.Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, leaf := range l.leaves {
		if i == 7 {
			a.Add(audit.LostLeaf(tlog.RecordHash(leaf), errors.New("is lost")))
			continue
		}
		a.Leaf(leaf)
	}
	report := a.Finish(l.checkpoints[20])
	if len(report.Damages) != 1 || report.Damages[0].String() != "record 7: record: is lost" {
		t.Errorf("reported %v", report.Damages)
	}
}

func TestAuditReportIsBounded(t *testing.T) {
	a, err := audit.New(testLogKey(t, "example.com/log").Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range audit.MaxDamages + 5 {
		a.Leaf([]byte("rubbish"))
	}
	report := a.Finish(nil)
	if len(report.Damages) != audit.MaxDamages || report.More != 6 {
		t.Errorf("%d damages are listed, %d more", len(report.Damages), report.More)
	}
}

func TestAuditRefusesAnotherLogsCheckpoint(t *testing.T) {
	l := newAuditLog(t, 1)
	other := l
	other.key = testLogKey(t, "example.com/other")
	checkpoint, err := journal.SignCheckpoint(tlog.Tree{N: 1, Hash: tlog.RecordHash(l.leaves[0])}, other.key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	if report := other.audit(t, l.leaves, nil, checkpoint); !report.OK() {
		t.Fatal(report)
	}
	if report := other.audit(t, l.leaves, l.checkpoints[1], checkpoint); report.OK() {
		t.Error("it was accepted")
	}
	if _, err := audit.New(l.key.Verifier, []byte("rubbish")); err == nil {
		t.Error("rubbish was accepted")
	}
}

func TestDamageNamesTheRecord(t *testing.T) {
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	for _, test := range []struct {
		damage audit.Damage
		want   string
	}{
		{audit.Damage{Index: -1, Part: "checkpoint", Detail: "is old"}, "checkpoint: is old"},
		{audit.Damage{Index: 3, Part: "tree", Detail: "is wrong"}, "record 3: tree: is wrong"},
		{audit.Damage{Index: 3, ID: id, Part: "tree", Detail: "is wrong"},
			"record 3 (01890a5d-ac96-774b-bcce-b302099a8057): tree: is wrong"},
	} {
		if got := test.damage.String(); got != test.want {
			t.Errorf("%q, not %q", got, test.want)
		}
	}
}

func TestAuditNamesContradictionsOfThisLog(t *testing.T) {
	l := newAuditLog(t, 3)
	other := testLogKey(t, "example.com/other")
	foreign, err := journal.SignCheckpoint(tlog.Tree{N: 1, Hash: tlog.RecordHash(l.leaves[0])}, other.Signer)
	if err != nil {
		t.Fatal(err)
	}
	a, err := audit.New(l.key.Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	var want journal.Event
	for _, checkpoint := range [][]byte{foreign, l.checkpoints[2]} {
		// of a log that this one might have continued; of this one
		want = journal.Event{Kind: journal.EventContradiction, Details: map[string]string{
			journal.DetailWitness: "w1", journal.DetailWitnessKey: "w1.example+01020304",
			journal.DetailReason: "it has cosigned 5 records", journal.DetailCheckpoint: string(checkpoint),
		}}
		if err := want.Prepare(); err != nil {
			t.Fatal(err)
		}
		leaf, err := want.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		a.Leaf(leaf)
	}
	found := a.Finish(nil).Contradictions
	if len(found) != 1 || found[0].Index != 1 || found[0].ID != want.ID || found[0].Witness != "w1" ||
		found[0].Key != "w1.example+01020304" {
		t.Errorf("contradictions: %+v", found)
	}
}

func TestACheckpointHasNoEmptyLine(t *testing.T) {
	l := newAuditLog(t, 1)
	text, _, _ := strings.Cut(string(l.checkpoints[1]), "\n\n")
	for extension, good := range map[string]bool{"": true, "one\n": true, "one\ntwo\n": true, "\n": false,
		"one\n\n": false, "\none\n": false, "one\n\ntwo\n": false} {
		signed, err := note.Sign(&note.Note{Text: text + "\n" + extension}, l.key.Signer)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := journal.OpenCheckpoint(signed, l.key.Verifier); (err == nil) != good {
			t.Errorf("extension lines %q: %v", extension, err)
		}
		if origin, tree, err := journal.ReadCheckpoint(signed); (err == nil) != good || good &&
			(origin != "example.com/log" || tree.N != 1) {
			t.Errorf("extension lines %q: read %q, %v, %v", extension, origin, tree, err)
		}
	}
}
