package witness_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// cosigner is a witness's key pair.
type cosigner struct {
	name string
	key  ed25519.PrivateKey
}

// newCosigner derives the key from the name.
func newCosigner(name string) cosigner {
	seed := sha256.Sum256([]byte(name))
	return cosigner{name, ed25519.NewKeyFromSeed(seed[:])}
}

// typed returns the public key after its type byte.
func (c cosigner) typed(kind byte) []byte {
	return append([]byte{kind}, c.key.Public().(ed25519.PublicKey)...)
}

func (c cosigner) hash(kind byte) []byte {
	sum := sha256.Sum256(append([]byte(c.name+"\n"), c.typed(kind)...))
	return sum[:4]
}

func (c cosigner) vkey() string { return c.vkeyOf(4) }

func (c cosigner) vkeyOf(kind byte) string {
	return fmt.Sprintf("%s+%x+%s", c.name, c.hash(kind), base64.StdEncoding.EncodeToString(c.typed(kind)))
}

// cosign returns the signature line for a checkpoint's text.
func (c cosigner) cosign(text string, at time.Time) string {
	signature := ed25519.Sign(c.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at.Unix(), text))
	raw := binary.BigEndian.AppendUint64(c.hash(4), uint64(at.Unix()))
	return "— " + c.name + " " + base64.StdEncoding.EncodeToString(append(raw, signature...)) + "\n"
}

// newLog makes a log key.
func newLog(t testing.TB, origin string) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey(origin)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// checkpointOf returns a checkpoint of a tree of the given size.
func checkpointOf(t testing.TB, key journal.LogKey, records int64) string {
	t.Helper()
	signed, err := journal.SignCheckpoint(tlog.Tree{N: records, Hash: tlog.RecordHash(fmt.Append(nil, records))},
		key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}

// textOf returns the signed text of a checkpoint.
func textOf(signed string) string {
	text, _, _ := strings.Cut(signed, "\n\n")
	return text + "\n"
}
