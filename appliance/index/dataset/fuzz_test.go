package dataset

import (
	"bytes"
	"context"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// target stores the imported rows.
type target struct {
	rows      []index.Row
	positions map[string]string
}

func (t *target) Position(_ context.Context, name string) (string, bool, error) {
	position, found := t.positions[name]
	return position, found, nil
}

func (t *target) ID(context.Context) (string, error) { return "id", nil }

func (t *target) Write(_ context.Context, b index.Batch) (index.Written, error) {
	t.rows = append(t.rows, b.Rows...)
	for name, position := range b.Positions {
		t.positions[name] = position
	}
	return index.Written{}, nil
}

// FuzzImport checks that the import survives any file. Each line is a row or a bad line, and importing the resulting
// rows gives them again.
func FuzzImport(f *testing.F) {
	var sample bytes.Buffer
	for _, row := range generate(f, GenerateOptions{Transfers: 1, Seed: 1, Now: now, Chains: 2}) {
		sample.Write(row.AppendLine(nil))
		sample.WriteByte('\n')
	}
	f.Add(sample.Bytes())
	f.Add([]byte("{\"kind\":\"chain\",\"universal_chain_id\":\"a\"}\r\n\n {}\nnull\n{\"kind\":\"chain\""))
	f.Add([]byte("\n\n\xff\x00{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		to := &target{positions: make(map[string]string)}
		bad := 0
		result, err := Import(t.Context(), to, bytes.NewReader(text),
			ImportOptions{KeepGoing: true, BatchRows: 3, OnBad: func(BadLine) {
				bad++
			}})
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if int64(bad) != result.Bad || int64(len(to.rows))+result.Bad > int64(bytes.Count(text, []byte("\n")))+1 {
			t.Fatalf("%d rows and %d bad lines (%d told) of %q", len(to.rows), result.Bad, bad, text)
		}
		var written bytes.Buffer
		for _, row := range to.rows {
			written.Write(row.AppendLine(nil))
			written.WriteByte('\n')
		}
		again := &target{positions: make(map[string]string)}
		if _, err := Import(t.Context(), again, &written, ImportOptions{}); err != nil ||
			len(again.rows) != len(to.rows) {
			t.Fatalf("%d rows, and again %d, %v", len(to.rows), len(again.rows), err)
		}
		for i := range to.rows {
			if !bytes.Equal(again.rows[i].Bytes(), to.rows[i].Bytes()) {
				t.Fatalf("row %d: %s, and again %s", i, to.rows[i].AppendLine(nil), again.rows[i].AppendLine(nil))
			}
		}
	})
}
