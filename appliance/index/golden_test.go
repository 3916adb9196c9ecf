package index

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false,
	"write testdata/rows.golden anew: for a new field, or together with a new FormatVersion")

// TestRowFormat compares the number, kind and bytes of every field of every row type with testdata/rows.golden. The
// rows in testdata have all fields. Each field is a subtest, so that a field that was moved, removed, renumbered or
// retyped fails by name.
func TestRowFormat(t *testing.T) {
	const path = "testdata/rows.golden"
	is := make(map[string]string)
	var lines []string
	add := func(name, value string) {
		is[name] = value
		lines = append(lines, name+" "+value)
	}
	add("FormatVersion", fmt.Sprint(FormatVersion))
	for _, of := range RowTypes {
		row := sampleRow(t, of)
		describe(add, of.Name, row)
		add(of.Name, hex.EncodeToString(row.Bytes()))
	}
	if *update {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for line := range strings.Lines(string(golden)) {
		name, want, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[name] = true
		t.Run(name, func(t *testing.T) {
			if is[name] != want {
				t.Errorf("%q is written, but rows on disk have %q: increase FormatVersion", is[name], want)
			}
		})
	}
	for name := range is {
		if !known[name] {
			t.Errorf("%s is new: add it to testdata/*.json, and to rows.golden by -update", name)
		}
	}
}

// sampleRow reads the row in testdata that has all fields of the type.
func sampleRow(t *testing.T, of *Type) Row {
	t.Helper()
	object, err := os.ReadFile(filepath.Join("testdata", of.Name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	row, err := ParseRow(of, object)
	if err != nil {
		t.Fatalf("testdata/%s.json: %v", of.Name, err)
	}
	return row
}

// describe adds a line for each field of a row and of the objects in it: its number, its kind and its bytes.
func describe(add func(name, value string), path string, row Row) {
	kinds := [...]string{"text", "int", "bool", "time", "json", "texts", "object", "list"}
	for i, f := range row.Type().Fields {
		name, value := path+"."+f.Name, fmt.Sprintf("%d %s", f.Number, kinds[f.Kind])
		switch f.Kind {
		case FieldObject:
			describe(add, name, row.Object(i))
		case FieldList:
			for element := range row.List(i) {
				describe(add, name, element)
				break // the bytes of the list include the other elements
			}
		default:
			value += fmt.Sprintf(" %x", row.value(i))
		}
		add(name, value)
	}
}

// The bytes of testdata/rows.golden are read back, field by field.
func TestGoldenRowsAreRead(t *testing.T) {
	golden, err := os.ReadFile("testdata/rows.golden")
	if err != nil {
		t.Fatal(err)
	}
	lines := make(map[string]string)
	for line := range strings.Lines(string(golden)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[name] = value
	}
	for _, of := range RowTypes {
		encoded, err := hex.DecodeString(lines[of.Name])
		if err != nil {
			t.Fatal(err)
		}
		object, err := os.ReadFile(filepath.Join("testdata", of.Name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(object, &want); err != nil {
			t.Fatal(err)
		}
		for _, f := range of.Fields {
			t.Run(of.Name+"."+f.Name, func(t *testing.T) {
				var compact bytes.Buffer
				if err := json.Compact(&compact, want[f.Name]); err != nil {
					t.Fatal(err)
				}
				row := RowOf(of, encoded)
				if got := row.AppendJSON(nil, f.Number); !bytes.Equal(got, compact.Bytes()) {
					t.Errorf("%s, want %s", got, compact.Bytes())
				}
			})
		}
	}
}

// Rows with offsets of four bytes are pinned by their SHA-256.
func TestWideRowFormat(t *testing.T) {
	row, err := NewRow(Packet{SortOrder: "1", PacketHash: "0x01", Data: new("0x" + strings.Repeat("5a", 70_000))})
	if err != nil {
		t.Fatal(err)
	}
	const want = "06cc32983520b4fd9c69b8b2925299d91e616dcff3a331ed89ca7bed6bad0ccc"
	if got := fmt.Sprintf("%x", sha256.Sum256(row.Bytes())); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
