package indexer_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/index"
)

// rowsOf returns the rows of types as NDJSON.
func rowsOf(t testing.TB, idx index.Index, of ...*index.Type) (lines []string) {
	t.Helper()
	err := idx.View(t.Context(), func(snap index.Snapshot) error {
		for _, kind := range of {
			err := snap.Each(t.Context(), kind, func(row index.Row) error {
				lines = append(lines, string(row.AppendLine(nil)))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func lineOf(t testing.TB, value any) string {
	t.Helper()
	row, err := index.NewRow(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(row.AppendLine(nil))
}

// sameRows compares rows. It shows the first that differ.
func sameRows(t testing.TB, got, want []string) {
	t.Helper()
	has := func(lines []string) map[string]bool {
		set := make(map[string]bool)
		for _, line := range lines {
			set[line] = true
		}
		return set
	}
	missing, extra := has(want), has(got)
	for _, line := range got {
		delete(missing, line)
	}
	for _, line := range want {
		delete(extra, line)
	}
	if len(missing)+len(extra) == 0 {
		return
	}
	first := func(set map[string]bool) string {
		return strings.Join(slices.Sorted(maps.Keys(set))[:min(2, len(set))], "\n")
	}
	t.Errorf("%d rows, want %d; %d are missing, %d are wrong. Missing:\n%s\nwrong:\n%s", len(got), len(want),
		len(missing), len(extra), first(missing), first(extra))
}
