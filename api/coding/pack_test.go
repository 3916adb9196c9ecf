package coding

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/btcsuite/btcd/btcutil/bech32"
)

const (
	address  = "union1k73ux6hknltlx0wsenm7e8yvez3pqj2sujmsd47"
	checksum = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed" // of EIP-55
)

// packable are texts with everything that is packed, and what only looks so.
func packable(t testing.TB) []string {
	t.Helper()
	bech, err := bech32.EncodeFromBase256("union", bytes.Repeat([]byte{7}, 20))
	if err != nil {
		t.Fatal(err)
	}
	within := fmt.Sprintf("0x%x", "\x00\x00"+bech+"\x00 and "+bech)
	return []string{
		"", `"`, `""`, `{"a":"0x`, `plain`, "\x00\x01\x06\xff",
		`{"hash":"0x00ff00ff00ff00ff","again":"0x00ff00ff00ff00ff","other":"0x00ff00ff00ff00fe"}`,
		`{"0x00ff00ff00ff":"0x00ff00ff00ff","odd":"0x00ff00ff00f","capital":"0X00FF00FF00FF","upper":"0x00FF00FF00FF"}`,
		`["` + checksum + `","` + strings.ToLower(checksum) + `","` + strings.Replace(checksum, "aA", "Aa", 1) + `"]`,
		`["` + bech + `","` + bech[:len(bech)-1] + `q","` + strings.ToUpper(bech) + `","` + within + `","` + address + `"]`,
		`{"time":"2026-05-20T12:00:00Z","number":"123456789","time":"2026-05-20T12:00:00Z","escaped":"0x00ff00\"00ff00ff"}`,
		"[\"0x00ff00ff00ff\x00\",\"1234567\x038\"]",
		`["` + strings.Repeat(`0x00112233","0x44556677","`, 300) + `"]`,
		`["0x` + strings.Repeat("ab", mostString) + `","0x` + strings.Repeat("ab", mostString/2) + `"]`,
	}
}

// packed returns a text packed, in pieces that are cut at some places.
func packed(text string, cut int) []byte {
	p := newPacker()
	var all []byte
	for rest := []byte(text); ; {
		n := min(len(rest), cut)
		all = append(all, p.pack(rest[:n])...)
		if rest = rest[n:]; len(rest) == 0 {
			return all
		}
	}
}

func TestPackingIsUndoneByteForByte(t *testing.T) {
	t.Parallel()
	for _, text := range packable(t) {
		for _, cut := range []int{1, 7, 64, 1 << 20} {
			got, err := io.ReadAll(newUnpacker(bytes.NewReader(packed(text, cut))))
			if err != nil || string(got) != text {
				t.Errorf("%.80q in pieces of %d: %v, %.80q", text, cut, err, got)
			}
		}
	}
}

func TestPackingMakesLessOfWhatIsPacked(t *testing.T) {
	t.Parallel()
	bech, _ := bech32.EncodeFromBase256("union", bytes.Repeat([]byte{7}, 20))
	for text, most := range map[string]int{
		`"0x` + strings.Repeat("ab", 32) + `"`: 2 + 2 + 32,
		`"` + checksum + `"`:                   2 + 1 + 20,
		`"` + bech + `"`:                       2 + 3 + 5 + 20,
		`"` + fmt.Sprintf("0x%x", bech) + `"`:  2 + 6 + 5 + 20,
		`"0x` + strings.Repeat("ab", 32) + `","0x` + strings.Repeat("ab", 32): 2 + 2 + 32 + 3 + 66, // not ended
		`["2026-05-20T12:00:00Z","2026-05-20T12:00:00Z"]`:                     2 + 5 + 22 + 2,
	} {
		if got := packed(text, len(text)); len(got) > most {
			t.Errorf("%s is packed to %d bytes, at most %d are wanted: %q", text, len(got), most, got)
		}
	}
}

// What an upstream may send in place of packed text ends in an error, or is text: it never takes more than it says.
func TestMalformedPackedTextIsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a reference to nothing": "\x03\x01", "a reference too far back": "\x04\x01a\x03\x02", "a reference to itself": "\x03\x00",
		"hex that ends early": "\x00\x05abc", "hex of gigabytes": "\x00\xff\xff\xff\xff\x7f", "a size that does not end": "\x04" + strings.Repeat("\xff", 20),
		"an address that ends early": "\x02abc", "addresses that are not there": "\x06\x02\x01a",
		"a literal that is not there": "\x05",
	} {
		if got, err := io.ReadAll(newUnpacker(strings.NewReader(text))); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestOnlyWhoNamesItGetsPackedText(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]Coding{
		"*": Zstd, "gzip, *;q=0.5": Gzip, AcceptedPacked: Packed, "attestd": Packed, "attestd;q=0": Identity, "attestd;q=0.5, gzip": Gzip, Accepted: Zstd,
	} {
		if got, _ := Choose(accept); got != want {
			t.Errorf("%s: %q, want %q", accept, got, want)
		}
	}
	var e Encoders
	var coded bytes.Buffer
	text := strings.Join(packable(t), "")
	for range 2 { // the second time with what the first has left in the pool
		coded.Reset()
		if err := e.Encode(&coded, Packed, [][]byte{[]byte(text[:100]), []byte(text[100:])}); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader("attestd", bytes.NewReader(coded.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || string(got) != text || r.Close() != nil {
			t.Errorf("%v: %d of %d bytes", err, len(got), len(text))
		}
	}
}

func FuzzPack(f *testing.F) {
	for _, text := range packable(f) {
		f.Add([]byte(text), 64)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if len(text) > 1<<16 {
			return
		}
		got, err := io.ReadAll(newUnpacker(bytes.NewReader(packed(string(text), max(1, cut)))))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%v: %q, want %q", err, got, text)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(newUnpacker(bytes.NewReader(text)), 1<<20)) // as if it was packed
	})
}
