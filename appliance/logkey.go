package appliance

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// LogKey is the Ed25519 key that signs a journal's checkpoints. It signs nothing else.
type LogKey struct {
	Signer       note.Signer
	Verifier     note.Verifier
	VerifierText string // what an auditor keeps: name+hash+key (C2SP signed-note)
}

// NewLogKey makes a key for a log of that origin and returns it with its secret text, which ParseLogKey reads. An
// origin names one log in the world, like example.com/attestd; it has no spaces and no plus.
func NewLogKey(origin string) (LogKey, string, error) {
	if origin == "" || strings.ContainsAny(origin, "+ \t\r\n") {
		return LogKey{}, "", fmt.Errorf("log origin %q must be a name like example.com/attestd, without spaces or plus", origin)
	}
	secret, _, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return LogKey{}, "", fmt.Errorf("make log key: %w", err)
	}
	key, err := ParseLogKey(secret)
	return key, secret, err
}

// ParseLogKey reads a key's secret text: PRIVATE+KEY+name+hash+seed (golang.org/x/mod/sumdb/note). Its errors do
// not repeat the text.
func ParseLogKey(secret string) (LogKey, error) {
	secret = strings.TrimSpace(secret)
	signer, err := note.NewSigner(secret)
	if err != nil {
		return LogKey{}, errors.New("not a log key")
	}
	const algorithmAndSeed = 1 + ed25519.SeedSize
	raw, err := base64.StdEncoding.DecodeString(lastField(secret))
	if err != nil || len(raw) != algorithmAndSeed {
		return LogKey{}, errors.New("not an Ed25519 log key")
	}
	public := ed25519.NewKeyFromSeed(raw[1:]).Public().(ed25519.PublicKey)
	text, err := note.NewEd25519VerifierKey(signer.Name(), public)
	if err != nil {
		return LogKey{}, fmt.Errorf("log key: %w", err)
	}
	verifier, err := note.NewVerifier(text)
	return LogKey{Signer: signer, Verifier: verifier, VerifierText: text}, err
}

// lastField returns what follows the fourth plus. The base64 of the seed may itself hold pluses.
func lastField(secret string) string {
	fields := strings.SplitN(secret, "+", 5)
	return fields[len(fields)-1]
}
