package followertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// Await waits until a condition holds, and fails the test if it does not hold within that time.
func Await(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	if !Holds(within, holds) {
		tb.Fatalf("timed out after %v: %s", within, what)
	}
}

// Holds waits until a condition holds, and reports whether it did within that time. It checks slow conditions less
// often.
func Holds(within time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(within); ; {
		began := time.Now()
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(max(5*time.Millisecond, 4*time.Since(began)))
	}
}

// AwaitEqual waits until two indexes are equal. If they are not equal within that time, it fails the test with their
// differences.
func AwaitEqual(tb testing.TB, within time.Duration, want, got index.Index) {
	tb.Helper()
	seed := maphash.MakeSeed()
	if Holds(within, func() bool { return digest(tb, seed, want) == digest(tb, seed, got) }) {
		return
	}
	if Equal(tb, want, got); tb.Failed() {
		tb.FailNow()
	}
}

// digest hashes all rows in export order. Equal indexes have equal digests.
func digest(tb testing.TB, seed maphash.Seed, idx index.Index) uint64 {
	tb.Helper()
	var h maphash.Hash
	h.SetSeed(seed)
	view(tb, idx, func(s index.Snapshot) error {
		for _, t := range index.RowTypes {
			err := s.Each(context.Background(), t, func(row index.Row) error {
				_, err := h.Write(row.Bytes())
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return h.Sum64()
}

// Equal fails the test if two indexes differ in any row, and names the first ten.
func Equal(tb testing.TB, want, got index.Index) {
	tb.Helper()
	const shown = 10
	differences := Differences(tb, want, got)
	if len(differences) == 0 {
		return
	}
	more := ""
	if len(differences) > shown {
		more = fmt.Sprintf("\nand %d more", len(differences)-shown)
	}
	tb.Errorf("%d rows differ:\n%s%s", len(differences), strings.Join(differences[:min(shown, len(differences))], "\n"),
		more)
}

// Differences compares two indexes row by row, by key. It lists each row that differs, with its fields, or is missing
// or unexpected.
func Differences(tb testing.TB, want, got index.Index) (differences []string) {
	tb.Helper()
	for _, t := range index.RowTypes {
		wanted, there := rowsOf(tb, want, t), rowsOf(tb, got, t)
		for _, key := range slices.Sorted(maps.Keys(wanted)) {
			row, ok := there[key]
			if delete(there, key); !ok {
				differences = append(differences, fmt.Sprintf("%s %s is missing", t.Name, key))
				continue
			}
			if fields := DifferingFields(wanted[key], row); len(fields) > 0 {
				differences = append(differences, fmt.Sprintf("%s %s: %s", t.Name, key, strings.Join(fields, "; ")))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(there)) {
			differences = append(differences, fmt.Sprintf("%s %s is surplus", t.Name, key))
		}
	}
	return differences
}

// DifferingFields compares two rows of a type. For each field that differs it returns the actual and the expected JSON,
// truncated if they are long.
func DifferingFields(want, got index.Row) (fields []string) {
	if bytes.Equal(want.Bytes(), got.Bytes()) {
		return nil
	}
	for i, f := range want.Type().Fields {
		a, b := want.AppendJSON(nil, i), got.AppendJSON(nil, i)
		if f.Kind == index.FieldJSON && sameJSON(a, b) || bytes.Equal(a, b) {
			continue
		}
		fields = append(fields, fmt.Sprintf("%s is %s, want %s", f.Name, cut(b), cut(a)))
	}
	return fields
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func cut(text []byte) string {
	const most = 70
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// rowsOf returns copies of all rows of a type, by key.
func rowsOf(tb testing.TB, idx index.Index, t *index.Type) map[string]index.Row {
	tb.Helper()
	all := make(map[string]index.Row)
	view(tb, idx, func(s index.Snapshot) error {
		return s.Each(context.Background(), t, func(row index.Row) error {
			all[row.Key()] = row.Clone()
			return nil
		})
	})
	return all
}

func view(tb testing.TB, idx index.Index, read func(index.Snapshot) error) {
	tb.Helper()
	if err := idx.View(context.Background(), read); err != nil {
		tb.Fatal(err)
	}
}
