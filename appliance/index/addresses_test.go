package index

import (
	"encoding/hex"
	"testing"
)

// The addresses are test vectors of BIP-173 and of BIP-350.
func TestBech32(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		human, address string
		constant       int
		want           string
	}{
		{"abcdef", "00443214c74254b635cf84653a56d7c675be77df", 0, "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw"},
		{"abcdef", "ffbbcdeb38bdab49ca307b9ac5a928398a418820", 1, "abcdef1l7aum6echk45nj3s0wdvt2fg8x9yrzpqzd3ryx"},
		{"a", "", 0, "a12uel5l"},
		{"a", "", 1, "a1lqfn3a"},
	} {
		address, err := hex.DecodeString(test.address)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendBech32(nil, []byte(test.human), address,
			bech32Constants[test.constant])); got != test.want {
			t.Errorf("%s of %s is %s, want %s", test.human, test.address, got, test.want)
		}
	}
}
