package index

import "bytes"

// Addresses as chains show them, in packed rows: their bytes are those of another field.

const (
	bech32Alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	// checkSize is how many digits of a bech32 address are its checksum (BIP-173).
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

// casedOf appends a text in the form textCased, nil where it is not the other field's but for capitals.
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

// appendBech32 appends a text of the form textBech32.
func (r *Row) appendBech32(dst []byte, raw int, around []byte) []byte {
	var buf [128]byte
	prefix := len(around) - checkSize
	dst = append(dst, around[:prefix]...)
	digits := r.AppendText(buf[:0], raw)[2:]
	bits, n := uint32(0), 0
	for _, c := range digits {
		bits, n = bits<<4|uint32(hexValues[c]), n+4
		if n >= 5 {
			n -= 5
			dst = append(dst, bech32Alphabet[bits>>n&31])
		}
	}
	if n > 0 {
		dst = append(dst, bech32Alphabet[bits<<(5-n)&31])
	}
	return append(dst, around[prefix:]...)
}

// bech32Of appends a text in the form textBech32, nil where it does not have the other field's bytes.
func (r *Row) bech32Of(out []byte, raw int, other, text []byte) []byte {
	prefix := bytes.LastIndexByte(text, '1') + 1
	if prefix == 0 || !isHex(other) || len(text) < prefix+checkSize {
		return nil
	}
	mark := len(out)
	out = append(append(out, text[:prefix]...), text[len(text)-checkSize:]...)
	var buf [256]byte
	if !bytes.Equal(r.appendBech32(buf[:0], raw, out[mark:]), text) {
		return nil
	}
	return out
}

// appendAddress appends an address in one of these forms, nil where it has none.
func (r *Row) appendAddress(out []byte, raw int, text []byte) (textTag, []byte) {
	var buf [128]byte
	other := r.AppendText(buf[:0], raw)
	if packed := casedOf(out, other, text); packed != nil {
		return textCased, packed
	}
	return textBech32, r.bech32Of(out, raw, other, text)
}
