package coding

import (
	"bytes"
	"encoding/hex"
	"io"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/klauspost/compress/zstd"
)

// Answers between two appliances are mostly hex digits: hashes, addresses in three spellings, packets. As text, each digit of them takes
// zstd some five bits instead of four, and an address of Cosmos is in it as text, as hex of its bytes and as hex of its text. Packing
// writes such strings as their bytes, so that zstd finds them again, and those that are in a row twice as a reference. It is
// undone byte for byte, whatever the text is.
//
// Packed text is text with tokens in it. A token begins with a byte that no JSON has.
const (
	tokenHex     = iota // size, and the bytes: 0x and their hex digits, in lower case
	tokenBech32         // length of the human-readable part, that part, size, and the bytes: an address of bech32 (BIP-173)
	tokenEIP55          // 20 bytes: an address in mixed case, which is a checksum (EIP-55)
	tokenAgain          // how many strings back: the same string once more
	tokenText           // size, and text that may be referred to
	tokenLiteral        // a byte of the text that is the beginning of a token
	tokenHexWith        // as tokenHex, but with addresses of bech32 in the bytes: their number, before each of them size and bytes, and the rest
	tokens
)

const (
	packedAtLeast = 8   // bytes of a string that is worth a token
	mostBack      = 255 // strings that tokenAgain can refer to
	mostString    = 64 << 10
)

// recent are the last strings that were tokens, on either side.
type recent struct {
	strings [mostBack + 1]string
	n       int
}

func (r *recent) add(s string) {
	r.strings[r.n%len(r.strings)] = s
	r.n++
}

// back returns the string so many tokens ago, 1 being the last.
func (r *recent) back(distance int) (string, bool) {
	if distance < 1 || distance > min(r.n, mostBack) {
		return "", false
	}
	return r.strings[(r.n-distance)%len(r.strings)], true
}

// packer packs a text that comes in pieces. Strings that are cut between two are left as they are.
type packer struct {
	recent
	last map[string]int // n of recent when a string was added
	out  []byte
}

// packingWriter writes packed text in zstd.
type packingWriter struct {
	*packer
	*zstd.Encoder
}

func newPackingWriter() (*packingWriter, error) {
	to, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(packedWindow))
	return &packingWriter{newPacker(), to}, err
}

func (w *packingWriter) Reset(to io.Writer) {
	w.packer = newPacker()
	w.Encoder.Reset(to)
}

func (w *packingWriter) Write(piece []byte) (int, error) {
	_, err := w.Encoder.Write(w.pack(piece))
	return len(piece), err
}

func newPacker() *packer { return &packer{last: make(map[string]int)} }

// pack returns a piece, packed. The result is valid until the next call.
func (p *packer) pack(piece []byte) []byte {
	p.out = p.out[:0]
	for len(piece) > 0 {
		quote := bytes.IndexByte(piece, '"')
		if quote < 0 {
			break
		}
		p.literal(piece[:quote+1])
		piece = piece[quote+1:]
		end := bytes.IndexByte(piece, '"')
		if end < 0 {
			break
		}
		if value := piece[:end]; isPayload(value, piece[end+1:]) {
			p.value(value)
			piece = piece[end:] // the quote that ends it is no beginning
			p.out = append(p.out, '"')
			piece = piece[1:]
		}
	}
	p.literal(piece)
	return p.out
}

// isPayload tells a string that differs from row to row: names and what has few values are better left to zstd.
func isPayload(value, behind []byte) bool {
	if len(value) < packedAtLeast || len(value) > mostString || len(behind) > 0 && behind[0] == ':' || bytes.IndexByte(value, '\\') >= 0 {
		return false
	}
	return value[0] >= '0' && value[0] <= '9' || bytes.IndexByte(value, '1') > 0 && isBech32(string(value))
}

func (p *packer) literal(text []byte) {
	for i, b := range text {
		if b < tokens {
			p.out = append(append(p.out, text[:i]...), tokenLiteral, b)
			p.literal(text[i+1:])
			return
		}
	}
	p.out = append(p.out, text...)
}

// value appends a string.
func (p *packer) value(value []byte) {
	s := string(value)
	if at, known := p.last[s]; known && p.n-at <= mostBack {
		p.out = append(p.out, tokenAgain, byte(p.n-at))
		return
	}
	p.forget()
	p.last[s] = p.n
	p.add(s)
	p.fresh(s)
}

// forget bounds the map, of which most is too far back.
func (p *packer) forget() {
	if len(p.last) < 16*mostBack {
		return
	}
	for s, at := range p.last {
		if p.n-at > mostBack {
			delete(p.last, s)
		}
	}
}

// fresh appends a string that was not there before.
func (p *packer) fresh(s string) {
	if digits, found := strings.CutPrefix(s, "0x"); found && len(digits)%2 == 0 {
		if raw, err := hex.DecodeString(digits); err == nil {
			switch {
			case hex.EncodeToString(raw) == digits:
				p.hex(raw)
				return
			case len(raw) == common.AddressLength && common.BytesToAddress(raw).Hex() == s:
				p.out = append(append(p.out, tokenEIP55), raw...)
				return
			}
		}
	}
	if part, raw, ok := ofBech32(s); ok {
		p.out = append(p.out, tokenBech32)
		p.bech32(part, raw)
		return
	}
	p.out = append(p.out, tokenText)
	p.sized([]byte(s))
}

func (p *packer) hex(raw []byte) {
	found := addressesIn(raw)
	if len(found) == 0 {
		p.out = append(p.out, tokenHex)
		p.sized(raw)
		return
	}
	p.out = append(p.out, tokenHexWith, byte(len(found)))
	at := 0
	for _, span := range found {
		p.sized(raw[at:span[0]])
		part, address, _ := ofBech32(string(raw[span[0]:span[1]]))
		p.bech32(part, address)
		at = span[1]
	}
	p.sized(raw[at:])
}
