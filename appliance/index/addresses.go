package index

import (
	"bytes"
	"encoding/binary"
)

// Display addresses in packed rows: they are computed from the bytes in another field.

const (
	bech32Alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	// checkSize is the number of checksum digits of a bech32 address (BIP-173).
	checkSize = 6
)

// appendCased appends a text of the form textCased.
func (r *Row) appendCased(dst []byte, raw int, capitals []byte) []byte {
	start := len(dst)
	dst = r.AppendText(dst, raw)
	for i := range dst[start+2:] {
		if capitals[i/8]&(1<<(i%8)) != 0 {
			dst[start+2+i] -= 'a' - 'A'
		}
	}
	return dst
}

// casedOf appends a text in the form textCased. It returns nil unless the text equals the other field's except for
// capitals.
func casedOf(out, other, text []byte) []byte {
	if len(text) != len(other) || len(text) < 2 {
		return nil
	}
	mark := len(out)
	out = append(out, make([]byte, (len(text)-2+7)/8)...)
	for i, c := range text {
		switch {
		case c == other[i]:
		case i >= 2 && 'A' <= c && c <= 'Z' && c+'a'-'A' == other[i]:
			out[mark+(i-2)/8] |= 1 << ((i - 2) % 8)
		default:
			return nil
		}
	}
	return out
}

// appendAddress appends an address as textCased or textBech32. ok is false if it fits neither form.
func (p *Packer) appendAddress(out []byte, row Row, raw int, text []byte) (form textTag, _ []byte, ok bool) {
	var buf [2 * maxAddress]byte
	address := row.bytesOf(raw)
	if len(address) == 0 || len(address) > maxAddress {
		return 0, out, false
	}
	if packed := casedOf(out, append([]byte("0x"), appendHex(buf[:0], address)...), text); packed != nil {
		return textCased, packed, true
	}
	prefix := bytes.LastIndexByte(text, '1')
	if prefix < 1 {
		return 0, out, false
	}
	human := append([]byte{textPlain}, text[:prefix]...)
	number, ok := p.numbers[string(human)]
	if !ok {
		p.see(human)
		return 0, out, false
	}
	if number >= bech32mFlag {
		return 0, out, false
	}
	for constant, flag := range []int{0, bech32mFlag} {
		if bytes.Equal(appendBech32(buf[:0], text[:prefix], address, bech32Constants[constant]), text) {
			return textBech32, binary.LittleEndian.AppendUint16(out, uint16(number|flag)), true
		}
	}
	return 0, out, false
}

// bytesOf returns the bytes of a hex text, nil for other texts.
func (r *Row) bytesOf(f int) []byte {
	form, v := r.text(r.first(f))
	if form == textShared {
		text := r.shared(v)
		form, v = text[0], text[1:]
	}
	if form != textHex {
		return nil
	}
	return v
}

const (
	// maxAddress bounds the addresses whose display form is computed, in bytes.
	maxAddress = 40
	// bech32mFlag marks, in the number of a human-readable part, the checksum of BIP-350.
	bech32mFlag = 1 << 15
)

// bech32Constants are the final constants of the checksums of BIP-173 and of BIP-350.
var bech32Constants = [2]uint32{1, 0x2bc830a3}

// appendHuman appends a text of the form textBech32.
func (r *Row) appendHuman(dst []byte, raw int, v []byte) []byte {
	number := binary.LittleEndian.Uint16(v)
	return appendBech32(dst, r.d.texts[number&^bech32mFlag][1:], r.bytesOf(raw), bech32Constants[number/bech32mFlag])
}

// appendBech32 appends an address of up to maxAddress bytes in bech32. The checksum is the remainder of a polynomial
// division with the digits as coefficients. It is linear: the XOR of the contributions of each digit at its position.
func appendBech32(dst, human, address []byte, constant uint32) []byte {
	dst = append(append(dst, human...), '1')
	behind := checkSize + (8*len(address)+4)/5 // digits that follow the current one
	sum := humanSum(human, behind) ^ constant
	bits, n := uint32(0), 0
	for _, b := range address {
		bits, n = bits<<8|uint32(b), n+8
		for ; n >= 5; n -= 5 {
			digit := bits >> (n - 5) & 31
			behind--
			sum ^= bech32Sums[behind][digit]
			dst = append(dst, bech32Alphabet[digit])
		}
	}
	if n > 0 {
		digit := bits << (5 - n) & 31
		sum ^= bech32Sums[checkSize][digit]
		dst = append(dst, bech32Alphabet[digit])
	}
	for i := checkSize - 1; i >= 0; i-- {
		dst = append(dst, bech32Alphabet[sum>>(5*i)&31])
	}
	return dst
}

// humanSum is the contribution of a human-readable part that behind digits follow.
func humanSum(human []byte, behind int) (sum uint32) {
	sum = 1
	for _, c := range human {
		sum = addDigit(sum, uint32(c>>5))
	}
	sum = addDigit(sum, 0)
	for _, c := range human {
		sum = addDigit(sum, uint32(c&31))
	}
	at := sum
	sum = 0
	for i := range checkSize {
		sum ^= bech32Sums[behind+i][at>>(5*i)&31]
	}
	return sum
}

// bech32Sums[behind][digit] is the contribution of a digit that behind digits follow.
var bech32Sums = func() (sums [2*checkSize + 8*maxAddress/5][32]uint32) {
	for behind := range sums {
		for digit := range sums[behind] {
			if sums[behind][digit] = uint32(digit); behind > 0 {
				sums[behind][digit] = addDigit(sums[behind-1][digit], 0)
			}
		}
	}
	return sums
}()

// addDigit is a step of the division of BIP-173.
func addDigit(sum, digit uint32) uint32 {
	top := sum >> 25
	sum = sum&0x1ffffff<<5 ^ digit
	for i, generator := range [...]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
		sum ^= generator & -(top >> i & 1)
	}
	return sum
}
