package zkgm

import (
	"encoding/binary"
	"errors"
	"math/big"
	"unicode/utf8"
)

// go-ethereum's accounts/abi does the same by reflection, at some 20 times the cost, and a packet can make it copy one
// tail many times. The tests compare the two.

const wordSize = 32

var errABI = errors.New("not the ABI encoding of this type")

// writer appends the ABI encoding of a tuple: words in its head, and the dynamic values in its tail.
type writer struct {
	head, tail []byte
	fields     int
}

// newWriter begins a tuple of that many fields.
func newWriter(fields int) *writer { return &writer{fields: fields} }

func (w *writer) uint(n uint64) *writer {
	var word [wordSize]byte
	binary.BigEndian.PutUint64(word[24:], n)
	return w.word(word)
}

func (w *writer) word(word [wordSize]byte) *writer {
	w.head = append(w.head, word[:]...)
	return w
}

// big appends an unsigned integer of 256 bits; nil is zero.
func (w *writer) big(n *big.Int) *writer {
	var word [wordSize]byte
	if n != nil {
		n.FillBytes(word[:])
	}
	return w.word(word)
}

func (w *writer) bool(b bool) *writer {
	if b {
		return w.uint(1)
	}
	return w.uint(0)
}

// dynamic appends the encoding of a dynamic type.
func (w *writer) dynamic(encoded []byte) *writer {
	w.uint(uint64(wordSize*w.fields + len(w.tail)))
	w.tail = append(w.tail, encoded...)
	return w
}

func (w *writer) bytes(b []byte) *writer { return w.dynamic(appendBytes(nil, b)) }

func (w *writer) encoded() []byte { return append(w.head, w.tail...) }

// appendBytes appends a length, the bytes and zeros up to a whole word.
func appendBytes(dst, b []byte) []byte {
	var word [wordSize]byte
	binary.BigEndian.PutUint64(word[24:], uint64(len(b)))
	dst = append(dst, word[:]...)
	dst = append(dst, b...)
	return append(dst, make([]byte, -len(b)&(wordSize-1))...)
}

// reader reads the ABI encoding of a tuple. After the first error it returns zero values. Returned bytes are slices of
// its input.
type reader struct {
	in  []byte // from the beginning of the tuple, which offsets count from
	at  int
	err error
}

func (r *reader) word() []byte {
	if r.err == nil && len(r.in)-r.at < wordSize {
		r.err = errABI
	}
	if r.err != nil {
		return make([]byte, wordSize)
	}
	r.at += wordSize
	return r.in[r.at-wordSize : r.at]
}

func (r *reader) big() *big.Int { return new(big.Int).SetBytes(r.word()) }

// uint reads an unsigned integer of at most 64 bits.
func (r *reader) uint(bits int) uint64 {
	word := r.word()
	n := binary.BigEndian.Uint64(word[24:])
	for _, b := range word[:24] {
		if b != 0 {
			r.err = errABI
		}
	}
	if bits < 64 && n>>bits != 0 {
		r.err = errABI
	}
	return n
}

func (r *reader) bool() bool { return r.uint(1) == 1 }

// dynamic returns the input from the offset in the head to its end.
func (r *reader) dynamic() []byte {
	offset := r.uint(63)
	if r.err == nil && offset > uint64(len(r.in)) {
		r.err = errABI
	}
	if r.err != nil {
		return nil
	}
	return r.in[offset:]
}

func (r *reader) bytes() []byte {
	tail := reader{in: r.dynamic(), err: r.err}
	length := tail.uint(63)
	if tail.err == nil && length > uint64(len(tail.in)-wordSize) {
		tail.err = errABI
	}
	if r.err = tail.err; r.err != nil {
		return nil
	}
	return tail.in[wordSize : wordSize+length]
}

func (r *reader) text() string {
	s := string(r.bytes())
	if !utf8.ValidString(s) {
		r.err = errABI
	}
	return s
}

// list returns a reader of the heads of a list's elements, and their number.
func (r *reader) list() (elements *reader, length int) {
	tail := reader{in: r.dynamic(), err: r.err}
	n := tail.uint(63)
	if tail.err == nil && n > uint64(len(tail.in)-wordSize)/wordSize {
		tail.err = errABI
	}
	if r.err = tail.err; r.err != nil {
		return &tail, 0
	}
	return &reader{in: tail.in[wordSize:]}, int(n)
}
