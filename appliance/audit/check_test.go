package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/storetest"
)

// badRecords are changes of a record, each with the damage that it is.
var badRecords = []struct {
	damage string
	change func(r, other *appliance.Record)
}{
	{"", func(_, _ *appliance.Record) {}},
	{"signature", func(r, other *appliance.Record) { r.Signature = other.Signature }},
	{"signature", func(r, _ *appliance.Record) { r.Hash[5] ^= 1 }},
	{"signature", func(r, _ *appliance.Record) { r.Beneficiary[5] ^= 1 }},
	{"signature", func(r, _ *appliance.Record) { r.SignerAddress = addressOf(1) }},
	{"signature", func(r, _ *appliance.Record) { // the other half of s, which is as good to ECDSA
		s := new(big.Int).SetBytes(r.Signature.S[:])
		s.Sub(order, s).FillBytes(r.Signature.S[:])
		r.Signature.V = 27 + 28 - r.Signature.V
	}},
	{"signature", func(r, _ *appliance.Record) { r.Signature.V = 27 + 28 - r.Signature.V }},
	{"signature", func(r, _ *appliance.Record) { r.Signature.V += 2 }},
	{"signature", func(r, _ *appliance.Record) { r.Signature.V = 0 }},
	{"signature", func(r, _ *appliance.Record) { r.Signature.R = [32]byte{} }},
	{"signature", func(r, _ *appliance.Record) { r.Signature.S = [32]byte{} }},
	{"signature", func(r, _ *appliance.Record) { order.FillBytes(r.Signature.R[:]) }},
	{"signature", func(r, _ *appliance.Record) { order.FillBytes(r.Signature.S[:]) }},
	{"signature", func(r, _ *appliance.Record) { r.Signature.R[9] ^= 1 }},
	{"", func(_, _ *appliance.Record) {}},
}

// After many records of a signer, an audit verifies that signer's signatures with a table. In one block of leaves there
// is no table.
func TestAnAuditFindsTheSameWithAndWithoutATable(t *testing.T) {
	t.Parallel()
	key := testLogKey(t, "example.com/log")
	var leaves [][]byte
	add := func(r appliance.Record) []byte {
		r.Time = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		leaf, err := journal.EncodeLeaf(r)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leaf)
		return leaf
	}
	for range audit.TableAfter {
		add(storetest.Record(t, "key"))
	}
	var want []string
	for _, test := range badRecords {
		r, other := storetest.Record(t, "key"), storetest.Record(t, "key")
		if test.change(&r, &other); test.damage != "" {
			want = append(want, fmt.Sprint(len(leaves), " ", test.damage))
		}
		add(r)
	}
	leaf := add(storetest.Record(t, "key"))
	leaves[len(leaves)-1] = leaf[:len(leaf)-1]
	leaves = append(leaves, append([]byte(" "), leaf...))
	want = append(want, fmt.Sprint(len(leaves)-2, " record"), fmt.Sprint(len(leaves)-1, " record"))

	checks := func(block int) (report audit.Report, tables int) {
		a, err := audit.New(key.Verifier, nil)
		if err != nil {
			t.Fatal(err)
		}
		a.Expect(audit.Options{AnySigner: true})
		for at := 0; at < len(leaves); at += block {
			for _, c := range a.Check(leaves[at:min(at+block, len(leaves))]) {
				a.Add(c)
			}
		}
		return a.Finish(nil), a.Tables()
	}
	recovered, _ := checks(len(leaves))
	report, tables := checks(1)
	if tables != 1 {
		t.Errorf("there are %d tables, not that of the one signer", tables)
	}
	if !reflect.DeepEqual(report, recovered) {
		t.Errorf("with a table: %+v\nwithout: %+v", report, recovered)
	}
	var got []string
	for _, d := range report.Damages[:len(report.Damages)-1] { // the last one is that of the checkpoint
		got = append(got, fmt.Sprint(d.Index, " ", d.Part))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("reported %v, not %v", got, want)
	}
}

// endless is an export without an end, of one leaf.
type endless struct {
	line []byte
	read int64 // bytes
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		n += copy(p[n:], e.line[(e.read+int64(n))%int64(len(e.line)):])
	}
	e.read += int64(n)
	return n, nil
}

func TestAnExportIsAuditedInSmallBlocksThatCanBeInterrupted(t *testing.T) {
	t.Parallel()
	for name, line := range map[string][]byte{
		"of usual leaves":  append(newAuditLog(t, 1).leaves[0], '\n'),
		"of longest lines": append(bytes.Repeat([]byte("x"), 1<<20-2), '\n'),
		"of empty lines":   []byte("\n"),
	} {
		t.Run(name, func(t *testing.T) {
			a, err := audit.New(testLogKey(t, "example.com/log").Verifier, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			export := &endless{line: line}
			added := int64(0)
			err = a.Export(ctx, export, func(index int64, _ audit.Leaf) {
				if ahead := export.read - added*int64(len(line)); ahead > 8<<20 {
					t.Fatalf("%d bytes were read, before the leaves in them were checked", ahead)
				}
				if index != added {
					t.Fatalf("leaf %d is given as the %d.", added, index)
				}
				if added++; added == 1000 {
					interrupt()
				}
			})
			if !errors.Is(err, context.Canceled) || added > 2000 {
				t.Errorf("after an interruption at the 1000th leaf: %v after %d leaves", err, added)
			}
		})
	}
}

func TestAnExportWithATooLongLineIsAnError(t *testing.T) {
	t.Parallel()
	a, err := audit.New(testLogKey(t, "example.com/log").Verifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := io.LimitReader(&endless{line: []byte("x")}, 2<<20)
	if err := a.Export(t.Context(), in, nil); err == nil {
		t.Error("it was audited")
	}
}

func TestBlocksThatAreReadAheadAreAddedInOrder(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		blocks, badRead, badAdd int64
		added                   int64
	}{
		"none":              {blocks: 0, badRead: -1, badAdd: -1, added: 0},
		"one":               {blocks: 1, badRead: -1, badAdd: -1, added: 1},
		"many":              {blocks: 500, badRead: -1, badAdd: -1, added: 500},
		"a read that fails": {blocks: 500, badRead: 300, badAdd: -1, added: 300},
		"an add that fails": {blocks: 500, badRead: -1, badAdd: 299, added: 300},
	} {
		t.Run(name, func(t *testing.T) {
			var reading atomic.Int64
			added := int64(0)
			err := audit.Ahead(test.blocks, func(block int64) (int64, error) {
				reading.Add(1)
				defer reading.Add(-1)
				if block == test.badRead {
					return 0, broken
				}
				return 7 * block, nil
			}, func(block, result int64) error {
				if block != added || result != 7*block {
					t.Errorf("block %d with the result %d is added as the %d.", block, result, added)
				}
				if added++; block == test.badAdd {
					return broken
				}
				return nil
			})
			if failed := test.badRead >= 0 || test.badAdd >= 0; errors.Is(err, broken) != failed ||
				added != test.added || reading.Load() != 0 {
				t.Errorf("%v after %d blocks, %d are being read; want %d blocks", err, added, reading.Load(),
					test.added)
			}
		})
	}
}
