package audit_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// continuedLog is a log that continues an auditLog after some of its leaves were lost.
type continuedLog struct {
	auditLog
	old   auditLog
	event journal.Event
}

func newContinuedLog(t testing.TB, published, left int) (c continuedLog) {
	t.Helper()
	c.old = newAuditLog(t, published)
	var err error
	c.event, err = journal.NewContinuation(c.old.key, c.old.checkpoints[left], c.old.checkpoints[published], "a test",
		"root", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if c.key, _, err = c.old.key.Continue(c.event); err != nil {
		t.Fatal(err)
	}
	leaf, err := journal.EncodeEvent(c.event)
	if err != nil {
		t.Fatal(err)
	}
	c.leaves = append([][]byte{leaf}, c.old.leaves[:left]...)
	return c
}

// audits audits the leaves with a checkpoint of exactly these leaves.
func (c continuedLog) audits(t testing.TB, leaves [][]byte, earlier []byte) audit.Report {
	t.Helper()
	var tree hashTree
	for i, leaf := range leaves {
		tree.add(t, int64(i), leaf)
	}
	root, err := tlog.TreeHash(int64(len(leaves)), tree)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := journal.SignCheckpoint(tlog.Tree{N: int64(len(leaves)), Hash: root}, c.key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	return c.audit(t, leaves, earlier, signed)
}

func TestAuditOfAContinuedLog(t *testing.T) {
	c := newContinuedLog(t, 12, 9)
	changed := append([][]byte{}, c.leaves...)
	changed[3] = c.old.leaves[11]
	for name, test := range map[string]struct {
		leaves  [][]byte
		earlier []byte
		fault   string // empty: no damage
	}{
		"whole":                                {c.leaves, nil, ""},
		"with what came since":                 {append(c.leaves[:10:10], c.old.leaves[11]), nil, ""},
		"an earlier checkpoint of the old log": {c.leaves, c.old.checkpoints[5], ""},
		"the last of it that is left":          {c.leaves, c.old.checkpoints[9], ""},
		"one of what was lost": {c.leaves, c.old.checkpoints[12],
			"has 12 records of example.com/log+"},
		"one of what was lost names the reason": {c.leaves, c.old.checkpoints[11], "continues only 9 of them: a test"},
		"one of another log": {c.leaves, newContinuedLog(t, 5, 5).old.checkpoints[5],
			"and this log does not continue that one"},
		"a record of the old log is another": {changed, nil, "differ from the old log's checkpoint"},
		"and the earlier checkpoint tells":   {changed, c.old.checkpoints[5], "the first 5 records of the old log"},
		"a record of the old log is missing": {c.leaves[:9], nil,
			"continues a log of 9 records, but only 8 come after it"},
		"the event is not the first": {append([][]byte{c.old.leaves[0]}, c.leaves...), nil,
			"only a log's first leaf can continue"},
	} {
		report := c.audits(t, test.leaves, test.earlier)
		found := ""
		for _, d := range report.Damages {
			found += d.String() + "\n"
		}
		if test.fault == "" && !report.OK() || !strings.Contains(found, test.fault) || test.fault != "" && report.OK() {
			t.Errorf("%s: %q, not %q", name, found, test.fault)
		}
	}
}

func TestALeafOfAnEventHasOneForm(t *testing.T) {
	e := newContinuedLog(t, 3, 2).event
	leaf, err := journal.EncodeEvent(e)
	if err != nil {
		t.Fatal(err)
	}
	text := string(leaf)
	if !strings.HasPrefix(text, `{"event":"log_continued","id":"`) {
		t.Errorf("it begins otherwise: %s", text)
	}
	entry, err := journal.DecodeEntry(7, leaf)
	if err != nil || entry.Event == nil || entry.Index != 7 || entry.ID() != e.ID || !entry.Time().Equal(e.Time) ||
		!bytes.Equal(entry.Leaf, leaf) {
		t.Errorf("decoded %+v (%v)", entry, err)
	}
	for name, other := range map[string]string{
		"a newline":        text + "\n",
		"a space":          strings.Replace(text, ":", ": ", 1),
		"another member":   strings.Replace(text, `"id"`, `"x":1,"id"`, 1),
		"no kind":          strings.Replace(text, "log_continued", "", 1),
		"no id":            strings.Replace(text, e.ID.String(), "00000000-0000-0000-0000-000000000000", 1),
		"a member twice":   strings.Replace(text, `"by":"root"`, `"by":"root","by":"root"`, 1),
		"nothing in it":    `{"event":"x"}`,
		"an unclosed leaf": `{"event":"`,
	} {
		if other == text {
			t.Fatalf("%s: the test changes nothing", name)
		}
		if _, err := journal.DecodeEntry(0, []byte(other)); err == nil {
			t.Errorf("%s: a leaf may be %s", name, other)
		}
	}
}

func TestReasonsAndOrigins(t *testing.T) {
	l := newAuditLog(t, 1)
	for _, reason := range []string{"", "  ", "two\nlines", strings.Repeat("x", 1001)} {
		if _, err := journal.NewContinuation(l.key, l.checkpoints[1], nil, reason, "root", time.Now()); err == nil {
			t.Errorf("%q is a reason", reason)
		}
	}
	at := time.Date(2026, 11, 22, 3, 15, 0, 0, time.UTC)
	first := journal.NextOrigin("example.com/attestd", at)
	if first != "example.com/attestd/since-20261122T031500Z" {
		t.Errorf("the origin is %s", first)
	}
	if next := journal.NextOrigin(first, at.Add(time.Hour)); next != "example.com/attestd/since-20261122T041500Z" {
		t.Errorf("the next is %s", next)
	}
	if next := journal.NextOrigin(first, at); next == first {
		t.Errorf("it is %s again", next)
	}
}
