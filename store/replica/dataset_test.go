package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/storetest"
)

func fill(t testing.TB, r *Store, transfers int) {
	t.Helper()
	err := dataset.Generate(t.Context(), dataset.GenerateOptions{Transfers: transfers, Seed: 1,
		Now: storetest.ReplicaNow}, func(rows []index.Row) error {
		_, err := r.Write(t.Context(), index.Batch{Rows: rows})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func export(t testing.TB, r *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := dataset.Export(t.Context(), r, &b, dataset.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func newReplica(t testing.TB) *Store {
	return openReplica(t, filepath.Join(t.TempDir(), "replica.db"))
}

func TestExportImportExport(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"set.ndjson", "set.ndjson.zst"} {
		t.Run(name, func(t *testing.T) {
			first := newReplica(t)
			fill(t, first, 400)
			path := filepath.Join(t.TempDir(), name)
			all := func(w io.Writer) error {
				_, err := dataset.Export(t.Context(), first, w, dataset.ExportOptions{})
				return err
			}
			if err := dataset.WriteFile(path, io.Discard, all); err != nil {
				t.Fatal(err)
			}
			second := newReplica(t)
			progress := 0
			o := dataset.ImportOptions{BatchRows: 200, OnProgress: func(dataset.Progress) { progress++ }}
			imported, err := dataset.ImportFile(t.Context(), dataset.Into(second), path, o)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(export(t, first), export(t, second)) {
				t.Error("the export of the import is another")
			}
			if progress < 3 || imported.Done != imported.Total || imported.Total == 0 {
				t.Errorf("progress %d times, at the end %+v", progress, imported.Progress)
			}
			again, err := dataset.ImportFile(t.Context(), dataset.Into(second), path, o)
			if err != nil || again.Inserted+again.Updated != 0 || again.Unchanged != imported.Inserted {
				t.Errorf("the second time: %+v, %v", again.Written, err)
			}
		})
	}
}

func TestImportNamesBadLines(t *testing.T) {
	t.Parallel()
	good := `{"kind":"chain","universal_chain_id":"union.union-1"}`
	for _, test := range []struct{ line, reason string }{
		{`{"kind":"chain"}`, "universal_chain_id is missing"},
		{`{"kind":"chain","universal_chain_id":""}`, "universal_chain_id must not be empty"},
		{`{"kind":"chain","universal_chain_id":7}`, "universal_chain_id must be text"},
		{`{"kind":"chain","universal_chain_id":"a.b","testnet":"no"}`, "testnet must be true or false"},
		{`{"kind":"chain","universal_chain_id":"a.b","colour":"red"}`, "colour is not a member of a chain"},
		{`{"kind":"chain","universal_chain_id":"a.b","universal_chain_id":"a.b"}`, "universal_chain_id occurs twice"},
		{`{"kind":"chain","universal_chain_id":"a.b","status":{"timestamp":"yesterday"}}`,
			"timestamp must be an RFC 3339 time"},
		{`{"kind":"planet"}`, "kind must be chain"},
		{`{"universal_chain_id":"a.b"}`, "kind is missing"},
		{`{"kind":"chain","universal_chain_id":"a.b"`, "the row is incomplete"},
		{`{"kind":"chain","universal_chain_id":"a.b"} x`, "unexpected data after the row"},
		{`{"kind":"client","sort_order":"1","universal_chain_id":"a.b","client_id":4294967296,"counterparty_universal_chain_id":"c.d"}`, "client_id must be a 32-bit integer"},
		{"{\"kind\":\"chain\",\"universal_chain_id\":\"a\xff\"}", "universal_chain_id must be UTF-8"},
		{`{"kind":"chain","universal_chain_id":"a\u0000b"}`, "universal_chain_id must not have a zero byte"},
		{`{"kind":"chain","universal_chain_id":"\ud800"}`, "an incomplete surrogate pair"},
		{`[1]`, "instead of"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			in := good + "\n\n" + test.line + "\n" + strings.Replace(good, "union-1", "union-2", 1)
			r := newReplica(t)
			imported, err := dataset.Import(t.Context(), dataset.Into(r), strings.NewReader(in),
				dataset.ImportOptions{})
			var bad dataset.BadLine
			if !errors.As(err, &bad) || bad.Line != 3 || !strings.Contains(bad.Error(), test.reason) {
				t.Errorf("%v, want line 3: %s", err, test.reason)
			}
			if imported.Inserted != 1 {
				t.Errorf("%d rows before it, want 1", imported.Inserted)
			}
			var reported []dataset.BadLine
			o := dataset.ImportOptions{KeepGoing: true, OnBad: func(b dataset.BadLine) {
				reported = append(reported, b)
			}}
			imported, err = dataset.Import(t.Context(), dataset.Into(r), strings.NewReader(in), o)
			if err != nil || imported.Bad != 1 || len(reported) != 1 || reported[0].Line != 3 ||
				imported.Inserted != 1 || imported.Unchanged != 1 {
				t.Errorf("going on: %+v, %v, reported %v", imported, err, reported)
			}
		})
	}
}

// TestImportOfLongSortOrders writes rows with sort_orders of the maximum length, two of them equal, and finds them
// again.
func TestImportOfLongSortOrders(t *testing.T) {
	t.Parallel()
	r := newReplica(t)
	line := func(id int, order string) string {
		return fmt.Sprintf(
			`{"kind":"packet","packet_hash":"0x%064x","sort_order":%q,"source_universal_chain_id":"a.b","destination_universal_chain_id":"c.d"}`+"\n", id, order)
	}
	long, longest := strings.Repeat("7", 1000), strings.Repeat("8", 1024)
	in := line(1, long) + line(2, long) + line(3, longest) + line(4, longest)
	for i, want := range []index.Written{{Inserted: 4}, {Unchanged: 4}} {
		got, err := dataset.Import(t.Context(), dataset.Into(r), strings.NewReader(in), dataset.ImportOptions{})
		if err != nil || got.Written != want {
			t.Fatalf("import %d: %+v, %v", i, got.Written, err)
		}
	}
	_, err := dataset.Import(t.Context(), dataset.Into(r), strings.NewReader(in+line(5, longest+"8")),
		dataset.ImportOptions{})
	var bad dataset.BadLine
	if !errors.As(err, &bad) || bad.Line != 5 || !strings.Contains(bad.Error(), "1 to 1024 bytes") {
		t.Errorf("one byte more: %v", err)
	}
}

// TestImportResumes interrupts an import by a bad line, which is then corrected, and by a writer that fails.
func TestImportResumes(t *testing.T) {
	t.Parallel()
	source := newReplica(t)
	fill(t, source, 1200)
	whole := export(t, source)
	path := filepath.Join(t.TempDir(), "set.ndjson")
	lines := bytes.SplitAfter(whole, []byte("\n"))
	broken := bytes.Join(append(append([][]byte{}, lines[:1200]...), []byte("oops\n")), nil)
	if err := os.WriteFile(path, append(broken, bytes.Join(lines[1200:], nil)...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReplica(t)
	o := dataset.ImportOptions{BatchRows: 300}
	if _, err := dataset.ImportFile(t.Context(), dataset.Into(r), path, o); err == nil {
		t.Fatal("a bad line is no error")
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	failing := &failingIndex{Index: r, left: 2}
	if resumed, err := dataset.ImportFile(t.Context(), dataset.Into(failing), path, o); !errors.Is(err, errFull) ||
		resumed.Resumed != 1200 {
		t.Fatalf("resumed behind line %d, %v", resumed.Resumed, err)
	}
	resumed, err := dataset.ImportFile(t.Context(), dataset.Into(r), path, o)
	if err != nil || resumed.Resumed <= 1200 || resumed.Unchanged != 0 {
		t.Fatalf("resumed behind line %d: %+v, %v", resumed.Resumed, resumed.Written, err)
	}
	if !bytes.Equal(export(t, r), whole) {
		t.Error("the import in parts is not the whole")
	}
}

// An import that is interrupted after bad lines does not report them again.
func TestImportResumesBehindBadLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set.ndjson")
	// Blocks have 512 KiB, so a batch of the first blocks has bad lines only.
	bad := strings.Repeat(strings.Repeat("x", 1000)+"\n", 2000)
	if err := os.WriteFile(path, []byte(bad+`{"kind":"chain","universal_chain_id":"chain.1"}`+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	r := newReplica(t)
	o := dataset.ImportOptions{BatchRows: 500, KeepGoing: true}
	if _, err := dataset.ImportFile(t.Context(), dataset.Into(&failingIndex{Index: r, left: 1}), path,
		o); !errors.Is(err, errFull) {
		t.Fatal(err)
	}
	imported, err := dataset.ImportFile(t.Context(), dataset.Into(r), path, o)
	if err != nil || imported.Resumed < 500 || imported.Bad != 2000-imported.Resumed || imported.Inserted != 1 {
		t.Errorf("%+v, %v", imported, err)
	}
}

// remadeIndex is made anew after its first write: from then on, it refuses batches for the former one.
type remadeIndex struct {
	index.Index
	writes int
}

func (i *remadeIndex) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	if i.writes++; i.writes > 1 && b.Index != "" {
		return index.Written{}, errFull
	}
	return i.Index.Write(ctx, b)
}

func TestTheEndOfAnImportIsOnlyForTheSameIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "set.ndjson")
	if err := os.WriteFile(path, []byte(`{"kind":"chain","universal_chain_id":"chain.1"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	into := dataset.Into(&remadeIndex{Index: newReplica(t)})
	if imported, err := dataset.ImportFile(t.Context(), into, path, dataset.ImportOptions{}); !errors.Is(err, errFull) {
		t.Errorf("%+v, %v", imported, err)
	}
}

func TestImportOfAChangedFileStartsAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "set.ndjson")
	chain := func(n int) string { return fmt.Sprintf(`{"kind":"chain","universal_chain_id":"chain.%d"}`+"\n", n) }
	if err := os.WriteFile(path, []byte(chain(1)+chain(2)+"oops\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReplica(t)
	if _, err := dataset.ImportFile(t.Context(), dataset.Into(r), path, dataset.ImportOptions{}); err == nil {
		t.Fatal("a bad line is no error")
	}
	if err := os.WriteFile(path, []byte(chain(3)+chain(2)+chain(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	imported, err := dataset.ImportFile(t.Context(), dataset.Into(r), path, dataset.ImportOptions{})
	if err != nil || imported.Resumed != 0 || imported.Inserted != 1 || imported.Unchanged != 2 {
		t.Errorf("%+v, %v", imported, err)
	}
}

var errFull = errors.New("disk full")

// failingIndex fails after a number of writes.
type failingIndex struct {
	index.Index
	left int
}

func (f *failingIndex) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	if f.left--; f.left < 0 {
		return index.Written{}, errFull
	}
	return f.Index.Write(ctx, b)
}
