package coding

import (
	"encoding/hex"
	"math/big"
	"strings"
	"time"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/ethereum/go-ethereum/common"
)

// form is how bytes are written in JSON: the same account is in an answer in four of them.
type form struct {
	kind formKind
	part string // the human-readable part of bech32
}

type formKind uint8

const (
	formText      formKind        = iota // a string, as it stands between its quotes
	formLiteral                          // what has no quotes, as it is written
	formNumber                           // an integer of JSON
	formDecimal                          // an integer in a string
	formHex                              // 0x and digits in lower case
	formChecksum                         // an address in mixed case, which is a checksum (EIP-55)
	formWord                             // 32 bytes within hex; not its zeros at the left
	formBech32                           // an address (BIP-173), without its checksum
	formBech32Hex                        // 0x and the hex of such an address' text
	formTime                             // RFC 3339 in UTC, to the second; those behind it have digits of a fraction
	formKinds     = formTime + 10        // formTime + 9 has nine
)

const (
	wordBytes  = 32
	mostDigits = 76 // of a decimal number: no more than wordBytes have
	mostPart   = 20 // bytes of a human-readable part
	// The lengths of addresses of bech32, of 20 and of 32 bytes.
	shortestAddress = 1 + 1 + 32 + 6
	longestAddress  = mostPart + 1 + 52 + 6
)

// isNumber tells bytes that are a number, the highest first and without zeros before it.
func (k formKind) isNumber() bool {
	return k == formNumber || k == formDecimal || k == formWord || k >= formTime
}

// formOf finds the form of a value of JSON, which is between quotes or a literal, and the bytes that it writes. It is one that appendTo
// makes the same text of.
func formOf(quoted bool, text []byte) (form, []byte) {
	switch {
	case !quoted:
		if n, ok := decimalBytes(text, 18); ok {
			return form{kind: formNumber}, n
		}
		return form{kind: formLiteral}, text
	case len(text) == 0:
	case text[0] >= '0' && text[0] <= '9':
		if f, raw, ok := formOfDigits(text); ok {
			return f, raw
		}
	case len(text) >= shortestAddress && len(text) <= longestAddress:
		if part, raw, ok := ofBech32(string(text)); ok {
			return form{formBech32, part}, raw
		}
	}
	return form{kind: formText}, text
}

// formOfDigits finds the form of a text that begins with a digit.
func formOfDigits(text []byte) (f form, raw []byte, ok bool) {
	if len(text) >= 2 && text[1] == 'x' {
		return formOfHex(text)
	}
	if n, ok := decimalBytes(text, mostDigits); ok {
		return form{kind: formDecimal}, n, true
	}
	if len(text) < len("2006-01-02T15:04:05Z") || text[10] != 'T' {
		return f, nil, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil || at.Before(time.Unix(0, 0)) || at.Year() > 2200 {
		return f, nil, false
	}
	f.kind = formTime
	if fraction := len(text) - len("2006-01-02T15:04:05Z") - 1; fraction > 0 {
		f.kind += formKind(min(fraction, 9))
	}
	raw = big.NewInt(at.UnixNano()).Bytes()
	again, err := f.appendTo(nil, raw)
	return f, raw, err == nil && string(again) == string(text)
}

func formOfHex(text []byte) (f form, raw []byte, ok bool) {
	raw, err := hex.DecodeString(string(text[2:]))
	if err != nil || text[0] != '0' {
		return f, nil, false
	}
	if hex.EncodeToString(raw) == string(text[2:]) {
		f, raw = formOfBytes(raw)
		return f, raw, true
	}
	return form{kind: formChecksum}, raw, len(raw) == common.AddressLength && common.BytesToAddress(raw).Hex() == string(text)
}

// formOfBytes finds the form of bytes that are written in hex.
func formOfBytes(raw []byte) (form, []byte) {
	if len(raw) >= shortestAddress && len(raw) <= longestAddress {
		if part, address, ok := ofBech32(string(raw)); ok {
			return form{formBech32Hex, part}, address
		}
	}
	return form{kind: formHex}, raw
}

// ofBech32 returns what a string of bech32 has, if it is the one that is made of that.
func ofBech32(s string) (part string, raw []byte, ok bool) {
	if strings.LastIndexByte(s, '1') < 1 {
		return "", nil, false
	}
	part, raw, err := bech32.DecodeToBase256(s)
	if err != nil || len(part) > mostPart {
		return "", nil, false
	}
	again, err := bech32.EncodeFromBase256(part, raw)
	return part, raw, err == nil && again == s
}

// decimalBytes are the bytes of a number of up to so many digits, without zeros before it.
func decimalBytes(text []byte, digits int) (raw []byte, ok bool) {
	if len(text) == 0 || len(text) > digits || text[0] == '0' && len(text) > 1 {
		return nil, false
	}
	for _, b := range text {
		if b < '0' || b > '9' {
			return nil, false
		}
	}
	n, ok := new(big.Int).SetString(string(text), 10)
	if !ok {
		return nil, false
	}
	return n.Bytes(), true
}

// appendTo appends the text of bytes in a form, without quotes.
func (f form) appendTo(out, raw []byte) ([]byte, error) {
	switch f.kind {
	case formText, formLiteral:
		return append(out, raw...), nil
	case formNumber, formDecimal:
		return new(big.Int).SetBytes(raw).Append(out, 10), nil
	case formChecksum:
		return append(out, common.BytesToAddress(raw).Hex()...), nil
	case formHex, formBech32Hex:
		bytes, err := f.bytes(raw)
		return hex.AppendEncode(append(out, "0x"...), bytes), err
	case formBech32:
		text, err := bech32.EncodeFromBase256(f.part, raw)
		return append(out, text...), err
	}
	if f.kind < formTime || f.kind >= formKinds || len(raw) > 8 {
		return nil, errPacked
	}
	at := time.Unix(0, new(big.Int).SetBytes(raw).Int64()).UTC()
	layout := "2006-01-02T15:04:05.000000000"
	return append(at.AppendFormat(out, strings.TrimSuffix(layout[:len("2006-01-02T15:04:05.")+int(f.kind-formTime)], ".")), 'Z'), nil
}

// appendJSON appends bytes in a form as a value of JSON. The bytes may be anybody's.
func (f form) appendJSON(out, raw []byte) ([]byte, error) {
	if f.kind.isNumber() && len(raw) > wordBytes || f.part != "" && len(raw) > longestAddress {
		return nil, errPacked
	}
	if f.kind == formLiteral || f.kind == formNumber {
		return f.appendTo(out, raw)
	}
	out, err := f.appendTo(append(out, '"'), raw)
	return append(out, '"'), err
}

// bytes are those of which the hex is written.
func (f form) bytes(raw []byte) ([]byte, error) {
	if f.kind != formBech32Hex {
		return raw, nil
	}
	text, err := bech32.EncodeFromBase256(f.part, raw)
	return []byte(text), err
}
