package graphql_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// docs/graphql.md is a test. Its examples run against a real endpoint over a real replica, and its lists of codes,
// settings and unserved queries are checked against the code. An example is a heading followed by these blocks:
//
//	```graphql          the query
//	```json variables   its variables, if any
//	```json answer      the whole answer, formatted
//	```http             headers of the answer to the same request, repeatAfter later
//	```console          lines "$ curl …", each followed by its output
//
// After the answers change, go test ./api/graphql -run Docs -update rewrites the blocks.
var update = flag.Bool("update", false, "write the variables and answers of docs/graphql.md anew")

const (
	docsURL     = "http://127.0.0.1:8080"
	repeatAfter = 12 * time.Second
)

// docsExamples lists the examples of docs/graphql.md in order. Values that depend on the generated data are taken from
// earlier answers, as a client would do, so that pages really follow each other.
var docsExamples = []struct {
	heading   string
	variables func(d *docsRun) map[string]any
}{
	{"With curl", nil},
	{"Transfers", nil},
	{"Next page", func(d *docsRun) map[string]any {
		return map[string]any{"cursor": d.text("Transfers", last, "sort_order")}
	}},
	{"Previous page", func(d *docsRun) map[string]any {
		return map[string]any{"cursor": d.text("Next page", 0, "sort_order")}
	}},
	{"Filters and pages together", func(d *docsRun) map[string]any {
		return map[string]any{"source": d.text("Transfers", 0, "source_universal_chain_id"),
			"cursor": d.text("Transfers", 0, "sort_order")}
	}},
	{"Addresses as a variable", func(d *docsRun) map[string]any {
		return map[string]any{"addresses": []string{d.text("Transfers", 0, "sender_canonical"),
			d.text("Transfers", last, "receiver_canonical")}}
	}},
	{"A packet with its traces", func(d *docsRun) map[string]any {
		return map[string]any{"transaction": d.completedTransaction()}
	}},
	{"Tokens of a chain", nil},
	{"Counts", nil},
	{"Sharing answers with @cached", nil},
	{"The schema", nil},
	{"A top-level where", nil},
	{"How old the replica is", nil},
	{"An error", nil},
}

const last = -1

func TestDocsExamples(t *testing.T) {
	d := newDocsRun(t)
	var headings []string
	for _, b := range d.doc.blocks {
		if isExample := b.info == "graphql" || b.info == "console" && strings.Contains(b.text, "$ curl"); isExample {
			headings = append(headings, b.heading)
		}
	}
	var want []string
	for _, e := range docsExamples {
		want = append(want, e.heading)
	}
	if !slices.Equal(headings, want) {
		t.Fatalf("%s has the examples\n%q\nwant\n%q", d.doc.path, headings, want)
	}
	for _, e := range docsExamples {
		t.Run(e.heading, func(t *testing.T) {
			d.t = t
			if d.doc.block(e.heading, "console") != nil {
				d.console(e.heading)
				return
			}
			d.query(e.heading, e.variables)
		})
	}
	if *update {
		d.doc.write(t)
	}
}

// docsRun runs the examples of docs/graphql.md.
type docsRun struct {
	t       *testing.T
	doc     *document
	server  *server
	passed  atomic.Int64 // nanoseconds that the endpoint's clock has been advanced
	answers map[string]map[string][]map[string]any
}

func newDocsRun(t *testing.T) *docsRun {
	t.Helper()
	made := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	d := &docsRun{t: t, doc: readDocument(t, "graphql.md"), answers: make(map[string]map[string][]map[string]any)}
	now := func() time.Time { return made.Add(time.Duration(d.passed.Load())) }
	replica, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { replica.Close() })
	o := dataset.GenerateOptions{Transfers: 1000, Seed: 1, Now: made}
	err = dataset.Generate(t.Context(), o, func(rows []index.Row) error {
		_, err := replica.Write(context.Background(), index.Batch{Rows: rows})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lag := func() (time.Duration, bool) { return 1200 * time.Millisecond, true }
	d.server = newServer(t, graphql.Options{Index: replica, Now: now, Lag: lag})
	return d
}

// query runs the example of a heading.
func (d *docsRun) query(heading string, derive func(*docsRun) map[string]any) {
	d.t.Helper()
	variables := ""
	if derive != nil {
		encoded, err := json.Marshal(derive(d))
		if err != nil {
			d.t.Fatal(err)
		}
		variables = string(encoded)
		d.expect(heading, "json variables", layout(d.t, encoded, ""))
	}
	query := d.doc.block(heading, "graphql").text
	got := d.server.post(d.t, query, variables)
	d.expect(heading, "json answer", layout(d.t, []byte(got.body), ""))
	var decoded struct{ Data map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(got.body), &decoded); err != nil {
		d.t.Fatal(err)
	}
	d.answers[heading] = make(map[string][]map[string]any)
	for root, value := range decoded.Data {
		var rows []map[string]any
		if json.Unmarshal(value, &rows) == nil {
			d.answers[heading][root] = rows
		}
	}
	if d.doc.block(heading, "http") != nil {
		d.passed.Add(int64(repeatAfter))
		again := d.server.post(d.t, query, variables)
		if again.body != got.body {
			d.t.Errorf("another answer the second time: %s", again.body)
		}
		d.expect(heading, "http", "Cache-Control: "+again.header.Get("Cache-Control")+"\nAge: "+again.header.Get("Age"))
	}
}

// console runs the curl lines of a heading.
func (d *docsRun) console(heading string) {
	d.t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		d.t.Skip("curl is not installed")
	}
	var got []string
	for line := range strings.Lines(d.doc.block(heading, "console").text) {
		command, isCommand := strings.CutPrefix(strings.TrimRight(line, "\n"), "$ ")
		if !isCommand {
			continue
		}
		out, err := exec.CommandContext(d.t.Context(), "sh", "-c",
			strings.ReplaceAll(command, docsURL, d.server.url)).Output()
		if err != nil {
			d.t.Fatalf("%s: %v", command, err)
		}
		got = append(got, "$ "+command, strings.TrimSpace(string(out)))
	}
	d.expect(heading, "console", strings.Join(got, "\n"))
}

// expect compares a block with its expected text.
func (d *docsRun) expect(heading, info, want string) {
	d.t.Helper()
	b := d.doc.block(heading, info)
	switch {
	case b == nil:
		d.t.Fatalf("%s has no block %q under %q", d.doc.path, info, heading)
	case *update:
		b.text = want
	case b.text != want:
		d.t.Errorf("%s:%d says\n%s\nbut it is\n%s", d.doc.path, b.line, b.text, want)
	}
}

// text returns a value of a row from an earlier example's answer.
func (d *docsRun) text(heading string, row int, field string) string {
	d.t.Helper()
	for _, rows := range d.answers[heading] {
		if row == last {
			row = len(rows) - 1
		}
		if text, ok := rows[row][field].(string); ok {
			return text
		}
	}
	d.t.Fatalf("the answer to %q has no %s", heading, field)
	return ""
}

// completedTransaction returns the transaction of the newest single transfer over a state lens that has been
// acknowledged.
func (d *docsRun) completedTransaction() string {
	d.t.Helper()
	var found struct {
		Packets []struct {
			Status, Structure, Transaction string
			Traces                         []struct{ Type string }
		}
	}
	const query = `{ packets: v2_packets(args: {p_network: "mainnet"}) { status structure transaction: packet_send_transaction_hash traces { type } } }`
	if err := json.Unmarshal([]byte(d.server.post(d.t, query, "").data(d.t)), &found); err != nil {
		d.t.Fatal(err)
	}
	for _, p := range found.Packets {
		if p.Status == index.TracePacketAck && p.Structure == "token_order_v2" && len(p.Traces) > 6 {
			return p.Transaction
		}
	}
	d.t.Fatal("no such packet")
	return ""
}

func TestDocsNameEveryCode(t *testing.T) {
	doc := readDocument(t, "graphql.md")
	code := regexp.MustCompile(`Code\w+ +(?:appliance\.)?Code += "(\w+)"`)
	known := code.FindAllStringSubmatch(readSource(t, "errors.go")+readSource(t, "document/errors.go"), -1)
	for _, c := range known {
		if !strings.Contains(doc.section("Errors"), "`"+c[1]+"`") {
			t.Errorf("%s does not name the code %s", doc.path, c[1])
		}
	}
	known = append(known, code.FindAllStringSubmatch(readSource(t, "../../appliance/errors.go"), -1)...)
	for _, row := range tableRows(doc.section("Errors")) {
		for _, c := range codeSpans(row[0]) {
			if !slices.ContainsFunc(known, func(k []string) bool { return k[1] == c }) {
				t.Errorf("%s names the code %s, which does not exist", doc.path, c)
			}
		}
	}
}

func TestDocsNameEverySetting(t *testing.T) {
	doc := readDocument(t, "graphql.md")
	listed := make(map[string]string)
	for _, row := range tableRows(doc.section("Limits and other settings")) {
		for _, name := range codeSpans(row[0]) {
			listed[name] = strings.ReplaceAll(row[1], " ", "")
		}
	}
	known := 0
	for _, s := range config.Settings() {
		if !strings.HasPrefix(s.Name, "graphql.") && !strings.HasPrefix(s.Name, "limits.graphql") {
			continue
		}
		known++
		value := strings.Trim(fmt.Sprint(s.Default), "[]")
		if got, found := listed[s.Name]; !found || !strings.EqualFold(strings.ReplaceAll(got, ",", ""), value) {
			t.Errorf("%s gives %s the default %q (listed: %t), it is %q", doc.path, s.Name, got, found, value)
		}
		delete(listed, s.Name)
	}
	if known < 10 {
		t.Fatalf("%d settings found", known)
	}
	for name := range listed {
		t.Errorf("%s names the setting %s, which does not exist", doc.path, name)
	}
}

func TestDocsNameWhatIsNotServed(t *testing.T) {
	doc := readDocument(t, "graphql.md")
	schema := loadSchema(t)
	names := codeSpans(doc.section("Unsupported queries"))
	if len(names) != 4 {
		t.Errorf("%s names %d queries that are not served: %q", doc.path, len(names), names)
	}
	for _, name := range names {
		if schema.Query.Fields.ForName(name) != nil {
			t.Errorf("%s says that %s is not served, but it is", doc.path, name)
		}
	}
}

// document is a Markdown file of docs/.
type document struct {
	path   string
	lines  []string
	blocks []*block
}

// block is a fenced block of a document.
type block struct {
	heading string // the nearest heading above
	info    string // after the opening fence
	text    string
	line    int // of the opening fence, from 1
	lines   int // of the text
}

func readDocument(t testing.TB, name string) *document {
	t.Helper()
	d := &document{path: filepath.Join("..", "..", "docs", name)}
	d.lines = strings.Split(readSource(t, d.path), "\n")
	heading := ""
	for i := 0; i < len(d.lines); i++ {
		if h := strings.TrimLeft(d.lines[i], "#"); h != d.lines[i] {
			heading = strings.TrimSpace(h)
		}
		info, opens := strings.CutPrefix(d.lines[i], "```")
		if !opens {
			continue
		}
		n := slices.Index(d.lines[i+1:], "```")
		if n < 0 {
			t.Fatalf("%s:%d: a block without an end", d.path, i+1)
		}
		d.blocks = append(d.blocks,
			&block{heading: heading, info: info, text: strings.Join(d.lines[i+1:i+1+n], "\n"), line: i + 1, lines: n})
		i += n + 1
	}
	return d
}

// block returns the block with the given info string under a heading, or nil.
func (d *document) block(heading, info string) *block {
	for _, b := range d.blocks {
		if b.heading == heading && b.info == info {
			return b
		}
	}
	return nil
}

// section returns the text under a heading, up to the next heading of the same or a higher level.
func (d *document) section(heading string) string {
	level := 0
	var text []string
	for _, line := range d.lines {
		depth := len(line) - len(strings.TrimLeft(line, "#"))
		if level > 0 && depth > 0 && depth <= level {
			break
		}
		if level > 0 {
			text = append(text, line)
		}
		if depth > 0 && strings.TrimSpace(line[depth:]) == heading {
			level = depth
		}
	}
	return strings.Join(text, "\n")
}

// write writes the document with its current blocks.
func (d *document) write(t testing.TB) {
	t.Helper()
	for _, b := range slices.Backward(d.blocks) {
		d.lines = slices.Replace(d.lines, b.line, b.line+b.lines, strings.Split(b.text, "\n")...)
	}
	if err := os.WriteFile(d.path, []byte(strings.Join(d.lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tableRows returns the cells of the tables in a text, without header rows.
func tableRows(text string) (rows [][]string) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		isHead := i+1 < len(lines) && strings.HasPrefix(lines[i+1], "| ---")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || isHead {
			continue
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// codeSpans returns the code spans of a text.
func codeSpans(text string) (spans []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(text, -1) {
		spans = append(spans, m[1])
	}
	return spans
}

func readSource(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// layout formats a JSON value for readers: a value that fits on a line stays on it, others get a line per member.
func layout(t testing.TB, raw []byte, indent string) string {
	t.Helper()
	var b bytes.Buffer
	line := oneLine(t, raw)
	if raw = bytes.TrimSpace(raw); len(indent)+len(line) <= 110 || raw[0] != '{' && raw[0] != '[' {
		return line
	}
	in := json.NewDecoder(bytes.NewReader(raw))
	in.Token() // the opening bracket
	b.WriteByte(raw[0])
	for separator := "\n"; in.More(); separator = ",\n" {
		b.WriteString(separator + indent + "  ")
		if raw[0] == '{' {
			name, _ := in.Token()
			b.WriteString(`"` + name.(string) + `": `)
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		b.WriteString(layout(t, value, indent+"  "))
	}
	b.WriteString("\n" + indent + string(raw[len(raw)-1]))
	return b.String()
}

var betweenMembers = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[,:]`)

// oneLine writes a JSON value on one line, with a space after commas and colons.
func oneLine(t testing.TB, raw []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return betweenMembers.ReplaceAllStringFunc(b.String(), func(token string) string {
		if token == "," || token == ":" {
			return token + " "
		}
		return token
	})
}
