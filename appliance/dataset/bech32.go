package dataset

import "strings"

const bech32Digits = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

// bech32 writes bytes as an address of that prefix (BIP-173).
func bech32(prefix string, b []byte) string {
	var groups []byte // of 5 bits
	bits, have := uint(0), 0
	for _, c := range b {
		bits, have = bits<<8|uint(c), have+8
		for have >= 5 {
			have -= 5
			groups = append(groups, byte(bits>>have)&31)
		}
	}
	if have > 0 {
		groups = append(groups, byte(bits<<(5-have))&31)
	}
	text := make([]byte, 0, len(prefix)+len(groups)+7)
	text = append(append(text, prefix...), '1')
	for _, g := range groups {
		text = append(text, bech32Digits[g])
	}
	sum := bech32Sum(prefix, groups)
	for i := range 6 {
		text = append(text, bech32Digits[sum>>(5*(5-i))&31])
	}
	return string(text)
}

func bech32Sum(prefix string, groups []byte) uint32 {
	sum := uint32(1)
	step := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, g := range [5]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	for i := range len(prefix) {
		step(prefix[i] >> 5)
	}
	step(0)
	for i := range len(prefix) {
		step(prefix[i] & 31)
	}
	for _, g := range groups {
		step(g)
	}
	for range 6 {
		step(0)
	}
	return sum ^ 1
}

// unbech32 returns the bytes of an address that bech32 has written.
func unbech32(text string) []byte {
	digits := text[strings.LastIndexByte(text, '1')+1 : len(text)-6]
	var b []byte
	bits, have := uint(0), 0
	for i := range len(digits) {
		bits, have = bits<<5|uint(strings.IndexByte(bech32Digits, digits[i])), have+5
		if have >= 8 {
			have -= 8
			b = append(b, byte(bits>>have))
		}
	}
	return b
}
