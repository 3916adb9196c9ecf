package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/report"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

var begin = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

const (
	payments = "k3x5wq7mzp2n4r6t"
	billing  = "aaaaaaaaaaaaaaaa"
)

// month is a journal of some days, whose period is the days 2 and 3.
type month struct {
	key     journal.LogKey
	journal *bolt.Journal
	now     atomic.Pointer[time.Time]
}

func newLogKey(t *testing.T, origin string) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey(origin)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newMonth(t *testing.T) *month {
	t.Helper()
	m := &month{key: newLogKey(t, "example.com/attestd")}
	m.at(0)
	store, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"), bolt.Options{Signer: m.key.Signer,
		Verifier: m.key.Verifier, Now: func() time.Time { return *m.now.Load() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	m.journal = store.Journal()
	m.event(t, journal.EventKeyCreated, map[string]string{"id": payments, "name": "payments"})
	m.attest(t, payments)
	m.event(t, journal.EventPaused, map[string]string{"reason": "before the period"})
	m.at(2)
	m.event(t, journal.EventResumed, map[string]string{"paused": "then"})
	m.event(t, journal.EventKeyCreated, map[string]string{"id": billing, "name": "billing"})
	m.attest(t, payments)
	m.attest(t, billing)
	m.attest(t, payments)
	m.event(t, journal.EventRefused, map[string]string{"code": "screened", "keyId": billing})
	m.event(t, journal.EventRefused, map[string]string{"code": "screened", "keyId": billing, "leftOut": "5"})
	m.at(3)
	m.event(t, journal.EventKeyRevoked, map[string]string{"id": billing, "name": "billing"})
	m.event(t, journal.EventPaused, map[string]string{"reason": "a drill"})
	m.at(5)
	m.event(t, journal.EventResumed, map[string]string{"paused": "then"})
	m.attest(t, payments)
	return m
}

func (m *month) at(day int) { m.now.Store(new(begin.AddDate(0, 0, day))) }

func (m *month) event(t *testing.T, kind journal.EventKind, details map[string]string) {
	t.Helper()
	if _, err := m.journal.AppendEvent(t.Context(), journal.Event{Kind: kind, By: "alice", Details: details}); err != nil {
		t.Fatal(err)
	}
}

func (m *month) attest(t *testing.T, key string) {
	t.Helper()
	if _, _, err := m.journal.Append(t.Context(), storetest.Record(t, key)); err != nil {
		t.Fatal(err)
	}
}

func (m *month) report(t *testing.T) report.Report {
	t.Helper()
	r, err := report.Make(t.Context(), m.journal, m.key, report.Options{From: begin.AddDate(0, 0, 1),
		Until: begin.AddDate(0, 0, 4), By: "alice", Now: begin.AddDate(0, 0, 6)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sign(t *testing.T, r report.Report, signer note.Signer) []byte {
	t.Helper()
	signed, err := report.Sign(r, signer)
	if err != nil {
		t.Fatal(err)
	}
	file, err := json.MarshalIndent(signed, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAReportCountsItsPeriodOnly(t *testing.T) {
	t.Parallel()
	m := newMonth(t)
	r := m.report(t)
	if r.Attestations != 3 || r.Refusals != 7 || r.Codes["screened"] != 2 || r.Codes[report.NotRecorded] != 5 {
		t.Errorf("%d attestations, %d refusals: %v", r.Attestations, r.Refusals, r.Codes)
	}
	if len(r.Keys) != 2 || r.Keys[0].Name != "billing" || r.Keys[0].Attestations != 1 || r.Keys[0].Refusals != 2 ||
		r.Keys[1].Name != "payments" || r.Keys[1].Attestations != 2 {
		t.Errorf("keys: %+v", r.Keys)
	}
	if len(r.Changes) != 2 || r.Changes[0].Event != journal.EventKeyCreated || r.Changes[1].Key != billing {
		t.Errorf("changes: %+v", r.Changes)
	}
	if r.StoppedAt != "paused: before the period" || len(r.Stops) != 2 || r.Stops[1].Reason != "a drill" {
		t.Errorf("at the start %q, then %+v", r.StoppedAt, r.Stops)
	}
	if r.First != 3 || r.Last != 11 || r.Events["refused"] != 2 {
		t.Errorf("records %d to %d, events %v", r.First, r.Last, r.Events)
	}
	if !r.Verification.OK || r.Verification.Size != 14 || len(r.Verification.Signers) == 0 {
		t.Errorf("verification: %+v", r.Verification)
	}
	var page bytes.Buffer
	signed, err := report.Sign(r, m.key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	if err := signed.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a drill", "screened: 2", "billing", "Journal integrity: verified", m.key.VerifierText} {
		if !strings.Contains(strings.ReplaceAll(page.String(), "&#43;", "+"), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestAnEmptyPeriodIsRefused(t *testing.T) {
	t.Parallel()
	m := newMonth(t)
	_, err := report.Make(t.Context(), m.journal, m.key,
		report.Options{From: begin.AddDate(0, 0, 7), Now: begin.AddDate(0, 0, 6)})
	if appliance.CodeOf(err) != appliance.CodeInvalidField {
		t.Error(err)
	}
}

func TestVerificationOfReports(t *testing.T) {
	t.Parallel()
	m := newMonth(t)
	genuine := m.report(t)
	other := newLogKey(t, "example.com/other")
	sameName := newLogKey(t, "example.com/attestd")
	change := func(f func(r *report.Report)) []byte {
		r := genuine
		f(&r)
		return sign(t, r, m.key.Signer)
	}
	for name, test := range map[string]struct {
		file []byte
		want report.Code
	}{
		"genuine":             {sign(t, genuine, m.key.Signer), ""},
		"text":                {[]byte("rubbish"), report.CodeNotReport},
		"another object":      {[]byte(`{"report":{"version":1,"x":2},"signature":"x"}`), report.CodeNotReport},
		"a later version":     {change(func(r *report.Report) { r.Version = 2 }), report.CodeNotReport},
		"signed by another":   {sign(t, genuine, sameName.Signer), report.CodeSignature},
		"another log's":       {sign(t, genuine, other.Signer), report.CodeSignature},
		"names another log":   {change(func(r *report.Report) { r.Log = journal.LogName(other.Verifier) }), report.CodeOtherLog},
		"names another key":   {change(func(r *report.Report) { r.VerifierKey = other.VerifierText }), report.CodeOtherLog},
		"a changed number":    {bytes.Replace(sign(t, genuine, m.key.Signer), []byte(`"refusals": 7`), []byte(`"refusals": 0`), 1), report.CodeChanged},
		"a foreign signature": {moved(t, genuine, m.key.Signer), report.CodeChanged},
		"its checkpoint": {change(func(r *report.Report) { r.Verification.Size-- }),
			report.CodeCheckpoint},
		"its counts":         {change(func(r *report.Report) { r.Attestations++ }), report.CodeInconsistent},
		"of a faulty log":    {change(func(r *report.Report) { r.Verification.OK = false }), report.CodeJournalFaults},
		"without signature":  {signedBy(t, genuine, m.key.Signer, "no signature"), report.CodeSignature},
		"a checkpoint alone": {signedBy(t, genuine, m.key.Signer, genuine.Verification.Checkpoint), report.CodeChanged},
	} {
		_, err := report.Verify(test.file, m.key.Verifier)
		var refused *report.Error
		if errors.As(err, &refused); test.want == "" && err != nil || test.want != "" && (refused == nil || refused.Code != test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// moved returns a report with the signature of another report of the same log.
func moved(t *testing.T, r report.Report, signer note.Signer) []byte {
	t.Helper()
	r.By = "mallory"
	other, err := report.Sign(r, signer)
	if err != nil {
		t.Fatal(err)
	}
	r.By = "alice"
	return signedBy(t, r, signer, other.Signature)
}

// signedBy returns a report with another signature than its own.
func signedBy(t *testing.T, r report.Report, signer note.Signer, signature string) []byte {
	t.Helper()
	signed, err := report.Sign(r, signer)
	if err != nil {
		t.Fatal(err)
	}
	signed.Signature = signature
	file, err := json.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAFaultOfTheJournalIsReported(t *testing.T) {
	t.Parallel()
	m := newMonth(t)
	m.at(5)
	m.event(t, journal.EventApprovalRequested, map[string]string{"log": "example.com/elsewhere"})
	r, err := report.Make(t.Context(), m.journal, m.key, report.Options{From: begin, Now: begin.AddDate(0, 0, 6)})
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verification; v.OK || v.Faults != 1 || len(v.Damages) != 1 || v.Damages[0].Part != "approval" ||
		r.Approvals.Requested != 1 {
		t.Errorf("%+v, %+v", v, r.Approvals)
	}
}
