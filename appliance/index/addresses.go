package index

import "bytes"

// Addresses as chains show them, in packed rows: their bytes are those of another field.

const (
	bech32Alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	// checkSize is how many digits of a bech32 address are its checksum (BIP-173).
	checkSize = 6
)

// appendCased appends a text of the form textCased.
func (r Row) appendCased(dst, v []byte) []byte {
	start := len(dst)
	dst = r.AppendText(dst, int(v[1]))
	capitals := v[2:]
	for i := range dst[start+2:] {
		if capitals[i/8]&(1<<(i%8)) != 0 {
			dst[start+2+i] -= 'a' - 'A'
		}
	}
	return dst
}

// casedOf returns a text in the form textCased, nil where it is not the other field's but for capitals.
func casedOf(raw int, other, text []byte) []byte {
	if len(text) != len(other) || len(text) < 2 {
		return nil
	}
	packed := append([]byte{textCased, byte(raw)}, make([]byte, (len(text)-2+7)/8)...)
	for i, c := range text {
		switch {
		case c == other[i]:
		case i >= 2 && 'A' <= c && c <= 'Z' && c+'a'-'A' == other[i]:
			packed[2+(i-2)/8] |= 1 << ((i - 2) % 8)
		default:
			return nil
		}
	}
	return packed
}

// appendBech32 appends a text of the form textBech32.
func (r Row) appendBech32(dst, v []byte) []byte {
	var buf [128]byte
	around := v[2:]
	prefix := len(around) - checkSize
	dst = append(dst, around[:prefix]...)
	digits := r.AppendText(buf[:0], int(v[1]))[2:]
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

// bech32Of returns a text in the form textBech32, nil where it does not have the other field's bytes.
func (r Row) bech32Of(raw int, other, text []byte) []byte {
	prefix := bytes.LastIndexByte(text, '1') + 1
	if prefix == 0 || !isHex(other) || len(text) < prefix+checkSize {
		return nil
	}
	packed := append(append([]byte{textBech32, byte(raw)}, text[:prefix]...), text[len(text)-checkSize:]...)
	var buf [256]byte
	if !bytes.Equal(r.appendBech32(buf[:0], packed), text) {
		return nil
	}
	return packed
}

// addressOf returns an address in one of these forms, nil where it has none.
func (r Row) addressOf(raw int, text []byte) []byte {
	var buf [128]byte
	other := r.AppendText(buf[:0], raw)
	if packed := casedOf(raw, other, text); packed != nil {
		return packed
	}
	return r.bech32Of(raw, other, text)
}
