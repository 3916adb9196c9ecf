package approval

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"
)

// Assertion is the result of signing with a passkey (WebAuthn level 2, section 7.2), as the browser returns it.
type Assertion struct {
	Credential        string `json:"credential"`        // id of the passkey, base64url
	AuthenticatorData []byte `json:"authenticatorData"` // base64 in JSON, as are the others
	ClientData        []byte `json:"clientData"`        // clientDataJSON
	Signature         []byte `json:"signature"`
}

// Flags of the authenticator's data (WebAuthn level 2, section 6.1).
const (
	userPresent   = 1 << 0
	userVerified  = 1 << 2
	authenticator = 37 // bytes at least: hash of the relying party's id, flags, counter
)

// ParsePasskey reads the public key of a passkey (SubjectPublicKeyInfo, DER). It accepts the keys that browsers make:
// ECDSA on P-256, Ed25519 and RSA from 2048 bits on.
func ParsePasskey(der []byte) (crypto.PublicKey, error) {
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return k, nil
		}
	case ed25519.PublicKey:
		return k, nil
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 && k.N.BitLen() <= 8192 {
			return k, nil
		}
	}
	return nil, errors.New("public key: must be ECDSA on P-256, Ed25519, or RSA of 2048 to 8192 bits")
}

// verify checks that the passkey's owner, verified by the authenticator, signed the challenge for the relying party.
func (a Assertion) verify(publicKey []byte, rpID string, challenge [sha256.Size]byte) error {
	var client struct {
		Type        string `json:"type"`
		Challenge   string `json:"challenge"`
		Origin      string `json:"origin"`
		CrossOrigin bool   `json:"crossOrigin"`
	}
	if err := json.Unmarshal(a.ClientData, &client); err != nil {
		return fmt.Errorf("client data: %w", err)
	}
	origin, err := url.Parse(client.Origin)
	if err != nil {
		return fmt.Errorf("client data: origin: %w", err)
	}
	party := sha256.Sum256([]byte(rpID))
	host := origin.Hostname()
	switch {
	case client.Type != "webauthn.get":
		return fmt.Errorf("client data: the type is %q, not webauthn.get", client.Type)
	case client.Challenge != base64.RawURLEncoding.EncodeToString(challenge[:]):
		return errors.New("it signs another challenge")
	case client.CrossOrigin || host != rpID && !strings.HasSuffix(host, "."+rpID):
		return fmt.Errorf("it was made on the page of %q, not of %q", client.Origin, rpID)
	case len(a.AuthenticatorData) < authenticator ||
		subtle.ConstantTimeCompare(a.AuthenticatorData[:sha256.Size], party[:]) != 1:
		return fmt.Errorf("it is not for %q", rpID)
	case a.AuthenticatorData[sha256.Size]&userPresent == 0, a.AuthenticatorData[sha256.Size]&userVerified == 0:
		return errors.New("the authenticator did not verify its user")
	}
	return a.signed(publicKey)
}

// signed checks the signature alone.
func (a Assertion) signed(publicKey []byte) error {
	key, err := ParsePasskey(publicKey)
	if err != nil {
		return err
	}
	client := sha256.Sum256(a.ClientData)
	message := append(append([]byte{}, a.AuthenticatorData...), client[:]...)
	digest := sha256.Sum256(message)
	valid := false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		valid = ecdsa.VerifyASN1(k, digest[:], a.Signature)
	case ed25519.PublicKey:
		valid = ed25519.Verify(k, message, a.Signature)
	case *rsa.PublicKey:
		valid = rsa.VerifyPKCS1v15(k, crypto.SHA256, digest[:], a.Signature) == nil
	}
	if !valid {
		return errors.New("the signature is not the passkey's")
	}
	return nil
}

// approvalChallenge is the hash of the log's origin and of the leaf that is approved. The leaf has the id, the request
// and the rule, and a salt, so that the challenge does not confirm a guess of the addresses.
func challengeOf(origin string, leaf []byte) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "attestd approval v1\n%d %s\n%d ", len(origin), origin, len(leaf))
	h.Write(leaf)
	return [sha256.Size]byte(h.Sum(nil))
}

func readAssertion(d map[string]string) (a Assertion, err error) {
	a.Credential = d[DetailCredential]
	for name, into := range map[string]*[]byte{detailAuthData: &a.AuthenticatorData, detailClientData: &a.ClientData,
		detailSignature: &a.Signature} {
		if *into, err = base64.RawURLEncoding.DecodeString(d[name]); err != nil {
			return a, fmt.Errorf("%s: %w", name, err)
		}
	}
	return a, nil
}

// details are the reverse of readAssertion.
func (a Assertion) details(approval uuid.UUID, approver string) map[string]string {
	text := base64.RawURLEncoding.EncodeToString
	return map[string]string{DetailApproval: approval.String(), DetailApprover: approver,
		DetailCredential: a.Credential, detailAuthData: text(a.AuthenticatorData),
		detailClientData: text(a.ClientData), detailSignature: text(a.Signature)}
}

// shortCredential abbreviates the id of a passkey that may be any text.
func shortCredential(id string) string {
	if len(id) > 24 {
		id = id[:24] + "…"
	}
	return fmt.Sprintf("%q", id)
}
