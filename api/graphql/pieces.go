package graphql

import (
	"bytes"
	"slices"

	"github.com/attestd/attestd/api/graphql/answer"
)

// pieceBytes is the size of a piece of an answer: answer.FullPiece, and room for the row that fills it.
const pieceBytes = answer.FullPiece + 16<<10

// pieces is an answer in several buffers. A large answer in one buffer would be copied many times while it grows, and
// each copy leaves garbage of its size.
type pieces [][]byte

func (p pieces) size() (n int) {
	for _, piece := range p {
		n += len(piece)
	}
	return n
}

// capacity returns the memory that the pieces use, in bytes.
func (p pieces) capacity() (n int) {
	for _, piece := range p {
		n += cap(piece)
	}
	return n
}

// whole returns a small answer in one piece.
func (p pieces) whole() []byte {
	if len(p) == 1 {
		return p[0]
	}
	return slices.Concat(p...)
}

// writer builds an answer. Its pieces count against the budget.
type writer struct {
	e     *Endpoint
	full  pieces
	held  *share
	taken bool
}

func (e *Endpoint) newWriter() *writer { return &writer{e: e, held: &share{budget: e.budget}} }

// next stores a full piece, if it is not nil, and returns an empty one. It returns nil if the budget is exhausted.
func (w *writer) next(full []byte) []byte {
	if full != nil {
		w.full = append(w.full, full)
	}
	if !w.held.grow(w.full.capacity() + pieceBytes) {
		return nil
	}
	if piece, ok := w.e.pieces.Get().(*[pieceBytes]byte); ok {
		return piece[:0]
	}
	return make([]byte, 0, pieceBytes)
}

// finish returns the finished answer, with last as its last piece.
func (w *writer) finish(last []byte) response {
	w.full = append(w.full, last)
	if !w.held.grow(w.full.capacity()) { // a row was larger than a piece
		return refused(statusUnavailable, overloaded())
	}
	w.taken = true
	return response{body: w.full, held: w.held}
}

// drop releases the pieces of an answer that was not taken.
func (w *writer) drop() {
	if !w.taken {
		w.e.reuse(response{body: w.full, held: w.held})
	}
}

// reuse releases the pieces of a response, and its share of the budget. The caller must not use them afterwards.
func (e *Endpoint) reuse(r response) {
	for _, piece := range r.body {
		if cap(piece) == pieceBytes {
			e.pieces.Put((*[pieceBytes]byte)(piece[:pieceBytes]))
		}
	}
	if r.held != nil {
		r.held.release()
	}
}

// cacheable returns the body of a response for caching, and releases its share of the budget.
func (e *Endpoint) cacheable(r response) pieces {
	body := r.body
	if len(body) == 1 && len(body[0]) < cap(body[0])/4*3 { // more than a quarter of the piece is empty
		body = pieces{bytes.Clone(body[0])}
		e.reuse(r)
	} else if r.held != nil {
		r.held.release()
	}
	return body
}
