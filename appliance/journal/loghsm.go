package journal

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// LogSigner signs with an Ed25519 key in an HSM.
type LogSigner interface {
	PublicKey() ed25519.PublicKey
	Sign(message []byte) ([]byte, error)
}

// ErrUnsigned means that the HSM did not sign a checkpoint. Nothing was committed, and a later commit may succeed.
var ErrUnsigned = errors.New("the log key in the HSM did not sign")

// PublicLogKey returns the public half of a log key and its text, which ParseLogKey reads. The text is the content of
// log.key if the secret is in an HSM.
func PublicLogKey(origin string, public ed25519.PublicKey) (LogKey, string, error) {
	if err := validOrigin(origin); err != nil {
		return LogKey{}, "", err
	}
	text, err := note.NewEd25519VerifierKey(origin, public)
	if err != nil {
		return LogKey{}, "", fmt.Errorf("log key: %w", err)
	}
	key, err := ParseLogKey(text)
	return key, text, err
}

// PublicKey returns the 32 bytes of the public key.
func (k LogKey) PublicKey() ed25519.PublicKey {
	raw, err := base64.StdEncoding.DecodeString(strings.SplitN(k.VerifierText, "+", 3)[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize {
		return nil
	}
	return raw[1:]
}

// IsFile reports whether the key has its secret, which is in log.key. Otherwise the secret is in an HSM.
func (k LogKey) IsFile() bool { return k.seed != nil }

// SignedBy returns the public half of a key with a signer that uses the HSM. If the HSM has another key, every
// signature fails with ErrUnsigned. A key that has its secret is returned unchanged, and so is every key if hsm is nil.
func (k LogKey) SignedBy(hsm LogSigner) LogKey {
	if hsm != nil && !k.IsFile() {
		k.Signer = hsmSigner{k, hsm}
	}
	return k
}

// hsmSigner is a note.Signer.
type hsmSigner struct {
	key LogKey
	hsm LogSigner
}

func (s hsmSigner) Name() string    { return s.key.Verifier.Name() }
func (s hsmSigner) KeyHash() uint32 { return s.key.Verifier.KeyHash() }

func (s hsmSigner) Sign(message []byte) ([]byte, error) {
	if !s.key.PublicKey().Equal(s.hsm.PublicKey()) {
		return nil, fmt.Errorf("%w: the HSM has another key than %s", ErrUnsigned, s.key.VerifierText)
	}
	signature, err := s.hsm.Sign(message)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsigned, err)
	}
	return signature, nil
}
