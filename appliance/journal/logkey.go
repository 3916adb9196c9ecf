package journal

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
)

// LogKey is the Ed25519 key that signs a journal's checkpoints. The only other texts that it signs are StoreSecret's and
// audit reports (package report).
type LogKey struct {
	Signer       note.Signer // nil for the public half
	Verifier     note.Verifier
	VerifierText string // the verifier key for auditors: name+hash+key (C2SP signed-note)

	seed []byte // nil for the public half
}

// NewLogKey makes a key for a log with that origin. It also returns the secret text that ParseLogKey reads. An origin
// is a globally unique name, such as example.com/attestd, without spaces or pluses.
func NewLogKey(origin string) (LogKey, string, error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) // never fails (Go 1.24)
	return logKeyOf(origin, seed)
}

// logKeyOf returns the key of a seed and its secret text.
func logKeyOf(origin string, seed []byte) (LogKey, string, error) {
	if err := validOrigin(origin); err != nil {
		return LogKey{}, "", err
	}
	secret, _, err := note.GenerateKey(strings.NewReader(string(seed)), origin)
	if err != nil {
		return LogKey{}, "", fmt.Errorf("generate log key: %w", err)
	}
	key, err := ParseLogKey(secret)
	return key, secret, err
}

func validOrigin(origin string) error {
	if origin == "" || strings.ContainsAny(origin, "+ \t\r\n") {
		return fmt.Errorf("log origin %q must be a name like example.com/attestd, without spaces or plus", origin)
	}
	return nil
}

// ParseLogKey reads a key's secret text, PRIVATE+KEY+name+hash+seed (golang.org/x/mod/sumdb/note), or the verifier key
// name+hash+key if the secret is in an HSM. Its errors do not repeat the text.
func ParseLogKey(secret string) (LogKey, error) {
	secret = strings.TrimSpace(secret)
	if !strings.HasPrefix(secret, "PRIVATE+KEY+") {
		verifier, err := ParseVerifier(secret)
		if err != nil {
			return LogKey{}, errors.New("not a log key")
		}
		return LogKey{Verifier: verifier, VerifierText: secret}, nil
	}
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
	return LogKey{Signer: signer, Verifier: verifier, VerifierText: text, seed: raw[1:]}, err
}

// lastField returns the text after the fourth plus. The base64 of the seed may itself contain pluses.
func lastField(secret string) string {
	fields := strings.SplitN(secret, "+", 5)
	return fields[len(fields)-1]
}

// StoreSecret derives the 32-byte key of a store's MAC from the log key (HKDF, RFC 5869). The input of HKDF is an
// Ed25519 signature, which is deterministic (RFC 8032), so a signer that hides its key works, too. The signed text has
// one line. It cannot pass for a checkpoint, which has at least three.
func StoreSecret(signer note.Signer) ([]byte, error) {
	signature, err := signer.Sign([]byte("attestd store secret v1\n"))
	if err != nil {
		return nil, fmt.Errorf("derive the store's secret from the log key: %w", err)
	}
	return hkdf.Key(sha256.New, signature, nil, "attestd store MAC "+LogName(signer), sha256.Size)
}

// Continue returns the key of the log that begins with the event, and its secret text. The key is derived from the old
// log's key and that leaf (HKDF, RFC 5869). So all appliances that hold the old key can follow the continuation without
// an operator, and only a holder of the old key can make one. Two events never lead to the same key, because their
// salts differ. A key in an HSM stays the same, under the new log's origin.
//
// Errors: the event does not continue this key's log, or names a new key (ErrNewLogKey).
func (k LogKey) Continue(e Event) (LogKey, string, error) {
	c, ok := e.Continuation()
	if !ok || c.Log != k.VerifierText {
		return LogKey{}, "", fmt.Errorf("the event does not continue log %s", LogName(k.Verifier))
	}
	if c.NewKey != "" {
		return LogKey{}, "", fmt.Errorf("%w. The new key is %s", ErrNewLogKey, c.NewKey)
	}
	if !k.IsFile() {
		return PublicLogKey(c.Origin, k.PublicKey())
	}
	leaf, err := EncodeEvent(e)
	if err != nil {
		return LogKey{}, "", err
	}
	hash := sha256.Sum256(leaf)
	seed, err := hkdf.Key(sha256.New, k.seed, hash[:], "attestd log_continued", ed25519.SeedSize)
	if err != nil {
		return LogKey{}, "", fmt.Errorf("derive log key: %w", err)
	}
	return logKeyOf(c.Origin, seed)
}

// ErrNewLogKey means that a log has a key that cannot be derived from the key of the log that it continues.
var ErrNewLogKey = errors.New("the log continues with a new log key, which this appliance lacks: run attestd setup " +
	"--bundle FILE on the appliance that has it; here, move log.key away, then run attestd setup --join FILE")

// GiveNewLogKey makes an independent key for the log that the event will begin, and names it in the event.
// Unlike with Continue, a holder of the old log's key cannot derive it. If hsm is not nil, the key is the one in the
// HSM.
func (e *Event) GiveNewLogKey(hsm LogSigner) (key LogKey, secret string, err error) {
	c, ok := e.Continuation()
	if !ok {
		return LogKey{}, "", errors.New("the event does not continue a log")
	}
	if hsm == nil {
		key, secret, err = NewLogKey(c.Origin)
	} else {
		key, secret, err = PublicLogKey(c.Origin, hsm.PublicKey())
	}
	if err != nil {
		return LogKey{}, "", err
	}
	e.Details[detailNewKey] = key.VerifierText
	return key, secret, nil
}

// Follow derives the key of the log that begins with these events, newest first. k is the key of a log that it
// continues, directly or through other logs.
func (k LogKey) Follow(events []Event) (next LogKey, secret string, err error) {
	from := -1
	for i, e := range events {
		if c, ok := e.Continuation(); ok && c.Log == k.VerifierText {
			from = i
			break
		}
	}
	if from < 0 {
		return LogKey{}, "", fmt.Errorf("the log does not continue %s", LogName(k.Verifier))
	}
	next = k
	for i := from; i >= 0; i-- {
		if next, secret, err = next.Continue(events[i]); err != nil {
			return LogKey{}, "", err
		}
	}
	return next, secret, nil
}

// NewContinuation makes the first leaf of a log that continues the log of key. surviving is the checkpoint of its
// surviving leaves. published may be empty.
func NewContinuation(key LogKey, surviving, published []byte, reason, by string, now time.Time) (Event, error) {
	if err := validReason(reason); err != nil {
		return Event{}, err
	}
	e := Continuation{
		Log: key.VerifierText, Origin: NextOrigin(key.Verifier.Name(), now),
		Published: string(published), Surviving: string(surviving), Reason: reason,
	}.Event()
	var err error
	if e.ID, err = uuid.NewV7(); err != nil {
		return Event{}, err
	}
	e.Time, e.By = now.UTC().Truncate(time.Millisecond), by
	rand.Read(e.Salt[:]) // never fails (Go 1.24)
	return e, nil
}
