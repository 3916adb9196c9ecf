package coding

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Answers between two appliances are rows of hashes, addresses, times and numbers, as JSON. Packing writes them as a program would that
// knew their columns; it is undone byte for byte, whatever the text is. What cannot be packed is in zstd.
//
// Packed text is, one behind the other: the byte isPacked; three numbers (varints), which are how many bytes of decisions and of raw bytes
// follow, and how many keys; the CRC-32C of the text, 4 bytes big-endian; the decisions; the raw bytes; and a frame of zstd with a line for
// each key and each phrase, in the order of their coming. Text that is not packed is the frame of zstd alone.
//
//   - Decisions are bits of an arithmetic coder (pack_bits.go), each with its own odds, which it learns: what is always the same costs next
//     to nothing. They say, value by value, what comes next: an object, a list or a value, and which (pack_json.go).
//   - A column is what stands in one place of all objects of a list, such as data.p0[].traces[].height (pack_columns.go). A value that was
//     there before is told by where: what followed the same values before, the one above it, the column that has it in the same row or in
//     the row of another list that this one refers to; or else by its number.
//   - A value that was not is told by its form (pack_forms.go, pack_fresh.go): 20 raw bytes stand for an address in all of hex, EIP-55, bech32
//     and the hex of bech32; numbers and times are a difference to one before; hashes are raw; the rest are phrases.
//   - Bytes of many words are a list themselves, so that addresses and amounts are found in them (pack_words.go).
//
// Both sides keep the same tables, so that the same steps pack and unpack (packing). These are bounded, as is the text (mostPacked).
//
// Whatever changes the bytes changes the coding, which then needs another name: appliances of two versions agree on zstd by themselves.

// isPacked begins what is packed. A frame of zstd begins otherwise.
const isPacked = 1

// dictionary is what zstd knows before it has read anything: the keys that followers ask for, in that order.
//
//go:embed dictionary.txt
var dictionary []byte

const dictionaryID = 1

// packingWriter packs a text when it is closed, having held it. One that is too large goes on as it comes.
type packingWriter struct {
	to      io.Writer
	text    []byte
	phrases *zstd.Encoder
	plain   bool // it is not packed
}

const (
	keptText   = 1 << 20 // bytes of the text before that are kept for the next
	usualRatio = 15      // of a text to what it is packed to
)

func newPackingWriter() (*packingWriter, error) {
	phrases, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(packedWindow), zstd.WithEncoderDictRaw(dictionaryID, dictionary))
	return &packingWriter{phrases: phrases}, err
}

func (w *packingWriter) Reset(to io.Writer) {
	w.to, w.text, w.plain = to, w.text[:0], false
	if cap(w.text) > keptText {
		w.text = nil
	}
}

func (w *packingWriter) Write(piece []byte) (int, error) {
	if !w.plain && len(w.text)+len(piece) <= mostPacked {
		w.text = append(w.text, piece...)
		return len(piece), nil
	}
	if err := w.asPlain(); err != nil {
		return 0, err
	}
	return w.phrases.Write(piece)
}

// asPlain writes what was held back, which is not packed.
func (w *packingWriter) asPlain() error {
	if w.plain {
		return nil
	}
	w.plain = true
	w.phrases.Reset(w.to)
	_, err := w.phrases.Write(w.text)
	return err
}

func (w *packingWriter) Close() error {
	if !w.plain {
		p := newPacking(writeDecisions())
		p.text = w.text
		if p.whole() == nil {
			return w.send(p)
		}
	}
	if err := w.asPlain(); err != nil {
		return err
	}
	return w.phrases.Close()
}

// send writes what has been packed.
func (w *packingWriter) send(p *packing) error {
	coded := p.end()
	head := []byte{isPacked}
	for _, size := range []int{len(coded), len(p.raws), len(p.keys)} {
		head = binary.AppendUvarint(head, uint64(size))
	}
	head = binary.BigEndian.AppendUint32(head, sumOf(p.text))
	for _, part := range [][]byte{head, coded, p.raws} {
		if _, err := w.to.Write(part); err != nil {
			return err
		}
	}
	w.phrases.Reset(w.to)
	for _, key := range p.keys {
		if _, err := io.WriteString(w.phrases, key+"\n"); err != nil {
			return err
		}
	}
	if _, err := w.phrases.Write(p.texts); err != nil {
		return err
	}
	return w.phrases.Close()
}

// unpacker undoes packing.
type unpacker struct {
	in      *bufio.Reader
	phrases *zstd.Decoder
	text    io.Reader // nil: nothing was read yet
}

func newUnpacker(in io.Reader) *unpacker { return &unpacker{in: bufio.NewReaderSize(in, 4<<10)} }

func (u *unpacker) Read(b []byte) (int, error) {
	if u.text == nil {
		text, err := u.begin()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if u.text = text; err != nil {
			u.text = failing{fmt.Errorf("%w: %w", errPacked, err)}
		}
	}
	return u.text.Read(b)
}

// failing is a reader of an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func (u *unpacker) Close() error {
	if u.phrases != nil {
		u.phrases.Close()
	}
	return nil
}

// begin reads all of a text that is packed, and begins to read another.
func (u *unpacker) begin() (text io.Reader, err error) {
	first, err := u.in.Peek(1)
	if err != nil {
		return nil, err
	}
	var p *packing
	var h header
	if first[0] == isPacked {
		if p, h, err = u.parts(); err != nil {
			return nil, err
		}
	}
	u.phrases, err = zstd.NewReader(u.in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderDictRaw(dictionaryID, dictionary))
	if err != nil || p == nil {
		return u.phrases, err
	}
	p.from = bufio.NewReader(io.LimitReader(u.phrases, mostPacked))
	for range h.keys {
		key, err := readPhrase(p.from)
		if err != nil {
			return nil, err
		}
		p.keys = append(p.keys, string(key))
	}
	if err := p.whole(); err != nil {
		return nil, err
	}
	if _, err := p.from.ReadByte(); !errors.Is(err, io.EOF) { // read to the end, a connection can be kept
		return nil, errors.Join(errors.New("phrases that nothing has"), err)
	}
	if sumOf(p.text) != h.sum {
		return nil, errSum
	}
	return bytes.NewReader(p.text), nil
}

// header is what begins packed text.
type header struct {
	coded, raws, keys int
	sum               uint32 // of the text
}

// errSum is that of a text that was changed on its way, or packed otherwise than here.
var errSum = errors.New("the text does not have its checksum")

func sumOf(text []byte) uint32 { return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)) }

func (u *unpacker) header() (h header, err error) {
	_, _ = u.in.Discard(1)
	for _, size := range []*int{&h.coded, &h.raws, &h.keys} {
		n, err := binary.ReadUvarint(u.in)
		if err != nil {
			return h, err
		}
		*size = int(min(n, mostPacked+1))
	}
	if max(h.coded, h.raws) > mostPacked || h.keys > mostColumns {
		return h, fmt.Errorf("parts of %d and %d bytes and %d keys are too large", h.coded, h.raws, h.keys)
	}
	return h, binary.Read(u.in, binary.BigEndian, &h.sum)
}

// parts reads what is before the frame of zstd.
func (u *unpacker) parts() (p *packing, h header, err error) {
	if h, err = u.header(); err != nil {
		return nil, h, err
	}
	both, err := io.ReadAll(io.LimitReader(u.in, int64(h.coded+h.raws)))
	if err == nil && len(both) < h.coded+h.raws {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, h, err
	}
	p = newPacking(readDecisions(both[:h.coded]))
	p.raws, p.text = both[h.coded:], make([]byte, 0, min(usualRatio*len(both), keptText))
	return p, h, nil
}
