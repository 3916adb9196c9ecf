package appliance

import (
	"encoding/hex"
	"strings"

	"github.com/ethereum/go-ethereum/crypto"
)

// Address is a 20-byte account address. Its text form is EIP-55.
type Address [20]byte

// ParseAddress reads 0x and 40 hex digits. It accepts all-lower and all-upper case. Mixed case must match the EIP-55
// checksum, because money sent to a mistyped address is lost.
//
// Errors: CodeInvalidAddress for the form, CodeInvalidChecksum for the case, CodeZeroAddress for 0x000….
func ParseAddress(s string) (Address, error) {
	digits, found := strings.CutPrefix(s, "0x")
	if !found {
		return Address{}, Errorf(CodeInvalidAddress, "must start with 0x")
	}
	if len(digits) != 2*len(Address{}) {
		return Address{}, Errorf(CodeInvalidAddress, "must have 40 hex digits after 0x, not %d", len(digits))
	}
	var a Address
	var text [2 * len(a)]byte // stays on the stack
	copy(text[:], digits)
	if _, err := hex.Decode(a[:], text[:]); err != nil {
		return Address{}, Errorf(CodeInvalidAddress, "must have only hex digits after 0x")
	}
	if a == (Address{}) {
		return Address{}, Errorf(CodeZeroAddress, "must not be the zero address")
	}
	mixed := strings.ContainsAny(digits, "abcdef") && strings.ContainsAny(digits, "ABCDEF")
	if mixed && a.String() != s {
		return Address{}, Errorf(CodeInvalidChecksum, "has a wrong EIP-55 checksum: a digit or its case is mistyped")
	}
	return a, nil
}

// String returns the EIP-55 form.
func (a Address) String() string { return string(a.AppendTo(make([]byte, 0, addressText))) }

// MarshalText returns the EIP-55 form.
func (a Address) MarshalText() ([]byte, error) { return a.AppendTo(nil), nil }

const addressText = len("0x") + 2*len(Address{})

// AppendTo appends the EIP-55 form: a letter is upper-case if the corresponding hex digit of the hash of the
// lower-case text is 8 or more.
func (a Address) AppendTo(b []byte) []byte {
	b = hex.AppendEncode(append(b, "0x"...), a[:])
	digits := b[len(b)-2*len(a):]
	hash := crypto.Keccak256Hash(digits)
	for i, digit := range digits {
		if large := hash[i/2]<<(4*(i%2)) >= 8<<4; large && digit > '9' {
			digits[i] -= 'a' - 'A'
		}
	}
	return b
}

// UnmarshalText calls ParseAddress.
func (a *Address) UnmarshalText(text []byte) error {
	parsed, err := ParseAddress(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}
