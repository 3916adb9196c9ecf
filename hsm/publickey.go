package hsm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// publicKeyOf returns the public key of k: 65 bytes, SEC 1 uncompressed, or the 32 bytes of an Ed25519 key. It reads
// the public key objects, and a trial signature must verify with the result. If the token has no such object,
// publicKeyOf computes a secp256k1 key from trial signatures.
func publicKeyOf(m module, h pkcs11.SessionHandle, k privateKey) ([]byte, error) {
	points, err := publicPoints(m, h, k)
	if err != nil {
		return nil, fmt.Errorf("read the public key: %w", err)
	}
	if len(points) == 0 && k.algorithm == Ed25519 {
		return nil, fmt.Errorf("key %s lacks a public key object with CKA_EC_POINT: import the public key into the "+
			"token with the vendor's tool", k)
	}
	if len(points) == 0 {
		return recoverPublicKey(m, h, k.handle)
	}
	for _, point := range points {
		err = tryKey(m, h, k, point)
		if !errors.Is(err, ErrWrongKey) {
			return point, err
		}
	}
	return nil, fmt.Errorf("the public key object of key %s does not match its private key: %w", k, err)
}

// publicPoints returns the points of the public key objects with the id of k, or with its label if it has no id. Some
// tokens have CKA_EC_POINT on the private key, too.
func publicPoints(m module, h pkcs11.SessionHandle, k privateKey) ([][]byte, error) {
	var objects []pkcs11.ObjectHandle
	if len(k.id) > 0 || k.label != "" {
		label := k.label
		if len(k.id) > 0 {
			label = ""
		}
		var err error
		if objects, err = findObjects(m, h, k.algorithm.template(pkcs11.CKO_PUBLIC_KEY, label, k.id)); err != nil {
			return nil, err
		}
	}
	var points [][]byte
	for _, o := range append(objects, k.handle) {
		r := attributeReader{m: m, h: h, o: o}
		value := r.bytes(pkcs11.CKA_EC_POINT)
		if r.err != nil {
			return nil, r.err
		}
		if len(value) == 0 {
			continue
		}
		parse := parsePoint
		if k.algorithm == Ed25519 {
			parse = parseEd25519Point
		}
		point, err := parse(value)
		if err != nil {
			return nil, fmt.Errorf("CKA_EC_POINT %x: %w", value, err)
		}
		points = append(points, point)
	}
	return points, nil
}

// parsePoint parses CKA_EC_POINT. PKCS#11 v2.40 specifies a DER OCTET STRING with the point. Some tokens return a BIT
// STRING or the bare point, and some compress it. The length distinguishes these forms. The first byte does not, since
// an OCTET STRING and an uncompressed point both begin with 4.
func parsePoint(value []byte) ([]byte, error) {
	point := value
	switch {
	case len(value) == 67 || len(value) == 35:
		if value[0] != 0x04 || int(value[1]) != len(value)-2 {
			return nil, errors.New("not a DER OCTET STRING")
		}
		point = value[2:]
	case len(value) == 68 || len(value) == 36:
		if value[0] != 0x03 || int(value[1]) != len(value)-2 || value[2] != 0 {
			return nil, errors.New("not a DER BIT STRING")
		}
		point = value[3:]
	}
	if len(point) == 33 {
		key, err := crypto.DecompressPubkey(point)
		if err != nil {
			return nil, errors.New("not a point of secp256k1")
		}
		return crypto.FromECDSAPub(key), nil
	}
	if _, err := crypto.UnmarshalPubkey(point); err != nil {
		return nil, errors.New("not a point of secp256k1")
	}
	return slices.Clone(point), nil
}

// recoverPublicKey computes the public key from trial signatures. Two keys fit each signature, and only one key fits
// all of them.
func recoverPublicKey(m module, h pkcs11.SessionHandle, key pkcs11.ObjectHandle) ([]byte, error) {
	var common [][]byte
	for round := range 3 {
		digest := appliance.TrialDigest()
		rs, err := signRaw(m, h, key, digest)
		if err != nil {
			return nil, fmt.Errorf("recover the public key: %w", err)
		}
		fits := recoverCandidates(digest, rs)
		if round == 0 {
			common = fits
			continue
		}
		common = slices.DeleteFunc(common, func(c []byte) bool {
			return !slices.ContainsFunc(fits, func(f []byte) bool { return bytes.Equal(c, f) })
		})
	}
	if len(common) != 1 {
		return nil, fmt.Errorf("recover the public key: %w: %d keys fit all trial signatures", ErrWrongKey, len(common))
	}
	return common[0], nil
}

func recoverCandidates(digest appliance.Digest, rs [64]byte) [][]byte {
	var fits [][]byte
	for v := range byte(2) {
		if point, err := crypto.Ecrecover(digest[:], append(slices.Clone(rs[:]), v)); err == nil {
			fits = append(fits, point)
		}
	}
	return fits
}

// tryKey makes a trial signature. It returns ErrWrongKey unless the signature verifies with the public key.
func tryKey(m module, h pkcs11.SessionHandle, k privateKey, publicKey []byte) error {
	if k.algorithm == Ed25519 {
		return tryEd25519(m, h, k.handle, publicKey)
	}
	digest := appliance.TrialDigest()
	rs, err := signRaw(m, h, k.handle, digest)
	if err != nil {
		return fmt.Errorf("trial signature: %w", err)
	}
	if _, err := secp256k1.NewSignature(digest, rs, publicKey); err != nil {
		return fmt.Errorf("trial signature: %w: %w", ErrWrongKey, err)
	}
	return nil
}
