package coding

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/ethereum/go-ethereum/common"
)

func (p *packer) sized(raw []byte) {
	p.out = append(binary.AppendUvarint(p.out, uint64(len(raw))), raw...)
}

func (p *packer) bech32(part string, raw []byte) {
	p.out = append(append(p.out, byte(len(part))), part...)
	p.sized(raw)
}

// ofBech32 returns what a string of bech32 has, if toBech32 makes the same string of it.
func ofBech32(s string) (part string, raw []byte, ok bool) {
	part, raw, err := bech32.DecodeToBase256(s)
	if err != nil || len(part) > 0xff {
		return "", nil, false
	}
	again, err := bech32.EncodeFromBase256(part, raw)
	return part, raw, err == nil && again == s
}

func isBech32(s string) bool {
	_, _, ok := ofBech32(s)
	return ok
}

// The lengths of addresses of bech32, of 20 and of 32 bytes, with a human-readable part of up to 20.
const (
	shortestAddress = 1 + 1 + 32 + 6
	longestAddress  = 20 + 1 + 52 + 6
	mostAddresses   = 32
)

// addressesIn returns where addresses of bech32 are in bytes, from and to.
func addressesIn(raw []byte) (found [][2]int) {
	for from := 0; from < len(raw) && len(found) < mostAddresses; {
		to := from
		for to < len(raw) && (raw[to] >= 'a' && raw[to] <= 'z' || raw[to] >= '0' && raw[to] <= '9') {
			to++
		}
		if n := to - from; n >= shortestAddress && n <= longestAddress && isBech32(string(raw[from:to])) {
			found = append(found, [2]int{from, to})
		}
		from = max(to, from+1)
	}
	return found
}

var errPacked = errors.New("the packed text is malformed")

// unpacker undoes packing.
type unpacker struct {
	recent
	in   *bufio.Reader
	text []byte // that is to be read yet
	err  error
}

func newUnpacker(in io.Reader) *unpacker { return &unpacker{in: bufio.NewReaderSize(in, 64<<10)} }

func (u *unpacker) Read(p []byte) (int, error) {
	for len(u.text) == 0 && u.err == nil {
		u.err = u.next()
	}
	if len(u.text) == 0 {
		return 0, u.err
	}
	n := copy(p, u.text)
	u.text = u.text[n:]
	return n, nil
}

// next reads the text up to a token, or a token.
func (u *unpacker) next() error {
	ahead, err := u.in.Peek(max(1, u.in.Buffered()))
	if len(ahead) == 0 {
		return err
	}
	plain := 0
	for plain < len(ahead) && ahead[plain] >= tokens {
		plain++
	}
	if plain > 0 {
		u.text = append(u.text[:0], ahead[:plain]...)
		_, err = u.in.Discard(plain)
		return err
	}
	kind, _ := u.in.ReadByte()
	s, err := u.token(kind)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errPacked, err)
	}
	u.text = append(u.text[:0], s...)
	if kind != tokenAgain && kind != tokenLiteral {
		u.add(s)
	}
	return nil
}

func (u *unpacker) token(kind byte) (string, error) {
	switch kind {
	case tokenHex:
		raw, err := u.sized()
		return "0x" + hex.EncodeToString(raw), err
	case tokenHexWith:
		return u.hexWith()
	case tokenBech32:
		return u.bech32()
	case tokenEIP55:
		raw, err := u.exactly(common.AddressLength)
		return common.BytesToAddress(raw).Hex(), err
	case tokenText:
		raw, err := u.sized()
		return string(raw), err
	}
	b, err := u.in.ReadByte()
	if err != nil || kind == tokenLiteral {
		return string([]byte{b}), err
	}
	s, ok := u.back(int(b))
	if !ok {
		return "", fmt.Errorf("a reference %d strings back", b)
	}
	return s, nil
}

func (u *unpacker) exactly(n int) ([]byte, error) {
	raw := make([]byte, n)
	_, err := io.ReadFull(u.in, raw)
	return raw, err
}

func (u *unpacker) sized() ([]byte, error) {
	n, err := binary.ReadUvarint(u.in)
	if err != nil {
		return nil, err
	}
	if n > mostString {
		return nil, fmt.Errorf("a string of %d bytes", n)
	}
	return u.exactly(int(n))
}

func (u *unpacker) bech32() (string, error) {
	n, err := u.in.ReadByte()
	if err != nil {
		return "", err
	}
	part, err := u.exactly(int(n))
	if err != nil {
		return "", err
	}
	raw, err := u.sized()
	if err != nil {
		return "", err
	}
	return bech32.EncodeFromBase256(string(part), raw)
}

func (u *unpacker) hexWith() (string, error) {
	n, err := u.in.ReadByte()
	if err != nil {
		return "", err
	}
	var all []byte
	for range n {
		before, err := u.sized()
		if err != nil {
			return "", err
		}
		address, err := u.bech32()
		if err != nil {
			return "", err
		}
		all = append(append(all, before...), address...)
	}
	rest, err := u.sized()
	return "0x" + hex.EncodeToString(append(all, rest...)), err
}
