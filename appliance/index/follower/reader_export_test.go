package follower

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// These exports serve tests in package follower_test. Tests with a real upstream must be there, since it imports this
// package.

// Reader exports reader.
type Reader struct{ r *reader }

// NewReader returns a reader before its first Discover.
func NewReader(upstream Upstream) *Reader { return &Reader{newReader(upstream)} }

// Answer exports answer.
type Answer struct {
	Rows   []index.Row
	Orders []string
	Bad    []error
}

// BatchRows exports batchRows.
const BatchRows = batchRows

// Part exports part.
type Part = part

// Page is a part that asks for a page.
func Page(t *index.Type, cursor string, direction index.Direction, limit int) Part {
	return part{t: t, cursor: cursor, direction: direction, limit: limit}
}

// LookUp is a part that asks for a packet, or its transfers, by hash.
func LookUp(t *index.Type, hash string) Part { return part{t: t, hash: hash} }

// After returns the part that continues after a cursor.
func After(p Part, cursor string) Part {
	p.cursor = cursor
	return p
}

// Brief sets part.brief.
func Brief(p Part) Part {
	p.brief = true
	return p
}

// Onward makes a lookup ask only for changes to a packet that the index has.
func Onward(p Part, here index.Row) Part {
	p.here, p.plain = here, true
	return p
}

func (r *Reader) Discover(ctx context.Context) error { return r.r.discover(ctx) }

func (r *Reader) Missing() []string { return r.r.missing() }

func (r *Reader) Fetch(ctx context.Context, parts ...Part) (answers []Answer, packets, transfers uint64, err error) {
	got, c, err := r.r.fetch(ctx, parts...)
	for _, a := range got {
		answers = append(answers, Answer{a.rows, a.orders, a.bad})
	}
	return answers, c.packets, c.transfers, err
}

func (r *Reader) Table(ctx context.Context, t *index.Type) ([]index.Row, []error, error) {
	return r.r.table(ctx, t)
}

// MaxParts exports maxParts.
const MaxParts = maxParts
