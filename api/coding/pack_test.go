package coding

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/klauspost/compress/zstd"
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
	return append([]string{
		"", `"`, `""`, `{"a":"0x`, `plain`, "\x00\x01\x06\xff", `{}`, `[]`, `[{}]`, `{"":{}}`, `[[],[[]],[1,[2]],[]]`, `{"a":1,"a":2}`, `{"a":1,}`, `{"a" :1}`, ` {}`, `{} `,
		`{"hash":"0x00ff00ff00ff00ff","again":"0x00ff00ff00ff00ff","other":"0x00ff00ff00ff00fe"}`,
		`{"0x00ff00ff00ff":"0x00ff00ff00ff","odd":"0x00ff00ff00f","capital":"0X00FF00FF00FF","upper":"0x00FF00FF00FF","none":"0x","half":"0x0","x":"1x00"}`,
		`["` + checksum + `","` + strings.ToLower(checksum) + `","` + strings.Replace(checksum, "aA", "Aa", 1) + `"]`,
		`["` + bech + `","` + bech[:len(bech)-1] + `q","` + strings.ToUpper(bech) + `","` + within + `","` + address + `","0x` + fmt.Sprintf("%x", bech) + `"]`,
		`{"time":"2026-05-20T12:00:00Z","number":"123456789","time":"2026-05-20T12:00:00Z","escaped":"0x00ff00\"00ff00ff","line":"a\nb","end":"\\"}`,
		`["2026-05-20T12:00:00.5Z","2026-05-20T12:00:00.500Z","2026-05-20T12:00:00.123456789Z","2026-05-20T12:00:00.1234567891Z","2026-02-30T12:00:00Z","2026-05-20T12:00:00.Z","1969-12-31T23:59:59Z","2026-05-20T12:00:00+00:00","9999-01-01T00:00:00Z"]`,
		`[0,-0,00,1,-1,1.5,1e9,999999999999999999,9999999999999999999,true,false,null,nul]`,
		`["0","00","007","1000000000000000000","115792089237316195423570985008687907853269984665640564039457584007913129639935","` + strings.Repeat("9", 200) + `"]`,
		"[\"0x00ff00ff00ff\x00\",\"1234567\x038\"]",
		`["` + strings.Repeat(`0x00112233","0x44556677","`, 300) + `"]`,
		`["0x` + strings.Repeat("ab", mostText) + `","0x` + strings.Repeat("ab", mostText/2-1) + `"]`,
		strings.Repeat("[", mostDepth) + strings.Repeat("]", mostDepth), strings.Repeat("[", 10000),
		strings.Repeat(`{"a":`, mostDepth+2) + "1" + strings.Repeat("}", mostDepth+2),
		`"` + strings.Repeat("long", mostPacked/4) + `"`,
	}, answers()...)
}

// answers are texts as other appliances send them.
func answers() []string {
	random := rand.New(rand.NewPCG(1, 2))
	hash := func() string {
		return fmt.Sprintf("0x%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
	}
	var packets, transfers, keys strings.Builder
	for i := range 100 {
		account := make([]byte, 20)
		binary.BigEndian.PutUint64(account, random.Uint64())
		bech, _ := bech32.EncodeFromBase256("union", account)
		data := fmt.Sprintf("%s%064x%064x%064x%x%040x%s", hash(), 0x40, 1000*(i+1), len(bech), bech, 0, strings.Repeat("ab", i%40))
		h, tx := hash(), hash()
		fmt.Fprintf(&packets, `,{"packet_hash":"%s","status":"PACKET_ACK","send":"2026-05-20T07:%02d:54.391200%03dZ","tx":"%s","traces":[{"tx":"%[4]s","height":"%[5]d"}%[6]s],"data":"%[7]s"}`,
			h, i%60, i, tx, 13532309+7*i, strings.Repeat(`,{"tx":"`+hash()+`","height":null}`, i%3), data)
		fmt.Fprintf(&transfers, `,{"packet_hash":"%s","tx":"%s","sender":"%s","canonical":"0x%x","zkgm":"0x%x","amount":"%d","index":%d}`, h, tx, bech, account, bech, 1000*(i+1), i%2)
		fmt.Fprintf(&keys, `,"k%d":%d`, i*20, i)
	}
	many := make([]string, 3000)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":%d`, i, i)
	}
	return []string{
		`{"data":{"p0":[` + packets.String()[1:] + `],"p1":[` + transfers.String()[1:] + `]}}`,
		`{` + keys.String()[1:] + `}`, `{` + strings.Join(many, ",") + `}`, `[{` + keys.String()[1:] + `},{` + keys.String()[1:] + `,"more":1},{}]`,
	}
}

// packed returns a text as it is sent, having come in pieces that are cut at some places.
func packed(t testing.TB, text string, cut int) []byte {
	t.Helper()
	var pieces [][]byte
	for rest := []byte(text); len(rest) > 0; {
		n := min(len(rest), cut)
		pieces, rest = append(pieces, rest[:n]), rest[n:]
	}
	var e Encoders
	var coded bytes.Buffer
	if err := e.Encode(&coded, Packed, pieces); err != nil {
		t.Fatal(err)
	}
	return coded.Bytes()
}

func unpacked(coded []byte) (string, error) {
	r, err := NewReader(string(Packed), bytes.NewReader(coded))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), errors.Join(err, r.Close())
}

func TestPackingIsUndoneByteForByte(t *testing.T) {
	t.Parallel()
	for _, text := range packable(t) {
		for _, cut := range []int{997, 1 << 20} {
			if got, err := unpacked(packed(t, text, cut)); err != nil || got != text {
				t.Errorf("%.80q in pieces of %d: %v, %.80q", text, cut, err, got)
			}
		}
	}
}

func TestPackingMakesLessOfWhatIsPacked(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	rows := func(row func(i int) string) string {
		var all []string
		for i := range 100 {
			all = append(all, row(i))
		}
		return `{"data":{"rows":[` + strings.Join(all, ",") + "]}}"
	}
	account := func() []byte { return binary.BigEndian.AppendUint64(make([]byte, 12), random.Uint64()) }
	bech := func(a []byte) string { s, _ := bech32.EncodeFromBase256("union", a); return s }
	for name, c := range map[string]struct {
		row  func(i int) string
		most int // bytes of a row
	}{
		"a hash, three times": {func(int) string {
			h := fmt.Sprintf("0x%048x%016x", random.Uint64(), random.Uint64())
			return fmt.Sprintf(`{"packet_hash":"%s","again":"%s","traces":[{"hash":"%s"}]}`, h, h, h)
		}, 34},
		"an account in four forms": {func(int) string {
			a := account()
			return fmt.Sprintf(`{"canonical":"0x%x","display":"%s","zkgm":"0x%x","data":"0x%064x%064x%x%040x"}`, a, bech(a), bech(a), 64, 44, bech(a), 0)
		}, 22},
		"times": {func(i int) string {
			return fmt.Sprintf(`{"timestamp":"2026-05-20T12:%02d:%02dZ"}`, i/2, random.IntN(60))
		}, 3},
		"heights": {func(i int) string { return fmt.Sprintf(`{"height":"%d"}`, 13532309+9*i+random.IntN(9)) }, 2},
		"amounts": {func(int) string { return fmt.Sprintf(`{"amount":"%d000000000000000"}`, 1+random.IntN(1000)) }, 3},
		"what follows of it": {func(i int) string {
			return fmt.Sprintf(`{"chain":"union.%d","id":%d,"name":"chain %d"}`, i%4, i%4, i%4)
		}, 2},
		"what is always same": {func(int) string { return `{"a":null,"b":"union.union-1","c":true,"d":[],"e":{"f":1}}` }, 1},
	} {
		text := rows(c.row)
		if got := packed(t, text, len(text)); len(got) > 100*c.most+100 {
			t.Errorf("%s: a row is packed to %d bytes, at most %d are wanted", name, len(got)/100, c.most)
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
	for range 2 { // the second time with what the first has left in the pool
		for _, text := range answers() {
			var coded bytes.Buffer
			half := len(text) / 2
			if err := e.Encode(&coded, Packed, [][]byte{[]byte(text[:half]), []byte(text[half:])}); err != nil {
				t.Fatal(err)
			}
			if got, err := unpacked(coded.Bytes()); err != nil || got != text {
				t.Errorf("%v: %d of %d bytes", err, len(got), len(text))
			}
		}
	}
}

// by packs by hand what no text is packed to.
func by(write func(p *packing)) []byte {
	p := newPacking(writeDecisions())
	write(p)
	var coded bytes.Buffer
	w, err := newPackingWriter()
	if err != nil {
		panic(err)
	}
	w.Reset(&coded)
	if err := w.send(p); err != nil {
		panic(err)
	}
	return coded.Bytes()
}

// bytesInBytes packs bytes of which a word, the first or the last, is as long as they are, and such bytes again.
func bytesInBytes(deep int, last bool) []byte {
	return by(func(p *packing) {
		root := p.newColumn(nil)
		root.object = root
		p.know(nil, root)
		p.choice(root.kind[:], 0)
		var pack func(c, home *column, deep int)
		pack = func(c, home *column, deep int) {
			p.guesses(c)
			p.yes(&c.hit[c.was], false)
			p.choice(c.mode[:], modeFresh)
			p.form(c, scalar{value: value{-1, int32(formHex)}})
			p.size(&c.odds().size, mostText, mostText)
			var w words
			for range mostText/wordBytes - 1 {
				if last {
					p.scalar(w.column(p), w.home(p, home), p.scalarOf(form{kind: formWord}, nil))
					w.before, w.last = w.last, 1
				}
			}
			if deep > 0 {
				pack(w.column(p), w.home(p, home), deep-1)
			} else if !last {
				p.freshWords(home, make([]byte, mostText), mostText)
			}
			p.note(c, home, value{p.know(nil, home), int32(formHex)})
		}
		pack(root, root, deep)
	})
}

func TestUnpackingTakesBoundedMemory(t *testing.T) { // not beside others, whose memory would count
	for name, coded := range map[string][]byte{
		"the first word": bytesInBytes(mostColumns/2, false), "the last word": bytesInBytes(100, true),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := unpacked(coded)
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; err == nil || errors.Is(err, errSum) || took > 40 {
			t.Errorf("%s: %d bytes take %d MiB, %v", name, len(coded), took, err)
		}
	}
}

// What an upstream may send in place of packed text ends in an error, or is text: it never takes more than is bounded.
func TestMalformedPackedTextIsRefused(t *testing.T) {
	t.Parallel()
	phrases, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	head := func(coded, raws, keys uint64, text string) []byte {
		b := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint([]byte{isPacked}, coded), raws), keys)
		return phrases.EncodeAll([]byte(text), append(b, make([]byte, 4+min(coded+raws, 100))...))
	}
	list := func(p *packing, element func(), n int) {
		var kind [4]odds
		var more odds
		p.choice(kind[:], 2)
		for range n {
			p.yes(&more, true)
			element()
		}
	}
	for name, coded := range map[string][]byte{
		"nothing": {}, "not of zstd": {2, 1, 2, 3, 4, 5}, "no sizes": {isPacked}, "a size without end": append([]byte{isPacked}, bytes.Repeat([]byte{0xff}, 20)...),
		"decisions of gigabytes": head(1<<40, 0, 0, ""), "bytes of gigabytes": head(0, 1<<40, 0, ""), "keys without end": head(1, 0, 1<<40, ""),
		"decisions that are not there": head(1<<20, 0, 0, ""), "keys that are not there": head(10, 0, 3, "a\n"),
		"a phrase that does not end": head(10, 0, 1, strings.Repeat("a", mostPacked)), "no phrases": {isPacked, 0, 0, 0},
		"a bomb": by(func(p *packing) {
			p.text = []byte("[" + strings.Repeat(`"0x00ff00ff00ff",`, mostPacked/8) + "1]")
			if err := p.whole(); err != nil {
				t.Error(err)
			}
		}),
		"lists in lists": by(func(p *packing) {
			for range 10 * mostDepth {
				list(p, func() {}, 1)
			}
		}),
		"a guess of nothing": by(func(p *packing) {
			var kind [4]odds
			var hit odds
			p.choice(kind[:], 0)
			p.yes(&hit, true)
		}),
		"bytes that were never sent": by(func(p *packing) {
			root := p.newColumn(nil)
			root.object = root
			p.know(nil, root)
			p.choice(root.kind[:], 0)
			p.scalar(root, root, scalar{value{-1, int32(formHex)}, form{kind: formHex}, make([]byte, 40)})
			p.raws = nil
		}),
	} {
		if got, err := unpacked(coded); err == nil || errors.Is(err, errSum) {
			t.Errorf("%s: %.100q, %v", name, got, err)
		} else if len(got) > mostPacked {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}

// A line cuts and changes what it carries, and an upstream sends what it likes.
func TestBrokenPackedTextEnds(t *testing.T) {
	t.Parallel()
	text := answers()[0]
	whole := packed(t, text, len(text))
	random := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		cut := whole[:random.IntN(len(whole))]
		if got, err := unpacked(cut); err == nil {
			t.Errorf("%d of %d bytes are a text: %.80q", len(cut), len(whole), got)
		}
		changed := bytes.Clone(whole)
		changed[random.IntN(len(changed))] ^= 1 << random.IntN(8)
		if got, err := unpacked(changed); err == nil && got != text {
			t.Errorf("a bit is another, and %d bytes are another text", len(got))
		}
	}
}

// Where this fails, appliances of other versions cannot read what this one packs, and the coding needs another name.
func TestWhatOtherVersionsHavePackedIsRead(t *testing.T) {
	t.Parallel()
	coded, err := os.ReadFile("testdata/answer.attestd")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unpacked(coded); err != nil || got != answers()[0] {
		t.Errorf("%v: %.80q", err, got)
	}
}

func FuzzPack(f *testing.F) {
	for _, text := range packable(f) {
		if len(text) < 1<<16 {
			f.Add([]byte(text), 64)
			f.Add(packed(f, text, len(text)+1), 64)
		}
	}
	f.Add(bytesInBytes(3, true), 64)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if len(text) > 1<<16 {
			return
		}
		got, err := unpacked(packed(t, string(text), max(1, cut)))
		if err != nil || got != string(text) {
			t.Errorf("%v: %q, want %q", err, got, text)
		}
		r := newUnpacker(bytes.NewReader(text)) // as if it was packed
		if n, _ := io.Copy(io.Discard, io.LimitReader(r, 2*mostPacked)); n > mostPacked && text[0] == isPacked {
			t.Errorf("%d bytes", n)
		}
		_ = r.Close()
	})
}

// FuzzUnpack is FuzzPack's second half without the frame of zstd, which hides from it what the phrases are.
func FuzzUnpack(f *testing.F) {
	for _, text := range packable(f) {
		p := newPacking(writeDecisions())
		if p.text = []byte(text); len(text) < 1<<16 && p.whole() == nil {
			f.Add(p.end(), p.raws, p.texts, len(p.keys))
		}
	}
	f.Fuzz(func(t *testing.T, coded, raws, texts []byte, keys int) {
		p := newPacking(readDecisions(coded))
		p.raws, p.from = raws, bufio.NewReader(bytes.NewReader(texts))
		for i := range min(max(keys, 0), mostColumns) {
			p.keys = append(p.keys, string(rune('a'+i%26)))
		}
		_ = p.whole()
		if len(p.text) > mostPacked || p.bytes > mostBytes+mostText {
			t.Errorf("%d bytes of %d that are known", len(p.text), p.bytes)
		}
	})
}
