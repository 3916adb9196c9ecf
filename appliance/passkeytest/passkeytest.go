// Package passkeytest is an authenticator in software, for tests: it makes passkeys and signs with them as WebAuthn
// (level 2) says.
package passkeytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"

	"github.com/attestd/attestd/appliance/approval"
)

// Passkey is a key of one person.
type Passkey struct {
	approval.Approver
	Flags       byte // of the authenticator's data; user present and verified unless a test changes it
	CrossOrigin bool // the page is in a frame of another origin
	key         *ecdsa.PrivateKey
}

// New makes a passkey (ES256) for a relying party.
func New(name, rpID string) *Passkey {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	public := must(x509.MarshalPKIXPublicKey(&key.PublicKey))
	id := make([]byte, 16)
	rand.Read(id)
	return &Passkey{approval.Approver{Name: name, Credential: base64.RawURLEncoding.EncodeToString(id),
		PublicKey: public, RPID: rpID}, 0b101, false, key}
}

// Sign signs a challenge on a page of the relying party.
func (p *Passkey) Sign(challenge []byte) approval.Assertion {
	return p.SignAs("webauthn.get", challenge, "https://"+p.RPID)
}

// SignAs signs a challenge with any type and origin.
func (p *Passkey) SignAs(kind string, challenge []byte, origin string) approval.Assertion {
	client := must(json.Marshal(map[string]any{"type": kind, "origin": origin, "crossOrigin": p.CrossOrigin,
		"challenge": base64.RawURLEncoding.EncodeToString(challenge)}))
	party := sha256.Sum256([]byte(p.RPID))
	data := append(party[:], p.Flags, 0, 0, 0, 0)
	hash := sha256.Sum256(client)
	digest := sha256.Sum256(append(append([]byte{}, data...), hash[:]...))
	signature := must(ecdsa.SignASN1(rand.Reader, p.key, digest[:]))
	return approval.Assertion{Credential: p.Credential, AuthenticatorData: data, ClientData: client,
		Signature: signature}
}

// must panics on an error that cannot happen.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
