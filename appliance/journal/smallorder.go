package journal

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// ErrSmallOrder refuses an Ed25519 key of small order: signatures that verify under it need no secret.
var ErrSmallOrder = errors.New("the Ed25519 key has small order: everyone can forge its signatures")

// smallOrder lists the encodings of the points of edwards25519 with an order that divides 8 (RFC 8032, section 5.1.2),
// with the sign bit of x cleared. The last two encodings are not canonical.
var smallOrder = [...]string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
}

// HasSmallOrder reports whether an Ed25519 public key of ed25519.PublicKeySize bytes has small order.
func HasSmallOrder(key ed25519.PublicKey) bool {
	y := slices.Clone(key)
	y[len(y)-1] &= 0x7f
	return slices.Contains(smallOrder[:], hex.EncodeToString(y))
}

// ParseVerifier reads the verifier key of a log to be trusted: name+hash+key (C2SP signed-note, Ed25519).
//
// Errors: ErrSmallOrder, or the key is malformed.
func ParseVerifier(vkey string) (note.Verifier, error) {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, err
	}
	const afterHash = 2
	key, err := base64.StdEncoding.DecodeString(strings.SplitN(vkey, "+", afterHash+1)[afterHash])
	if err != nil {
		return nil, err
	}
	if HasSmallOrder(key[1:]) {
		return nil, ErrSmallOrder
	}
	return v, nil
}
