package hsm

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance/journal"
)

// Algorithm is the kind of a key.
type Algorithm string

const (
	Secp256k1 Algorithm = ""        // an attestor key: CKM_ECDSA over 32 bytes
	Ed25519   Algorithm = "ed25519" // a log key: CKM_EDDSA over a message (RFC 8032)
)

// Values of PKCS#11 v3.0 (mechanisms, section 2.3) that the binding does not define.
const (
	ckkECEdwards           = 0x00000040 // CKK_EC_EDWARDS
	ckmECEdwardsKeyPairGen = 0x00001055 // CKM_EC_EDWARDS_KEY_PAIR_GEN
	ckmEdDSA               = 0x00001057 // CKM_EDDSA
)

// ed25519Params are the values of CKA_EC_PARAMS for Ed25519: the OID 1.3.101.112 (RFC 8410), and the name of the curve
// as a PrintableString or UTF8String.
var ed25519Params = [][]byte{
	{0x06, 0x03, 0x2b, 0x65, 0x70},
	append([]byte{0x13, 12}, "edwards25519"...),
	append([]byte{0x0c, 12}, "edwards25519"...),
}

func (a Algorithm) keyType() uint {
	if a == Ed25519 {
		return ckkECEdwards
	}
	return pkcs11.CKK_EC
}

func (a Algorithm) keyPairGen() uint {
	if a == Ed25519 {
		return ckmECEdwardsKeyPairGen
	}
	return pkcs11.CKM_EC_KEY_PAIR_GEN
}

// params returns the values of CKA_EC_PARAMS that name the curve. Keys are generated with the first.
func (a Algorithm) params() [][]byte {
	if a == Ed25519 {
		return ed25519Params
	}
	return curveParams
}

// name returns the name of the curve.
func (a Algorithm) name() string {
	if a == Ed25519 {
		return string(Ed25519)
	}
	return curveName
}

// signMessage returns an Ed25519 signature of the message.
func signMessage(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle,
	message []byte) (signature [ed25519.SignatureSize]byte, err error) {
	if err := m.SignInit(h, []*pkcs11.Mechanism{pkcs11.NewMechanism(ckmEdDSA, nil)}, key); err != nil {
		return signature, failed("C_SignInit", err)
	}
	made, err := m.Sign(h, message)
	if err != nil {
		return signature, failed("C_Sign", err)
	}
	if len(made) != len(signature) {
		return signature, wrongLength(len(made))
	}
	return [ed25519.SignatureSize]byte(made), nil
}

// tryEd25519 makes a trial signature. Its text has one line and cannot be taken for a checkpoint, which has at least
// three.
func tryEd25519(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle, publicKey []byte) error {
	message := fmt.Appendf(nil, "attestd log key trial %s\n", rand.Text())
	signature, err := signMessage(m, h, key, message)
	if err != nil {
		return fmt.Errorf("trial signature: %w", err)
	}
	if !ed25519.Verify(publicKey, message, signature[:]) {
		return fmt.Errorf("trial signature: %w", ErrWrongKey)
	}
	return nil
}

// parseEd25519Point reads CKA_EC_POINT of an Ed25519 key: the 32 bytes of RFC 8032, bare or in a DER OCTET STRING or
// BIT STRING. Keys of small order are refused: signatures under them prove nothing.
func parseEd25519Point(value []byte) ([]byte, error) {
	point := value
	switch {
	case len(value) == 34 && bytes.HasPrefix(value, []byte{0x04, 0x20}):
		point = value[2:]
	case len(value) == 35 && bytes.HasPrefix(value, []byte{0x03, 0x21, 0x00}):
		point = value[3:]
	}
	if len(point) != ed25519.PublicKeySize {
		return nil, errors.New("not a point of Ed25519")
	}
	if journal.HasSmallOrder(point) {
		return nil, journal.ErrSmallOrder
	}
	return slices.Clone(point), nil
}
