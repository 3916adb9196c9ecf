package index

import (
	"math"
	"math/bits"
	"strconv"
)

// Decimal numbers, such as amounts in the smallest units of tokens. With 18 decimals they often exceed 64 bits and end
// in zeros.

const (
	// maxDigits keeps the number below 2^128 and its upper 64 bits below lowUnit.
	maxDigits = 38
	lowDigits = 19
	lowUnit   = 1e19
	// worthRounding is how many trailing zeros justify the byte for their count.
	worthRounding = 3
)

// decimalOf appends a text in the form textDecimal or textRound; ok is false if it fits neither.
func decimalOf(dst, text []byte) (form textTag, _ []byte, ok bool) {
	zeros := 0
	for zeros < len(text) && text[len(text)-1-zeros] == '0' {
		zeros++
	}
	form = textDecimal
	if zeros >= worthRounding && zeros < len(text) && zeros <= math.MaxUint8 {
		form, text = textRound, text[:len(text)-zeros]
	}
	if len(text) == 0 || len(text) > maxDigits || text[0] == '0' && len(text) > 1 {
		return 0, dst, false
	}
	high, low, ok := parseDigits(text)
	if !ok {
		return 0, dst, false
	}
	if form == textRound {
		dst = append(dst, byte(zeros))
	}
	for high > 0 || low > 0 {
		dst = append(dst, byte(low))
		high, low = high>>8, low>>8|high<<56
	}
	return form, dst, true
}

// parseDigits returns the upper and lower 64 bits of a number of up to maxDigits digits.
func parseDigits(text []byte) (high, low uint64, ok bool) {
	var parts [2]uint64 // the digits before the last lowDigits, and the last lowDigits
	for i, c := range text {
		if c < '0' || c > '9' {
			return 0, 0, false
		}
		part := &parts[1]
		if i < len(text)-lowDigits {
			part = &parts[0]
		}
		*part = *part*10 + uint64(c-'0')
	}
	high, low = bits.Mul64(parts[0], lowUnit)
	low, carry := bits.Add64(low, parts[1], 0)
	return high + carry, low, true
}

// number returns the upper and lower 64 bits of a number of up to 16 bytes little-endian.
func number(v []byte) (high, low uint64) {
	for i := len(v) - 1; i >= 0; i-- {
		high, low = high<<8|low>>56, low<<8|uint64(v[i])
	}
	return high, low
}

// appendDigits appends a number of up to 16 bytes little-endian in decimal.
func appendDigits(dst, v []byte) []byte {
	high, low := number(v)
	if high == 0 {
		return strconv.AppendUint(dst, low, 10)
	}
	upper, lower := bits.Div64(high, low, lowUnit)
	if upper > 0 {
		dst = strconv.AppendUint(dst, upper, 10)
	}
	mark := len(dst)
	dst = append(dst, zeroDigits[:lowDigits]...)
	for i := len(dst) - 1; i >= mark; i-- {
		dst[i] += byte(lower % 10)
		lower /= 10
	}
	return dst
}
