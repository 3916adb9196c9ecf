package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/report"
)

var (
	shownText  = regexp.MustCompile(`(?s)Tf \d+ \d+ Td \((.*?)\) Tj ET\n`)
	pdfObjects = regexp.MustCompile(`(?m)^(\d+) 0 obj$`)
)

// A PDF shows the report, and has the signed JSON as its attachment. TEST_PDF names a file for a look at it.
func TestAPDFShowsTheReportAndHasTheSignedJSON(t *testing.T) {
	t.Parallel()
	m := newMonth(t)
	r, err := report.Make(t.Context(), m.journal, m.key, report.Options{From: begin, Until: begin.AddDate(0, 0, 6),
		Now: begin.AddDate(0, 0, 7), By: "Zoë (ops)", Audit: audit.Options{AnySigner: true}})
	if err != nil {
		t.Fatal(err)
	}
	const keys = 300
	for i := range keys { // several pages
		r.Keys = append(r.Keys, report.Key{ID: fmt.Sprintf("key%d", i), Name: strings.Repeat("long ", 30) + "鍵\\"})
	}
	signed, err := report.Sign(r, m.key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := signed.WritePDF(&out); err != nil {
		t.Fatal(err)
	}
	pdf := out.String()
	if path := os.Getenv("TEST_PDF"); path != "" {
		if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	for _, found := range shownText.FindAllStringSubmatch(pdf, -1) {
		if len(found[1]) > 110 {
			t.Errorf("a line leaves the page: %q", found[1])
		}
		text.WriteString(found[1] + "\n")
	}
	for _, want := range []string{"Audit report\n", "Journal integrity: verified.", "by Zo\xeb \\(ops\\)\n", "a drill",
		"key_revoked", "key299 ", "?\\\\\n", "attestd audit report v1", fmt.Sprintf("%x", []byte(r.Verification.Root))} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the PDF lacks %q", want)
		}
	}
	if pages := strings.Count(pdf, "/Type /Page "); pages < 5 || !strings.Contains(pdf, fmt.Sprintf("/Count %d ", pages)) {
		t.Errorf("%d pages", pages)
	}

	_, attached, _ := strings.Cut(pdf, "/EmbeddedFile ")
	_, attached, _ = strings.Cut(attached, "stream\n")
	attached, _, _ = strings.Cut(attached, "\nendstream")
	if got, err := report.Verify([]byte(attached), m.key.Verifier); err != nil || len(got.Keys) != len(r.Keys) {
		t.Errorf("the attachment: %v", err)
	}
	if !json.Valid([]byte(attached)) || !strings.Contains(pdf, fmt.Sprintf("/Length %d >>\nstream\n{", len(attached))) {
		t.Error("the attachment's length is wrong")
	}

	// Each entry of the index leads to its object.
	_, at, _ := strings.Cut(pdf, "startxref\n")
	start, err := strconv.Atoi(strings.Split(at, "\n")[0])
	if err != nil || !strings.HasPrefix(pdf[start:], "xref\n") {
		t.Fatalf("the index is not at %d: %v", start, err)
	}
	entries := strings.Split(pdf[start:], "\n")[3:]
	objects := pdfObjects.FindAllStringSubmatchIndex(pdf, -1)
	for i, o := range objects {
		if want := fmt.Sprintf("%010d 00000 n ", o[0]); entries[i] != want || pdf[o[2]:o[3]] != strconv.Itoa(i+1) {
			t.Fatalf("object %d: %q, want %q", i+1, entries[i], want)
		}
	}
	if !strings.HasPrefix(entries[len(objects)], "trailer") {
		t.Errorf("%d objects, then %q", len(objects), entries[len(objects)])
	}
	if !strings.Contains(pdf, "/CreationDate (D:"+begin.AddDate(0, 0, 7).Format("20060102150405")+"Z)") {
		t.Error("the PDF has no date")
	}
}
