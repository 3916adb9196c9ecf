package graphql

import (
	"bytes"
	"slices"

	"github.com/attestd/attestd/api/graphql/answer"
)

// pieceBytes is the size of a piece of an answer: answer.FullPiece, and room for the row that makes it full.
const pieceBytes = answer.FullPiece + 16<<10

// pieces is an answer. In one piece, a large one would be copied many times while it grows, each time with garbage of its size.
type pieces [][]byte

func (p pieces) size() (n int) {
	for _, piece := range p {
		n += len(piece)
	}
	return n
}

// capacity is the memory that it takes.
func (p pieces) capacity() (n int) {
	for _, piece := range p {
		n += cap(piece)
	}
	return n
}

// whole returns it in one piece, for small ones.
func (p pieces) whole() []byte {
	if len(p) == 1 {
		return p[0]
	}
	return slices.Concat(p...)
}

// writer makes an answer, whose pieces hold their memory of the budget.
type writer struct {
	e     *Endpoint
	full  pieces
	held  *share
	taken bool
}

func (e *Endpoint) newWriter() *writer { return &writer{e: e, held: &share{budget: e.budget}} }

// next takes a piece that is full, or nil, and returns an empty one; nil if the budget has none.
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

// take returns the answer that ends with that piece.
func (w *writer) take(last []byte) response {
	w.full = append(w.full, last)
	if !w.held.grow(w.full.capacity()) { // a row was larger than a piece
		return refused(statusUnavailable, overloaded())
	}
	w.taken = true
	return response{body: w.full, held: w.held}
}

// drop gives back what was not taken.
func (w *writer) drop() {
	if !w.taken {
		w.e.reuse(response{body: w.full, held: w.held})
	}
}

// reuse gives back the pieces of a response, and its share of the budget. Nothing may refer to it any more.
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

// keep returns the body of a response to be kept for longer, which no longer holds anything of the budget.
func (e *Endpoint) keep(r response) pieces {
	body := r.body
	if len(body) == 1 && len(body[0]) < cap(body[0])/4*3 { // much of the piece is empty
		body = pieces{bytes.Clone(body[0])}
		e.reuse(r)
	} else if r.held != nil {
		r.held.release()
	}
	return body
}
