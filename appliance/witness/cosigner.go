package witness

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance/journal"
)

// Types of keys in a vkey (C2SP signed-note).
const (
	typeLog         = 0x01 // Ed25519, signs notes
	typeCosignature = 0x04 // Ed25519, cosignature/v1
	typeMLDSA       = 0x06 // ML-DSA-44, subtree/v1
)

// signatureSize is the size of an Ed25519 cosignature: 8 bytes of time, big-endian, then the signature.
const signatureSize = 8 + ed25519.SignatureSize

// Cosigner is a witness's public key (C2SP tlog-cosignature v1.0, Ed25519). It implements note.Verifier.
type Cosigner struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

var _ note.Verifier = (*Cosigner)(nil)

// ParseCosigner reads a vkey of type 0x04: name+hash+key.
func ParseCosigner(vkey string) (*Cosigner, error) {
	name, rest, _ := strings.Cut(vkey, "+")
	hashText, keyText, found := strings.Cut(rest, "+")
	hash, hashErr := strconv.ParseUint(hashText, 16, 32)
	key, keyErr := base64.StdEncoding.DecodeString(keyText)
	if !found || !validName(name) || hashErr != nil || len(hashText) != 8 || keyErr != nil || len(key) == 0 {
		return nil, errors.New("not a key of the form name+hash+base64 (C2SP signed-note)")
	}
	switch kind := key[0]; {
	case kind == typeLog:
		return nil, errors.New("a log's key (type 0x01), not a witness's (0x04)")
	case kind == typeMLDSA:
		return nil, errors.New("an ML-DSA-44 key (type 0x06) is not supported; use the witness's Ed25519 key (0x04)")
	case kind != typeCosignature:
		return nil, fmt.Errorf("a key of type 0x%02x, not a witness's Ed25519 key (0x04)", kind)
	case len(key) != 1+ed25519.PublicKeySize:
		return nil, fmt.Errorf("an Ed25519 key has %d bytes, this one has %d", ed25519.PublicKeySize, len(key)-1)
	}
	if journal.HasSmallOrder(key[1:]) {
		return nil, journal.ErrSmallOrder
	}
	c := &Cosigner{name: name, hash: keyHash(name, key), key: key[1:]}
	if c.hash != uint32(hash) {
		return nil, fmt.Errorf("its hash is %08x, not %08x: the name or the key was changed", c.hash, hash)
	}
	return c, nil
}

// keyHash returns the key ID. typed is the key's type and bytes.
func keyHash(name string, typed []byte) uint32 {
	sum := sha256.Sum256(append([]byte(name+"\n"), typed...))
	return binary.BigEndian.Uint32(sum[:4])
}

// validName reports whether a name is valid in a signed note.
func validName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsSpace) &&
		!strings.Contains(name, "+")
}

// Name implements note.Verifier.
func (c *Cosigner) Name() string { return c.name }

// KeyHash implements note.Verifier.
func (c *Cosigner) KeyHash() uint32 { return c.hash }

// Verify implements note.Verifier. signature has signatureSize bytes and covers the text of a checkpoint.
func (c *Cosigner) Verify(text, signature []byte) bool {
	if len(signature) != signatureSize {
		return false
	}
	seconds := binary.BigEndian.Uint64(signature)
	if seconds > math.MaxInt64 {
		return false
	}
	return ed25519.Verify(c.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", seconds, text), signature[8:])
}

// cosignatureLine is a signature line in a note.
type cosignatureLine struct {
	text string // with its newline
	time time.Time
}

// dash begins a signature line.
const dash = "— "

// find returns this cosigner's line among the signature lines of a checkpoint. It skips lines of other keys. ok is
// false if it finds no line. A line of this key that does not verify is an error.
func (c *Cosigner) find(text string, lines []byte) (found cosignatureLine, ok bool, err error) {
	for each := range bytes.Lines(lines) {
		rest, isSignature := strings.CutPrefix(string(each), dash+c.name+" ")
		raw, decodeErr := base64.StdEncoding.DecodeString(strings.TrimSuffix(rest, "\n"))
		if !isSignature || decodeErr != nil || len(raw) < 4 || binary.BigEndian.Uint32(raw) != c.hash {
			continue
		}
		if !c.Verify([]byte(text), raw[4:]) {
			return cosignatureLine{}, false, fmt.Errorf("the cosignature of %s+%08x does not verify", c.name, c.hash)
		}
		return cosignatureLine{text: strings.TrimSuffix(string(each), "\n") + "\n", time: cosignedAt(raw[4:])}, true, nil
	}
	return cosignatureLine{}, false, nil
}

// cosignedAt returns the time in a cosignature.
func cosignedAt(signature []byte) time.Time {
	return time.Unix(int64(binary.BigEndian.Uint64(signature)), 0).UTC()
}
